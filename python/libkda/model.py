"""A small hybrid language model: three KDA layers, then one of global causal attention, repeated.

    model = HybridModel(HybridConfig(vocab_size=256, hidden_size=128, num_heads=4, head_dim=32))
    logits = model(tokens)                       # [B, T] -> [B, T, vocab_size]
    more = model.generate(tokens, 40)            # on streaming states

RMSNorm before each layer, SwiGLU behind each. The global layers have no positions: the KDA layers
below them know the order.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    mlp_size: int | None = None  # default: 8/3 of hidden_size, in steps of 8
    gate_lower_bound: float | None = -5.0
    chunk_size: int = 32
    eps: float = 1e-5
    backend: Backend = "fused"

    @property
    def kda(self) -> KDAConfig:
        return KDAConfig(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            gate_lower_bound=self.gate_lower_bound,
            chunk_size=self.chunk_size,
            eps=self.eps,
            backend=self.backend,
        )


@dataclass
class KeysAndValues:
    """What a global layer keeps: [B, heads, tokens, head_dim] each, once a token was seen."""

    keys: Tensor | None = None
    values: Tensor | None = None


State = KDAState | KeysAndValues


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
            if state.keys is not None and state.values is not None:
                k, v = torch.cat([state.keys, k], 2), torch.cat([state.values, v], 2)
            state.keys, state.values = k, v
        # The last query sees all keys, whatever came before this call.
        sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device)
        sees = sees.tril(k.shape[2] - q.shape[2])
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        y: Tensor = self.o_proj(o.transpose(1, 2).flatten(-2))
        return y


class SwiGLU(nn.Module):
    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        size = config.mlp_size or -(-8 * hidden // 24) * 8
        self.gate_proj = nn.Linear(hidden, size, bias=False)
        self.up_proj = nn.Linear(hidden, size, bias=False)
        self.down_proj = nn.Linear(size, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    def __init__(self, config: HybridConfig, is_global: bool) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.self_attn = GlobalAttention(config) if is_global else build_kda(config.kda)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, state: State | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), state=state)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class HybridModel(nn.Module):
    """Logits of the next token."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        kinds = ([False] * config.kda_layers + [True]) * config.blocks
        self.layers = nn.ModuleList(Layer(config, is_global) for is_global in kinds)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def new_state(self, batch: int) -> list[State]:
        """States of `batch` sequences that have not begun, one a layer; calls move them on."""
        return [layer.self_attn.new_state(batch) for layer in self.layers]  # type: ignore

    def forward(self, tokens: Tensor, state: list[State] | None = None) -> Tensor:
        """[B, T] to [B, T, vocab_size]."""
        x = self.embed_tokens(tokens)
        for n, layer in enumerate(self.layers):
            x = layer(x, None if state is None else state[n])
        logits: Tensor = self.lm_head(self.norm(x))
        return logits

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
