"""The KDA layer: projections, short convolutions, the attention, its gated norm.

    layer = build_kda(KDAConfig(hidden_size=512, num_heads=4, head_dim=128))
    y = layer(x)                                    # [B, T, hidden_size], any T
    state = layer.new_state(batch=1)                # then token by token
    y = layer(x[:, :1], state=state)

Three classes compute the same: KDARecurrent token by token and KDAChunkwise in chunks, both in
plain torch, to be read; FusedKDAChunkwise with libkda's kernels. Parameters have the names of
Kimi-Linear's checkpoints; load_state_dict takes FLA's too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libkda import _ops
from libkda._options import Norm
from libkda._streaming import CudaConvolution, CudaLayer, StreamingState, decode

Backend = Literal["recurrent", "chunkwise", "fused"]


@dataclass(frozen=True)
class KDAConfig:
    """What a layer is like."""

    hidden_size: int
    num_heads: int  # of queries and keys
    head_dim: int  # key channels
    num_v_heads: int | None = None  # a multiple of num_heads; default: as many
    v_head_dim: int | None = None  # default: head_dim
    kernel_size: int = 4  # of the convolutions, 2 to 8
    gate_lower_bound: float | None = -5.0  # None: the softplus gate
    kda_full_rank_output_gate: bool = False  # else through head_dim channels
    output_gate_bias: bool = False  # FLA's layers have one
    neg_eigval: bool = False
    qk_norm: Norm = "rsqrt"
    chunk_size: int = 32
    eps: float = 1e-5  # of the output norm
    backend: Backend = "fused"
    streaming: bool = True  # new_state() of "fused"; False: plain states, which every gate has

    @property
    def value_heads(self) -> int:
        return self.num_heads if self.num_v_heads is None else self.num_v_heads

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass
class KDAState:
    """Where a batch of sequences stands; a call moves it on in place.

    recurrent is a plain state [B, HV, K, V] (None: zero), or a StreamingState with a slot for each
    sequence: then the attention's outputs have the bits of one uncut call. conv holds the inputs
    that the convolutions of q, k and v still see; a step on a GPU may write over these tensors.
    """

    recurrent: Tensor | StreamingState | None = None
    conv: list[Tensor | None] = field(default_factory=lambda: [None, None, None])


def _convolution(channels: int, width: int) -> nn.Conv1d:
    """Holds a weight [C, 1, W] and initialises it; the layers compute with it themselves."""
    return nn.Conv1d(channels, channels, width, groups=channels, bias=False)


class _KDALayer(nn.Module):
    """What the three layers share. They differ in _convolve, _attend and _norm."""

    def __init__(self, config: KDAConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.value_heads
        if heads % config.num_heads:
            raise ValueError(
                f"num_v_heads: {heads}; accepted: a multiple of num_heads, {config.num_heads}"
            )
        keys, values = config.num_heads * config.head_dim, heads * config.value_dim
        gates, rank = heads * config.head_dim, config.head_dim
        self.q_proj = nn.Linear(hidden, keys, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, values, bias=False)
        self.q_conv1d = _convolution(keys, config.kernel_size)
        self.k_conv1d = _convolution(keys, config.kernel_size)
        self.v_conv1d = _convolution(values, config.kernel_size)
        self.f_a_proj = nn.Linear(hidden, rank, bias=False)
        self.f_b_proj = nn.Linear(rank, gates, bias=False)
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        has_bias = config.output_gate_bias
        if config.kda_full_rank_output_gate:
            self.g_proj = nn.Linear(hidden, values, bias=has_bias)
        else:
            self.g_a_proj = nn.Linear(hidden, rank, bias=False)
            self.g_b_proj = nn.Linear(rank, values, bias=has_bias)
        self.o_norm = nn.RMSNorm(config.value_dim, eps=config.eps)
        self.o_proj = nn.Linear(values, hidden, bias=False)

        # A bounded gate starts at slope 1; decays of a softplus gate spread over time scales.
        A = torch.ones(heads) if config.gate_lower_bound is not None else torch.rand(heads) * 15 + 1
        self.A_log = nn.Parameter(A.log())
        scales = torch.empty(gates).uniform_(math.log(1e-3), math.log(1e-1)).exp().clamp_min(1e-4)
        self.dt_bias = nn.Parameter(scales.expm1().log())  # the inverse of softplus
        for parameter in (self.A_log, self.dt_bias):
            parameter._no_weight_decay = True  # type: ignore[attr-defined]

    def new_state(self, batch: int) -> KDAState:
        """A state for `batch` sequences that have not begun."""
        return KDAState()

    def forward(
        self, x: Tensor, state: KDAState | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """y [B, T, hidden_size] of x [B, T, hidden_size], any T.

        Args:
            state: where the sequences stand; None: they begin, and their state is not kept.
            attention_mask: [B, T], 0 for padding, which neither writes nor decays the state and
                whose output is 0.
        """
        state = KDAState() if state is None else state
        if attention_mask is None:
            return self._sequences(x, state, None)
        if attention_mask.shape != x.shape[:2]:
            raise ValueError(
                f"attention_mask: shape {list(attention_mask.shape)}; accepted: "
                f"{list(x.shape[:2])}, 0 for padding"
            )
        kept = attention_mask.bool()
        ends = kept.sum(1).cumsum(0)
        cu_seqlens = torch.cat([ends.new_zeros(1), ends])
        y = torch.zeros_like(x)
        y[kept] = self._sequences(x[kept][None], state, cu_seqlens)[0].to(y.dtype)
        return y

    def _sequences(self, x: Tensor, state: KDAState, cu_seqlens: Tensor | None) -> Tensor:
        config = self.config
        rows = [projection(x) for projection in (self.q_proj, self.k_proj, self.v_proj)]
        gate = self.f_b_proj(self.f_a_proj(x)).unflatten(-1, (config.value_heads, config.head_dim))
        beta = self.b_proj(x)
        full_rank = config.kda_full_rank_output_gate
        z = self.g_proj(x) if full_rank else self.g_b_proj(self.g_a_proj(x))
        z = z.unflatten(-1, (config.value_heads, config.value_dim))
        o = self._between(rows, gate, beta, z, x.dtype, state, cu_seqlens)
        out: Tensor = self.o_proj(o.flatten(-2))
        return out

    def _between(
        self,
        rows: list[Tensor],
        gate: Tensor,
        beta: Tensor,
        z: Tensor,
        dtype: torch.dtype,
        state: KDAState,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        """What stands between the projections, of q, k and v in `rows`; in `dtype`."""
        mixed = []
        for i, (row, weight) in enumerate(zip(rows, self._weights(), strict=True)):
            y, state.conv[i] = self._convolve(row, weight, state.conv[i], cu_seqlens)
            mixed.append(y)
        o = self._attend(*self._heads(mixed), gate, beta, state, cu_seqlens)
        return self._norm(o.to(dtype), z)

    def _weights(self) -> list[Tensor]:
        return [c.weight.squeeze(1) for c in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]

    def _heads(self, rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        q, k = (row.unflatten(-1, (config.num_heads, config.head_dim)) for row in rows[:2])
        return q, k, rows[2].unflatten(-1, (config.value_heads, config.value_dim))

    def _convolve(
        self, x: Tensor, weight: Tensor, past: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        beta: Tensor,
        state: KDAState,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        raise NotImplementedError

    def _norm(self, o: Tensor, gate: Tensor) -> Tensor:
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        # 16 bits are too few for what says how long the memory is.
        for parameter in (self.A_log, self.dt_bias):
            if parameter.dtype in (torch.bfloat16, torch.float16):
                parameter.data = parameter.data.float()
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        _use_our_names(state_dict, prefix, self.config)
        super()._load_from_state_dict(state_dict, prefix, *rest)


_FLA_NAMES = {"f_proj.0": "f_a_proj", "f_proj.1": "f_b_proj", "g_proj.0": "g_a_proj"}
_FLA_NAMES["g_proj.1"] = "g_b_proj"


def _use_our_names(state_dict: dict[str, Any], prefix: str, config: KDAConfig) -> None:
    """FLA's names become ours; what is stored in more dimensions or for more heads is cut."""
    for theirs, ours in _FLA_NAMES.items():
        for part in ("weight", "bias"):
            stored = state_dict.pop(f"{prefix}{theirs}.{part}", None)
            if stored is not None:
                state_dict[f"{prefix}{ours}.{part}"] = stored
    counts = {"A_log": config.value_heads, "dt_bias": config.value_heads * config.head_dim}
    for name, count in counts.items():
        stored = state_dict.get(prefix + name)
        if stored is not None and stored.numel() >= count:
            part = stored.flatten()[:count]
            state_dict[prefix + name] = part.float() if part.element_size() < 4 else part


