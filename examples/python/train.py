"""Two KDA layers learn to repeat a sequence that they saw once.

python examples/python/train.py --backend fused --compile --profile
"""

import argparse

import torch
from torch import Tensor, nn

from libkda.layer import KDAConfig, build_kda

SYMBOLS, LENGTH, BATCH = 16, 12, 32


class Model(nn.Module):
    def __init__(self, backend: str) -> None:
        super().__init__()
        kda = KDAConfig(hidden_size=64, num_heads=2, head_dim=32, backend=backend)
        self.embedding = nn.Embedding(SYMBOLS, 64)
        self.body = nn.ModuleList(nn.Sequential(nn.RMSNorm(64), build_kda(kda)) for _ in range(2))
        self.head = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, SYMBOLS, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.body:
            x = x + layer(x)
        return self.head(x)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        half = torch.randint(SYMBOLS, (BATCH, LENGTH))
        logits = model(torch.cat([half, half[:, :-1]], 1))[:, LENGTH - 1 :]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), half.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            right = (logits.argmax(-1) == half).float().mean()
            print(f"step {step}: loss {loss:.3f}, {right:.0%} of the symbols right", flush=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--backend", default="fused", choices=["fused", "chunkwise", "recurrent"])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--compile", action="store_true", help="one graph, by torch.compile")
parser.add_argument("--profile", action="store_true", help="ten steps more, and their times")
args = parser.parse_args()
torch.manual_seed(0)
model = torch.compile(Model(args.backend), fullgraph=True, disable=not args.compile)
groups = [{"params": []}, {"params": [], "weight_decay": 0}]
for parameter in model.parameters():
    groups[hasattr(parameter, "_no_weight_decay")]["params"].append(parameter)
optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.1)
train(model, optimizer, range(1, args.steps + 1))
if args.profile:
    with torch.profiler.profile() as profile:
        train(model, optimizer, range(args.steps + 1, args.steps + 11))
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=8))
