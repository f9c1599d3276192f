"""Kimi-Linear: KDA layers, latent attention without positions, mixtures of experts.

    model = load("folder of a checkpoint")       # config.json and its safetensors
    more = model.generate(tokens, 40)

Plain torch but for the KDA layers: to be read, to check a checkpoint with, for small batches. Names
and shapes of parameters are those of the public checkpoints, so that load_state_dict takes these as
they are.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libkda.layer import Backend, KDAConfig, build_kda
from libkda.model import KeysAndValues, LanguageModel, Layer, SwiGLU, attend


@dataclass(frozen=True)
class KimiConfig:
    """What a model is like, in config.json's words but for the KDA layers'."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    kda_layers: tuple[int, ...]  # counted from 1; the others are of latent attention
    kda_num_heads: int
    kda_head_dim: int
    kda_kernel_size: int = 4
    num_experts: int | None = None
    num_experts_per_token: int = 1
    moe_intermediate_size: int = 0
    num_shared_experts: int | None = None
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    routed_scaling_factor: float = 1.0
    moe_renormalize: bool = True
    rms_norm_eps: float = 1e-6
    backend: Backend = "fused"
    streaming: bool = True  # False on a GPU, whose streaming states have no softplus gate
    chunk_size: int = 32

    @staticmethod
    def of(stored: Mapping[str, Any], **changes: Any) -> KimiConfig:
        """That of a config.json. What this model does not compute is a ValueError."""
        for name, accepted in _FIXED.items():
            if stored.get(name, accepted) != accepted:
                raise ValueError(f"{name}: {stored[name]!r}; accepted: {accepted!r}")
        linear = stored["linear_attn_config"]
        layers = sorted([*linear["kda_layers"], *linear["full_attn_layers"]])
        if layers != list(range(1, stored["num_hidden_layers"] + 1)):
            raise ValueError(
                f"linear_attn_config: layers {layers}; accepted: each of 1 to "
                f"{stored['num_hidden_layers']} in one of kda_layers and full_attn_layers"
            )
        own = {
            "kda_layers": tuple(linear["kda_layers"]),
            "kda_num_heads": linear["num_heads"],
            "kda_head_dim": linear["head_dim"],
            "kda_kernel_size": linear["short_conv_kernel_size"],
        }
        known = {f.name for f in fields(KimiConfig)}
        taken = {name: value for name, value in stored.items() if name in known}
        return KimiConfig(**{**taken, **own, **changes})

    @property
    def kda(self) -> KDAConfig:
        return KDAConfig(
            hidden_size=self.hidden_size,
            num_heads=self.kda_num_heads,
            head_dim=self.kda_head_dim,
            kernel_size=self.kda_kernel_size,
            gate_lower_bound=None,
            eps=self.rms_norm_eps,
            chunk_size=self.chunk_size,
            backend=self.backend,
            streaming=self.streaming,
        )

    def has_experts(self, layer: int) -> bool:
        """Of a layer counted from 0."""
        return (
            self.num_experts is not None
            and layer >= self.first_k_dense_replace
            and layer % self.moe_layer_freq == 0
        )


# What config.json may ask for, and the one answer that there is here.
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "mla_use_nope": True,
    "q_lora_rank": None,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0,
}