class _EagerLayer(_KDALayer):
    """Plain torch but for the core of _attend."""

    def _core(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[B, T, HV, ...] each, g the log decay, S [B, HV, K, V]: the outputs and the new S."""
        raise NotImplementedError

    def _convolve(
        self, x: Tensor, weight: Tensor, past: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if cu_seqlens is not None:
            pieces = [
                self._convolve(piece, weight, None if past is None else past[n : n + 1], None)
                for n, piece in enumerate(_pieces(x, cu_seqlens))
            ]
            return torch.cat([y for y, _ in pieces], 1), torch.cat([end for _, end in pieces])
        width = weight.shape[1]
        if past is None:
            past = x.new_zeros(x.shape[0], x.shape[2], width - 1)
        inputs = torch.cat([past, x.mT], -1)
        windows = inputs.unfold(-1, width, 1)  # [B, C, T, W]
        y = F.silu((windows * weight[:, None]).sum(-1)).mT
        return y.to(x.dtype), inputs[..., x.shape[1] :]

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        beta: Tensor,
        state: KDAState,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        config = self.config
        dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
        with torch.autocast(v.device.type, enabled=False):
            groups = config.value_heads // config.num_heads
            q, k = (
                _normalised(x.to(dtype), config.qk_norm).repeat_interleave(groups, 2)
                for x in (q, k)
            )
            g = gate.to(dtype) + self.dt_bias.to(dtype).view(config.value_heads, -1)
            A = self.A_log.to(dtype).exp()[:, None]
            if config.gate_lower_bound is None:
                g = -A * F.softplus(g)
            else:
                g = config.gate_lower_bound * torch.sigmoid(A * g)
            strength = torch.sigmoid(beta.to(dtype)) * (2 if config.neg_eigval else 1)
            tensors = (q * config.head_dim**-0.5, k, v.to(dtype), g, strength)
            batch = v.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
            S = state.recurrent
            if S is None:
                shape = (batch, config.value_heads, config.head_dim, config.value_dim)
                S = q.new_zeros(shape)
            if isinstance(S, StreamingState):
                raise ValueError("state: streaming; accepted: new_state() of this layer")
            if cu_seqlens is None:
                o, state.recurrent = self._core(*tensors, S)
                return o
            states = list(S.split(1))
            cut = zip(*(_pieces(x, cu_seqlens) for x in tensors), states, strict=True)
            ran = [self._core(q, k, v, g, beta, S) for q, k, v, g, beta, S in cut]
            state.recurrent = torch.cat([end for _, end in ran])
            return torch.cat([o for o, _ in ran], 1)

    def _norm(self, o: Tensor, gate: Tensor) -> Tensor:
        normed: Tensor = self.o_norm(o)
        return normed * torch.sigmoid(gate)


def _pieces(x: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    return list(x.split(cu_seqlens.diff().tolist(), 1))


def _normalised(x: Tensor, norm: Norm) -> Tensor:
    if norm == "rsqrt":
        return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    return F.normalize(x, dim=-1, eps=1e-6) if norm == "normalize" else x


class KDARecurrent(_EagerLayer):
    """Token by token: forget, predict, correct, write, read."""

    def _core(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs = []
        for t in range(q.shape[1]):
            S = S * g[:, t, :, :, None].exp()
            predicted = (S.mT @ k[:, t, :, :, None]).squeeze(-1)
            z = beta[:, t, :, None] * (v[:, t] - predicted)
            S = S + k[:, t, :, :, None] * z[:, :, None, :]
            outputs.append((S.mT @ q[:, t, :, :, None]).squeeze(-1))
        return (torch.stack(outputs, 1) if outputs else torch.zeros_like(v)), S


class KDAChunkwise(_EagerLayer):
    """In chunks of config.chunk_size tokens, the last one possibly short: (6)-(10) of docs/math.md
    with the differences of decays as they stand."""

    def _core(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs = []
        for begin in range(0, q.shape[1], self.config.chunk_size):
            end = begin + self.config.chunk_size
            chunk = (x[:, begin:end].transpose(1, 2) for x in (q, k, v, g, beta))
            o, S = self._chunk(S, *chunk)
            outputs.append(o.transpose(1, 2))
        return (torch.cat(outputs, 1) if outputs else torch.zeros_like(v)), S

    def _chunk(
        self, S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[B, HV, C, ...] each."""
        length = q.shape[2]
        G = g.cumsum(2)
        earlier = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        # Behind the mask the difference would be positive, and its exponential infinite.
        difference = G[:, :, :, None] - G[:, :, None]
        decay = difference.masked_fill(~earlier[..., None], -torch.inf).exp()  # [.., i, j, K]
        A_kk = torch.einsum("bhik,bhijk,bhjk->bhij", k, decay, k) * beta[..., None]
        A_qk = torch.einsum("bhik,bhijk,bhjk->bhij", q, decay, k)
        wanted = beta[..., None] * (v - (G.exp() * k) @ S)
        Z = torch.linalg.solve_triangular(
            A_kk.tril(-1), wanted, upper=False, unitriangular=True
        )  # the diagonal is taken as 1
        o = (G.exp() * q) @ S + A_qk @ Z
        last = G[:, :, -1:]
        return o, last.mT.exp() * S + ((last - G).exp() * k).mT @ Z


class FusedKDAChunkwise(_KDALayer):
    """With libkda's kernels: gates, norms and the logits of beta inside them."""

    def new_state(self, batch: int) -> KDAState:
        """A streaming state: token by token has the bits of one call. Or config.streaming=False."""
        config, dtype = self.config, self.q_proj.weight.dtype
        if not config.streaming:
            return KDAState()
        return KDAState(
            StreamingState(
                batch,
                config.value_heads,
                config.head_dim,
                config.value_dim,
                device=self.q_proj.weight.device,
                precision=(
                    "exact64"
                    if dtype == torch.float64
                    else "fp32"
                    if dtype == torch.float32
                    else "mixed"
                ),
                **self._options(),
            )
        )

    def _options(self) -> dict[str, Any]:
        config = self.config
        return {
            "gate": "softplus" if config.gate_lower_bound is None else "bounded",
            "lower_bound": config.gate_lower_bound,
            "norm": config.qk_norm,
            "sigmoid_beta": True,
            "neg_eigval": config.neg_eigval,
            "chunk": config.chunk_size,
        }

    def _between(
        self,
        rows: list[Tensor],
        gate: Tensor,
        beta: Tensor,
        z: Tensor,
        dtype: torch.dtype,
        state: KDAState,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        layer = None if cu_seqlens is not None else self._cuda_layer(rows, z, dtype, state)
        if layer is None:
            return super()._between(rows, gate, beta, z, dtype, state, cu_seqlens)
        streaming: Any = state.recurrent
        return decode(streaming, *self._heads(rows), gate, beta, **self._raw(), layer=layer)

    def _cuda_layer(
        self, rows: list[Tensor], z: Tensor, dtype: torch.dtype, state: KDAState
    ) -> CudaLayer | None:
        """For decode() to take all that stands between the projections, with the bits of separate
        calls, where it can: a token of each sequence on a GPU."""
        config, streaming = self.config, state.recurrent
        if not isinstance(streaming, StreamingState) or streaming.device.type != "cuda":
            return None
        options, weights = streaming.options, self._weights()
        past = [conv for conv in state.conv if conv is not None]
        if not (
            len(past) == 3
            and config.num_heads == config.value_heads
            and config.kernel_size <= 4
            and options.gate == "bounded"
            and (options.lower_bound or 0) >= -5  # one window of 32 tokens
            and options.reference == "shifted"
            and options.key_window in (None, 32)
            and rows[0].shape[:2] == (streaming.slots, 1)
            and all(x.dtype == dtype == torch.bfloat16 for x in (*rows, z))
            and all(conv.dtype in (torch.bfloat16, torch.float32) for conv in past)
            and all(conv.shape[0] == streaming.slots for conv in past)
            and all(_begins_whole(x) for x in (*past, *weights, self.o_norm.weight))
        ):
            return None
        q, k, v = (CudaConvolution(*parts) for parts in zip(weights, past, strict=True))
        return CudaLayer(q, k, v, self.o_norm.weight, z, eps=config.eps)

    def _convolve(
        self, x: Tensor, weight: Tensor, past: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        y, end = _ops.causal_conv1d(
            x, weight, initial_state=past, output_final_state=True, cu_seqlens=cu_seqlens
        )
        assert end is not None
        return y, end

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        beta: Tensor,
        state: KDAState,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        raw: Mapping[str, Any] = {**self._raw(), "cu_seqlens": cu_seqlens}
        if isinstance(state.recurrent, StreamingState):
            return decode(state.recurrent, q, k, v, gate, beta, **raw)
        o, state.recurrent = _ops.chunk_kda(
            q,
            k,
            v,
            gate,
            beta,
            initial_state=state.recurrent,
            output_final_state=True,
            **raw,
            **self._options(),
        )
        return o

    def _raw(self) -> dict[str, Any]:
        return {"A_log": self.A_log, "dt_bias": self.dt_bias.view(self.config.value_heads, -1)}

    def _norm(self, o: Tensor, gate: Tensor) -> Tensor:
        return _ops.gated_norm(o, self.o_norm.weight, gate, eps=self.config.eps)


def _begins_whole(x: Tensor) -> bool:
    """Dense, at a multiple of 16 bytes of its memory, as far as torch.compile sees it."""
    if torch.compiler.is_compiling():  # without offsets
        return x.is_contiguous()
    return x.is_contiguous() and x.storage_offset() * x.element_size() % 16 == 0


_LAYERS: dict[Backend, type[_KDALayer]] = {
    "recurrent": KDARecurrent,
    "chunkwise": KDAChunkwise,
    "fused": FusedKDAChunkwise,
}


def build_kda(config: KDAConfig) -> KDARecurrent | KDAChunkwise | FusedKDAChunkwise:
    """The layer that config.backend names."""
    if config.backend not in _LAYERS:
        raise ValueError(f"backend: {config.backend!r}; accepted: {', '.join(_LAYERS)}")
    layer: Any = _LAYERS[config.backend](config)
    return layer  # type: ignore[no-any-return]
