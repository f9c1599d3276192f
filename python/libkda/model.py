"""A small hybrid language model: three KDA layers, then one of global causal attention, repeated.

    model = HybridModel(HybridConfig(vocab_size=256, hidden_size=128, num_heads=4, head_dim=32))
    logits = model(tokens)                       # [B, T] -> [B, T, vocab_size]
    more = model.generate(tokens, 40)            # on streaming states

RMSNorm before each layer, SwiGLU behind each. The global layers have no positions: the KDA layers
below them know the order. Parameters have the names of Kimi-Linear's checkpoints, whose own model
is libkda.kimi; state dicts of FLA's models of KDA layers load as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libkda.layer import Backend, KDAConfig, KDAState, build_kda


@dataclass(frozen=True)
class HybridConfig:
    """What a model is like."""

    vocab_size: int
    hidden_size: int
    num_heads: int  # of both kinds of layer
    head_dim: int
    blocks: int = 1  # each of kda_layers and a global one
    kda_layers: int = 3
    global_layers: bool = True  # False: KDA layers only
    mlp_size: int | None = None  # default: 8/3 of hidden_size, in steps of 8
    gate_lower_bound: float | None = -5.0
    chunk_size: int = 32
    eps: float = 1e-5
    output_gate_bias: bool = False  # FLA's models have one
    backend: Backend = "fused"
    streaming: bool = True

    @property
    def kda(self) -> KDAConfig:
        return KDAConfig(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            gate_lower_bound=self.gate_lower_bound,
            chunk_size=self.chunk_size,
            eps=self.eps,
            output_gate_bias=self.output_gate_bias,
            backend=self.backend,
            streaming=self.streaming,
        )


@dataclass
class KeysAndValues:
    """What a layer of global attention keeps, in two tensors of its choice with tokens along `dim`,
    once a token was seen."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Those of all tokens so far."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim)
            values = torch.cat([self.values, values], dim)
        self.keys, self.values = keys, values
        return keys, values


State = KDAState | KeysAndValues


class Attention(Protocol):
    """What a layer's attention is."""

    def new_state(self, batch: int) -> State: ...

    def __call__(self, x: Tensor, state: Any = None) -> Tensor: ...


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention [B, heads, tokens, ..]; the last query sees all keys, whatever came before
    this call."""
    sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    sees = sees.tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=sees)


class GlobalAttention(nn.Module):
    """Softmax attention over all earlier tokens."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width = config.num_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def new_state(self, batch: int) -> KeysAndValues:
        return KeysAndValues()

    def forward(self, x: Tensor, state: KeysAndValues | None = None) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if state is not None:
            k, v = state.append(k, v, 2)
        y: Tensor = self.o_proj(attend(q, k, v).transpose(1, 2).flatten(-2))
        return y


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, size, bias=False)
        self.up_proj = nn.Linear(hidden, size, bias=False)
        self.down_proj = nn.Linear(size, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    """Attention, then what `mlp_name` calls the other half."""

    def __init__(
        self, hidden: int, eps: float, attention: Any, mlp: nn.Module, mlp_name: str = "mlp"
    ) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.self_attn: Attention = attention
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.add_module(mlp_name, mlp)
        self._mlp_name = mlp_name

    def forward(self, x: Tensor, state: State | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), state=state)
        mlp = getattr(self, self._mlp_name)
        y: Tensor = x + mlp(self.post_attention_layernorm(x))
        return y


class Decoder(nn.Module):
    """From tokens [B, T] to what the head reads, [B, T, hidden]."""

    def __init__(self, vocabulary: int, hidden: int, eps: float, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(hidden, eps=eps)

    def forward(self, tokens: Tensor, state: list[State] | None) -> Tensor:
        x = self.embed_tokens(tokens)
        for n, layer in enumerate(self.layers):
            x = layer(x, None if state is None else state[n])
        y: Tensor = self.norm(x)
        return y


# FLA's names of what is ours.
_FLA_NAMES = {
    "model.embeddings.": "model.embed_tokens.",
    ".attn_norm.": ".input_layernorm.",
    ".attn.": ".self_attn.",
    ".mlp_norm.": ".post_attention_layernorm.",
}


class LanguageModel(nn.Module):
    """Logits of the next token."""

    def __init__(self, vocabulary: int, hidden: int, eps: float, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.model = Decoder(vocabulary, hidden, eps, layers)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)

    def new_state(self, batch: int) -> list[State]:
        """States of `batch` sequences that have not begun, one a layer; calls move them on."""
        return [layer.self_attn.new_state(batch) for layer in self.model.layers]  # type: ignore

    def forward(self, tokens: Tensor, state: list[State] | None = None) -> Tensor:
        """[B, T] to [B, T, vocab_size]."""
        logits: Tensor = self.lm_head(self.model(tokens, state))
        return logits

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in list(state_dict):
            ours = name
            for part, replacement in _FLA_NAMES.items():
                ours = ours.replace(part, replacement)
            state_dict[ours] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """`count` tokens that follow a prompt [B, T], T > 0: [B, count].

        temperature 0 takes the likeliest token, else one is drawn. The prompt is one call, then
        each token is one, on streaming states.
        """
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens: shape {list(tokens.shape)}; accepted: [B, T], T > 0")
        state = self.new_state(tokens.shape[0])
        made: list[Tensor] = []
        for _ in range(count):
            logits = self(tokens, state)[:, -1]
            if temperature > 0:
                drawn = torch.softmax(logits.float() / temperature, -1)
                tokens = torch.multinomial(drawn, 1, generator=generator)
            else:
                tokens = logits.argmax(-1, keepdim=True)
            made.append(tokens)
        return torch.cat(made, 1) if made else tokens[:, :0]


class HybridModel(LanguageModel):
    """Blocks of KDA layers, each with a global layer behind it."""

    def __init__(self, config: HybridConfig) -> None:
        self.config = config
        hidden = config.hidden_size
        size = config.mlp_size or -(-8 * hidden // 24) * 8
        kinds = [False] * config.kda_layers + [True] * config.global_layers
        layers = (
            Layer(
                hidden,
                config.eps,
                GlobalAttention(config) if is_global else build_kda(config.kda),
                SwiGLU(hidden, size),
            )
            for is_global in kinds * config.blocks
        )
        super().__init__(config.vocab_size, hidden, config.eps, layers)
