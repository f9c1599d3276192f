"""Two KDA layers learn to repeat a sequence that they saw once.

python examples/python/train.py --backend fused --compile --profile
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libkda.layer import KDAConfig, build_kda

SYMBOLS, LENGTH, BATCH = 16, 12, 32


class Model(nn.Module):
    def __init__(self, backend: str) -> None:
        super().__init__()
        config = KDAConfig(hidden_size=64, num_heads=2, head_dim=32, backend=backend)
        self.embedding = nn.Embedding(SYMBOLS, 64)
        self.norms = nn.ModuleList(nn.RMSNorm(64) for _ in range(3))
        self.layers = nn.ModuleList(build_kda(config) for _ in range(2))
        self.head = nn.Linear(64, SYMBOLS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(self.norms[-1](x))


def train(run: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        half = torch.randint(SYMBOLS, (BATCH, LENGTH))
        logits = run(torch.cat([half, half[:, :-1]], 1))[:, LENGTH - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), half.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            right = (logits.argmax(-1) == half).float().mean()
            print(f"step {step}: loss {loss:.3f}, {right:.0%} of the symbols right", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="fused", choices=["fused", "chunkwise", "recurrent"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compile", action="store_true", help="one graph, by torch.compile")
    parser.add_argument("--profile", action="store_true", help="ten steps more, and their times")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Model(args.backend)
    run = torch.compile(model, fullgraph=True) if args.compile else model
    groups = {False: [], True: []}  # the gates' own parameters get no weight decay
    for parameter in model.parameters():
        groups[getattr(parameter, "_no_weight_decay", False)].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": groups[False]}, {"params": groups[True], "weight_decay": 0}],
        lr=3e-3,
        weight_decay=0.1,
    )
    train(run, optimizer, range(1, args.steps + 1))
    if args.profile:
        with torch.profiler.profile() as profile:
            train(run, optimizer, range(args.steps + 1, args.steps + 11))
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=8))


if __name__ == "__main__":
    main()
