"""Kimi Delta Attention and its family as functions of torch tensors.

Sizes: B batch, T tokens, N sequences, H key heads, HV value heads (a multiple of H), K key
channels, V value channels. N is B, or len(cu_seqlens) - 1.

=================  ============================================================================
q, k               [B, T, H, K]
v                  [B, T, HV, V]
g                  [B, T, HV, K] (chunk_kda) or [B, T, HV] (chunk_gdn): log decay <= 0, or a raw
                   gate that A_log and dt_bias belong to
beta               [B, T, HV]: write strength, or its logit with sigmoid_beta
A_log              [HV], raw gates only; absent: 0
dt_bias            [HV, K] (chunk_kda) or [HV] (chunk_gdn), raw gates only; absent: 0
initial_state      [N, HV, K, V] (key_first) or [N, HV, V, K] (value_first); absent: 0
cu_seqlens         [N + 1], int32 or int64: where each packed sequence begins; needs B = 1
=================  ============================================================================

Floating tensors are float64, float32, bfloat16 or float16, each of its own; strides are free but
for the last one, which is 1. precision "automatic" follows q, k and v: "exact64" where q is
float64, "mixed" where all three have 16 bits, else "fp32". All results are new and dense: o like v,
the final state in the dtype of initial_state, else float32 (float64 with "exact64").

All tensors that are given differentiate, once. An inconsistent call is a RuntimeError that reads
"argument: what it was; accepted: what is", raised before anything runs; an unknown keyword is a
TypeError. With CPU tensors torch.set_num_threads() says how many threads work; CUDA tensors need a
build with CUDA, and run on torch's current stream (docs/python.md says what runs there).

The mathematics: docs/math.md; every option: include/kda/args.hpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from libkda import _register  # noqa: F401  (fake kernels and gradients)
from libkda._devices import check_devices
from libkda._options import (
    Activation,
    DeltaOptions,
    GatedOptions,
    LinearOptions,
    Options,
    RecurrentOptions,
    StateLayout,
    options_of,
)
from libkda._ran import Ran

_NAMES = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state", "cu_seqlens")


def _run(
    operators: tuple[Any, Any],
    options: Options,
    tensors: tuple[Tensor | None, ...],
    state_layout: StateLayout,
    output_final_state: bool,
    ran: Ran | None,
) -> tuple[Tensor, Tensor | None]:
    """operators: one that only computes, and one that also says what ran."""
    check_devices(**dict(zip(_NAMES, tensors, strict=True)))
    arguments = (*tensors, *options, state_layout, output_final_state)
    if ran is None:
        o, state = operators[0](*arguments)
    else:
        o, state, numbers, ran.status = operators[1](*arguments)
        ran.numbers.copy_(numbers)
    return o, state if output_final_state else None


_CHUNKS = (torch.ops.kda.forward, torch.ops.kda.forward_ran)
_TOKENS = (torch.ops.kda.recurrent, torch.ops.kda.recurrent_ran)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_layout: StateLayout = "key_first",
    cu_seqlens: Tensor | None = None,
    ran: Ran | None = None,
    **options: Unpack[GatedOptions],
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention: a decay per token, value head and key channel.

    Args:
        gate: what g holds: "log" (default) the log decay itself; "softplus" x for
            -exp(A_log) softplus(x + dt_bias); "bounded" x for
            lower_bound sigmoid(exp(A_log) (x + dt_bias)), which needs lower_bound < 0.
        norm: of q and k over K: "none" (default), "rsqrt" x rsqrt(sum x^2 + 1e-6), or "normalize"
            x / max(norm of x, 1e-6).
        sigmoid_beta: beta holds logits.
        neg_eigval: beta is twice their sigmoid.
        scale: of the output; absent: K ** -0.5.
        precision: "automatic" (default), "exact64", "fp32" or "mixed".
        bf16_state: the state is rounded to bfloat16 at every chunk boundary.
        chunk: tokens, 16, 32 (default) or 64 (on the CPU also 1, 2, 4, 8).
        key_window, reference: docs/math.md.
        ran: filled in with what ran.

    Returns:
        o [B, T, HV, V], and the final state if output_final_state, else None.

    The bits of a token's output do not hang on later tokens, batch slot, neighbours or threads,
    and decode() gives the same.
    """
    form = options_of("chunk_kda", "kda", GatedOptions, options)
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens)
    return _run(_CHUNKS, form, tensors, state_layout, output_final_state, ran)


def recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_layout: StateLayout = "key_first",
    cu_seqlens: Tensor | None = None,
    ran: Ran | None = None,
    **options: Unpack[RecurrentOptions],
) -> tuple[Tensor, Tensor | None]:
    """chunk_kda token by token on plain states, for states that others made and for comparison.

    Its bits are not those of chunk_kda; "mixed" runs as "fp32". With bf16_state the state is
    rounded at every token. Gradients are those of chunk_kda.
    """
    form = options_of("recurrent_kda", "kda", RecurrentOptions, options)
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens)
    return _run(_TOKENS, form, tensors, state_layout, output_final_state, ran)


def chunk_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_layout: StateLayout = "key_first",
    cu_seqlens: Tensor | None = None,
    ran: Ran | None = None,
    **options: Unpack[GatedOptions],
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet: a decay per token and value head, so g is [B, T, HV] and dt_bias [HV].

    Everything else is as in chunk_kda.
    """
    form = options_of("chunk_gdn", "gdn", GatedOptions, options)
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens)
    return _run(_CHUNKS, form, tensors, state_layout, output_final_state, ran)


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_layout: StateLayout = "key_first",
    cu_seqlens: Tensor | None = None,
    ran: Ran | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet: chunk_kda without decay."""
    form = options_of("chunk_delta_rule", "delta", DeltaOptions, options)
    tensors = (q, k, v, None, beta, None, None, initial_state, cu_seqlens)
    return _run(_CHUNKS, form, tensors, state_layout, output_final_state, ran)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_layout: StateLayout = "key_first",
    cu_seqlens: Tensor | None = None,
    ran: Ran | None = None,
    **options: Unpack[LinearOptions],
) -> tuple[Tensor, Tensor | None]:
    """Linear attention: no decay and no correction, S_t = S_{t-1} + k_t v_t^T."""
    form = options_of("linear_attention", "linear", LinearOptions, options)
    tensors = (q, k, v, None, None, None, None, initial_state, cu_seqlens)
    return _run(_CHUNKS, form, tensors, state_layout, output_final_state, ran)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = "silu",
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The depthwise causal convolution before q, k and v.

    y_t = activation(bias + sum_j weight[:, j] x_{t - W + 1 + j}); docs/convolution.md.

    Args:
        x: [B, T, C].
        weight: [C, W], W from 2 to 8; weight[:, W - 1] meets the token itself.
        bias: [C].
        activation: "silu" or "none".
        initial_state: [N, C, W - 1], the inputs before the first, the oldest first, in a dtype
            that holds x exactly; absent: 0.
        cu_seqlens: [N + 1], int32 or int64; needs B = 1.

    Returns:
        y like x, and the final state if output_final_state, else None. A call that goes on from
        it gives the bits of one uncut call. Everything that is given differentiates, once.
    """
    check_devices(x=x, weight=weight, bias=bias, initial_state=initial_state, cu_seqlens=cu_seqlens)
    y, state = torch.ops.kda.causal_conv1d(
        x, weight, bias, initial_state, cu_seqlens, activation, output_final_state
    )
    return y, state if output_final_state else None


def gated_norm(
    x: Tensor, weight: Tensor | None = None, gate: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """The norm behind the attention: x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate), like x.

    Args:
        x: [B, T, H, D]; the mean is over D.
        weight: [D]; absent: 1.
        gate: [B, T, H, D], logits; absent: no gate.

    docs/convolution.md. Everything that is given differentiates, once.
    """
    check_devices(x=x, weight=weight, gate=gate)
    y: Tensor = torch.ops.kda.gated_norm(x, weight, gate, eps)
    return y
