"""attn-gym's chunk_kda, paged_chunk_kda, recurrent_kda, recurrent_kda_decode and bound_gate.

    from libkda.compat.attn_gym import chunk_kda

replaces `from attn_gym.linear.kda import ...`. Shapes: q, k, gate [B, T, H, K]; v [B, T, H, V];
beta [B, T, H]; states and pools [N, H, V, K]; gates are natural logs. What differs: any K, V and T;
value heads may share key heads; rows past cu_seqlens[-1] are zero; both impl run libkda's kernels,
"reference" in float32 whatever the inputs; fastmath and autotune change nothing. Replay states may
have any floating dtypes; libkda.StreamingState does the same for a fraction of their time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from libkda import _ops
from libkda._options import Options, Precision
from libkda._streaming import update_pool
from libkda.compat import _replay, refuse
from libkda.compat._replay import ReplayState as ReplayState


def _precision(impl: Any) -> Precision:
    name = getattr(impl, "value", impl)  # an enum of theirs or its value
    if name not in ("fused", "reference"):
        refuse("impl", repr(name), "'fused', 'reference'")
    return "automatic" if name == "fused" else "fp32"


def _check_kernel_options(kernel_options: Any) -> None:
    for name, value in (kernel_options or {}).items():
        if (name, value) not in (("backend", "fused"), ("schedule", "auto")):
            refuse("kernel_options", f"{name}={value!r}", "None, backend='fused', schedule='auto'")


def _slots(state_indices: Tensor) -> Tensor:
    """Their slot 0 is padding too; libkda's padding is below 0."""
    return torch.where(state_indices > 0, state_indices, -1)


def _advance(
    pool: Tensor,
    state_indices: Tensor,
    has_initial_state: Tensor | None,
    tensors: tuple[Tensor, ...],
    options: Options,
    recurrent: bool,
    **more: Any,
) -> Tensor:
    """update_pool on their pool. A bfloat16 one is storage only: the call works on float32."""
    slots = _slots(state_indices)
    more |= {
        "options": options,
        "has_initial_state": has_initial_state,
        "state_layout": "value_first",
        "recurrent": recurrent,
    }
    if pool.dtype != torch.bfloat16:
        return update_pool(pool, *tensors, slots=slots, **more)
    if slots.numel() and int(slots.max()) >= pool.shape[0]:
        refuse("state_indices", int(slots.max()), f"below {pool.shape[0]}")
    active = slots >= 0
    rows = pool[slots.clamp_min(0)].float()
    own = torch.where(active, torch.arange(len(slots), device=slots.device), -1)
    o = update_pool(rows, *tensors, slots=own, **more)
    pool[slots[active]] = rows[active].to(pool.dtype)
    return o


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    fastmath: bool = True,
    autotune: bool = True,
    impl: Any = "fused",
    kernel_options: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """attn-gym's chunk_kda on libkda.chunk_kda: o in the dtype of q, and the final state."""
    _check_kernel_options(kernel_options)
    o, state = _ops.chunk_kda(
        q,
        k,
        v,
        gate,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_layout="value_first",
        cu_seqlens=cu_seqlens,
        precision=_precision(impl),
    )
    return o.to(q.dtype), state


def paged_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    state_cache: Tensor,
    state_indices: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    autotune: bool = True,
    kernel_options: Any = None,
    replay_state: Any = None,
) -> Tensor:
    """attn-gym's paged_chunk_kda on libkda.update_pool: o in the dtype of q.

    With a replay_state the state of a slot is that at its last multiple of 64 tokens and the tokens
    since, and outputs have the bits of one uncut call.
    """
    _check_kernel_options(kernel_options)
    if replay_state is not None:
        tokens = (q, k, v, gate, beta)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tokens):
            refuse("requires_grad", True, "False, or a call under torch.no_grad()")
        o = _replay.advance(
            tokens, state_cache, state_indices, has_initial_state, cu_seqlens, replay_state
        )
        return o.to(q.dtype)
    o = _advance(
        state_cache,
        state_indices,
        has_initial_state,
        (q, k, v, gate, beta),
        Options(),
        recurrent=False,
        cu_seqlens=cu_seqlens,
    )
    return o.to(q.dtype)


def recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    state_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    autotune: bool = True,
    impl: Any = "fused",
) -> tuple[Tensor, Tensor | None]:
    """attn-gym's recurrent_kda on libkda.recurrent_kda, or in the slots of a pool."""
    precision = _precision(impl)
    if state_indices is None:
        if has_initial_state is not None:
            refuse("has_initial_state", "given without state_indices", "both, or neither")
        o, state = _ops.recurrent_kda(
            q,
            k,
            v,
            gate,
            beta,
            scale=scale,
            initial_state=initial_state,
            output_final_state=output_final_state,
            state_layout="value_first",
            cu_seqlens=cu_seqlens,
            precision=precision,
        )
        return o.to(q.dtype), state
    if initial_state is None:
        refuse("initial_state", "absent", "a pool [slots, H, V, K] with state_indices")
    if output_final_state:
        refuse("output_final_state", True, "False with state_indices: the pool has the states")
    o = _advance(
        initial_state,
        state_indices,
        has_initial_state,
        (q, k, v, gate, beta),
        Options(scale=scale, precision=precision),
        recurrent=True,
        cu_seqlens=cu_seqlens,
    )
    return o.to(q.dtype), None


def recurrent_kda_decode(
    packed_qkv: Tensor,
    raw_gate: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state_cache: Tensor,
    state_indices: Tensor,
    *,
    has_initial_state: Tensor | None = None,
    gate_transform: str = "bounded",
    lower_bound: float = -5.0,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token of each sequence, in the slots of a pool: [1, B, H, V] in packed_qkv's dtype.

    packed_qkv [B, H (2 K + V)] holds all heads' q, then k, then v; raw_gate [1, B, H, K]; raw_beta
    [1, B, H]; A_log [H]; dt_bias [H, K].
    """
    if gate_transform not in ("bounded", "softplus"):
        refuse("gate_transform", repr(gate_transform), "'bounded', 'softplus'")
    batch, (_, heads, values, keys) = packed_qkv.shape[0], state_cache.shape
    channels = heads * (2 * keys + values)
    if packed_qkv.dim() != 2 or packed_qkv.shape[1] != channels:
        refuse("packed_qkv", f"shape {list(packed_qkv.shape)}", f"[B, {channels}]")
    for name, x, shape in (
        ("raw_gate", raw_gate, (1, batch, heads, keys)),
        ("raw_beta", raw_beta, (1, batch, heads)),
    ):
        if tuple(x.shape) != shape:
            refuse(name, f"shape {list(x.shape)}", f"{list(shape)}")
    shape = (1, batch, heads, values)
    if out is not None and (tuple(out.shape) != shape or out.dtype != packed_qkv.dtype):
        refuse("out", f"{list(out.shape)} {out.dtype}", f"{list(shape)} {packed_qkv.dtype}")
    q, k, v = packed_qkv.split([heads * keys, heads * keys, heads * values], 1)
    tensors = (
        q.unflatten(1, (1, heads, keys)),
        k.unflatten(1, (1, heads, keys)),
        v.unflatten(1, (1, heads, values)),
        raw_gate[0][:, None],
        raw_beta[0][:, None],
    )
    options = Options(
        gate="bounded" if gate_transform == "bounded" else "softplus",
        norm="rsqrt",
        sigmoid_beta=True,
        lower_bound=lower_bound if gate_transform == "bounded" else None,
        scale=scale,
    )
    o = _advance(
        state_cache,
        state_indices,
        has_initial_state,
        tensors,
        options,
        recurrent=True,
        A_log=A_log,
        dt_bias=dt_bias,
    )
    o = o.transpose(0, 1)
    return o if out is None else out.copy_(o)


def bound_gate(
    raw_gate: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    lower_bound: float = -5.0,
    fastmath: bool = True,
    impl: Any = "fused",
) -> Tensor:
    """lower_bound sigmoid(exp(A_log) (raw_gate + dt_bias)), float32, by torch.

    raw_gate [B, T, H, K]; A_log [H]; dt_bias [H, K]. libkda.chunk_kda(gate="bounded") fuses it.
    """
    _precision(impl)
    return lower_bound * torch.sigmoid(A_log.float().exp()[:, None] * (raw_gate.float() + dt_bias))