class LatentAttention(nn.Module):
    """Softmax attention whose keys and values come from a few channels a token; no positions."""

    def __init__(self, config: KimiConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.num_attention_heads
        own, shared, values = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.q_proj = nn.Linear(hidden, heads * (own + shared), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, config.kv_lora_rank + shared, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(config.kv_lora_rank, eps=config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, heads * (own + values), bias=False)
        self.o_proj = nn.Linear(heads * values, hidden, bias=False)

    def new_state(self, batch: int) -> KeysAndValues:
        """It keeps what all heads share of the keys, and what the rest is made from."""
        return KeysAndValues()

    def forward(self, x: Tensor, state: KeysAndValues | None = None) -> Tensor:
        config = self.config
        heads, own = config.num_attention_heads, config.qk_nope_head_dim
        q = self.q_proj(x).unflatten(-1, (heads, -1)).transpose(1, 2)
        sizes = [config.kv_lora_rank, config.qk_rope_head_dim]
        latent, shared = self.kv_a_proj_with_mqa(x).split(sizes, -1)
        latent = self.kv_a_layernorm(latent)
        if state is not None:
            shared, latent = state.append(shared, latent, 1)
        made = self.kv_b_proj(latent).unflatten(-1, (heads, -1)).transpose(1, 2)
        k, v = made.split([own, config.v_head_dim], -1)
        k = torch.cat([k, shared[:, None].expand(-1, heads, -1, -1)], -1)
        y: Tensor = self.o_proj(attend(q, k, v).transpose(1, 2).flatten(-2))
        return y


class Expert(nn.Module):
    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, size, bias=False)
        self.w2 = nn.Linear(size, hidden, bias=False)
        self.w3 = nn.Linear(hidden, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return y


class Router(nn.Module):
    """Which experts a token goes to, [tokens, chosen], and with what weights."""

    def __init__(self, config: KimiConfig, experts: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(experts, config.hidden_size) * 0.02)
        self.e_score_correction_bias = nn.Parameter(torch.zeros(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        scores = torch.sigmoid(F.linear(x.to(dtype), self.weight.to(dtype)))
        # The correction chooses; it does not weigh.
        corrected = scores + self.e_score_correction_bias.to(dtype)
        chosen = corrected.topk(self.config.num_experts_per_token, -1).indices
        weights = scores.gather(-1, chosen)
        if self.config.moe_renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.config.routed_scaling_factor


class Mixture(nn.Module):
    """Experts, some for each token, and one that all tokens share."""

    def __init__(self, config: KimiConfig, experts: int) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.moe_intermediate_size
        self.gate = Router(config, experts)
        self.experts = nn.ModuleList(Expert(hidden, size) for _ in range(experts))
        self.shared_experts = None
        if config.num_shared_experts:
            self.shared_experts = SwiGLU(hidden, size * config.num_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        chosen, weights = self.gate(tokens)
        y = torch.zeros_like(tokens)
        for n, expert in enumerate(self.experts):
            row, place = (chosen == n).nonzero(as_tuple=True)
            part = expert(tokens[row]) * weights[row, place, None]
            y = y.index_add(0, row, part.to(y.dtype))
        y = y.view_as(x)
        return y if self.shared_experts is None else y + self.shared_experts(x)


class KimiLinear(LanguageModel):
    """Logits of the next token."""

    def __init__(self, config: KimiConfig) -> None:
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        layers = []
        for n in range(config.num_hidden_layers):
            is_kda = n + 1 in config.kda_layers
            attention = build_kda(config.kda) if is_kda else LatentAttention(config)
            if config.has_experts(n):
                mixture = Mixture(config, config.num_experts or 0)
                layers.append(Layer(hidden, eps, attention, mixture, "block_sparse_moe"))
            else:
                mlp = SwiGLU(hidden, config.intermediate_size)
                layers.append(Layer(hidden, eps, attention, mlp))
        super().__init__(config.vocab_size, hidden, eps, layers)


def load(folder: str | Path, **changes: Any) -> KimiLinear:
    """The model of a folder with config.json and safetensors files, in the dtypes that are stored.

    changes: fields of KimiConfig, such as backend="recurrent". Needs the package safetensors. A
    parameter that is missing, or one too many, is a RuntimeError that names it.
    """
    safetensors: Any = importlib.import_module("safetensors.torch")
    folder = Path(folder)
    config = KimiConfig.of(json.loads((folder / "config.json").read_text()), **changes)
    stored: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= safetensors.load_file(file)
    with torch.device("meta"):
        model = KimiLinear(config)
    model.load_state_dict(stored, assign=True)
    return model
