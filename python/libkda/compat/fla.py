"""chunk_kda, fused_recurrent_kda and their naive forms as flash-linear-attention 0.6 has them.

    from libkda.compat.fla import chunk_kda, fused_recurrent_kda

replaces `from fla.ops.kda import ...`, and for naive_chunk_kda, naive_recurrent_kda
`fla.ops.kda.naive`, for the gates `fla.ops.kda.gate`. Shapes: q, k [B, T, H, K]; v [B, T, HV, V];
g [B, T, HV, K]; beta [B, T, HV]; A_log HV numbers and dt_bias HV * K numbers in any shape; states
[N, HV, K, V] (with state_v_first [N, HV, V, K]), float32. What differs: everything is causal to the
bit (docs/math.md); chunks have 32 tokens unless chunk_size says 64; fused_recurrent_kda has
gradients; hints about speed and memory (safe_gate, disable_recompute, cu_seqlens_cpu) change
nothing; naive_chunk_kda takes any T.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from libkda import _ops
from libkda.compat import refuse


def _gate(
    q: Tensor,
    v: Tensor,
    use_gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
) -> dict[str, Any]:
    """The gate form that these arguments mean."""
    if not use_gate_in_kernel:
        return {}  # g is the log decay; the others belong to a raw gate
    if A_log is None and lower_bound is None:
        refuse("A_log", "absent", "[HV] with use_gate_in_kernel, or a lower_bound")
    heads, keys = v.shape[2], q.shape[3]
    if A_log is not None and A_log.numel() != heads:
        refuse("A_log", f"{A_log.numel()} numbers", f"{heads}, one a value head")
    if dt_bias is not None and dt_bias.numel() != heads * keys:
        refuse("dt_bias", f"{dt_bias.numel()} numbers", f"{heads * keys}, one a head and channel")
    return {
        "gate": "softplus" if lower_bound is None else "bounded",
        "lower_bound": lower_bound,
        "A_log": None if A_log is None else A_log.reshape(heads),
        "dt_bias": None if dt_bias is None else dt_bias.reshape(heads, keys),
    }


def _layout(state_v_first: bool, transpose_state_layout: bool | None) -> Any:
    if transpose_state_layout is not None:
        if state_v_first:
            refuse("transpose_state_layout", "given beside state_v_first", "one of them")
        warnings.warn(
            "transpose_state_layout is the old name of state_v_first",
            DeprecationWarning,
            stacklevel=3,
        )
        state_v_first = transpose_state_layout
    return "value_first" if state_v_first else "key_first"


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: object = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 32,
    transpose_state_layout: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """FLA's chunk_kda on libkda.chunk_kda: (o, final state or None)."""
    if return_intermediate_states:
        refuse("return_intermediate_states", True, "False; libkda.decode writes checkpoints")
    if cp_context is not None:
        refuse("cp_context", "given", "None: one device has the whole sequence")
    if use_graph or max_num_seqs is not None:
        refuse("use_graph", f"{use_graph} with max_num_seqs {max_num_seqs}", "False, None")
    if safe_gate and use_gate_in_kernel and lower_bound is None:
        refuse("lower_bound", None, "a number below 0 with safe_gate and use_gate_in_kernel")
    if chunk_size not in (32, 64):
        refuse("chunk_size", chunk_size, "32, 64")
    return _ops.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        norm="rsqrt" if use_qk_l2norm_in_kernel else "none",
        sigmoid_beta=use_beta_sigmoid_in_kernel,
        neg_eigval=allow_neg_eigval,
        scale=scale,
        initial_state=initial_state,
        output_final_state=bool(output_final_state),  # None in FLA's own layers
        state_layout=_layout(state_v_first, transpose_state_layout),
        cu_seqlens=cu_seqlens,
        chunk=chunk_size,
        **_gate(q, v, use_gate_in_kernel, A_log, dt_bias, lower_bound),
    )


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    transpose_state_layout: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """FLA's fused_recurrent_kda on libkda.recurrent_kda: (o, final state or None)."""
    return _ops.recurrent_kda(
        q,
        k,
        v,
        g,
        beta,
        norm="rsqrt" if use_qk_l2norm_in_kernel else "none",
        sigmoid_beta=use_beta_sigmoid_in_kernel,
        neg_eigval=allow_neg_eigval,
        scale=scale,
        initial_state=initial_state,
        output_final_state=bool(output_final_state),  # None in FLA's own layers
        state_layout=_layout(state_v_first, transpose_state_layout),
        cu_seqlens=cu_seqlens,
        **_gate(q, v, use_gate_in_kernel, A_log, dt_bias, lower_bound),
    )


def naive_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """FLA's float32 reference on libkda.recurrent_kda: (o like v, final state [B, HV, K, V])."""
    return _ops.recurrent_kda(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=output_final_state,
        precision="fp32",
    )


def naive_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """The same in chunks, on libkda.chunk_kda."""
    return _ops.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=output_final_state,
        precision="fp32",
        chunk=chunk_size,
    )


def fused_kda_gate(
    g: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Log decays of raw gates [..., HV, K], by torch: softplus ones, or bounded by lower_bound.

    libkda.chunk_kda(gate="softplus") and (gate="bounded") fuse it.
    """
    x = g.float() if dt_bias is None else g.float() + dt_bias.view(g.shape[-2:])
    A = None if A_log is None else A_log.view(-1, 1).float().exp()
    if lower_bound is not None:
        return (lower_bound * torch.sigmoid(x if A is None else A * x)).to(output_dtype)
    if A is None:
        refuse("A_log", "absent", "[HV], or a lower_bound")
    return (-A * F.softplus(x)).to(output_dtype)


def naive_kda_gate(
    g: Tensor,
    A_log: Tensor,
    dt_bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """fused_kda_gate without a bound."""
    return fused_kda_gate(g, A_log, dt_bias, None, output_dtype)


def naive_kda_lowerbound_gate(
    g: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float = -5.0,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """fused_kda_gate with a bound."""
    return fused_kda_gate(g, A_log, dt_bias, lower_bound, output_dtype)


def patch() -> None:
    """Puts libkda into FLA's own KDA layer, for layers and models that are made from now on.

    fla.layers.kda gets these functions, the short convolution and the gated norm, and
    fla.modules.mlp a swiglu that takes CPU tensors, so that KimiDeltaAttention and models of it run
    on a CPU (models with fuse_norm=False, fuse_swiglu=False, fuse_cross_entropy=False). A
    convolution's cache keeps FLA's shape [N, D, W]; its first column, which nothing reads, is zero.
    """
    theirs: Any = importlib.import_module("fla.layers.kda")
    if getattr(theirs.chunk_kda, "__module__", "") == __name__:
        return

    class ShortConvolution(theirs.ShortConvolution):  # type: ignore[misc]
        def forward(
            self,
            x: Tensor,
            residual: Tensor | None = None,
            mask: Tensor | None = None,
            cache: Tensor | None = None,
            output_final_state: bool = False,
            cu_seqlens: Tensor | None = None,
        ) -> tuple[Tensor, Tensor | None]:
            if residual is not None or mask is not None:
                refuse("residual, mask", "given", "None")
            y, state = _ops.causal_conv1d(
                x,
                self.weight.squeeze(1),
                self.bias,
                activation="silu" if self.activation else "none",
                initial_state=None if cache is None else cache[..., 1:],
                output_final_state=bool(output_final_state),
                cu_seqlens=cu_seqlens,
            )
            return y, None if state is None else F.pad(state, (1, 0))

    class FusedRMSNormGated(theirs.FusedRMSNormGated):  # type: ignore[misc]
        def forward(self, x: Tensor, g: Tensor) -> Tensor:
            if self.activation != "sigmoid":
                refuse("activation", repr(self.activation), "'sigmoid'")
            return _ops.gated_norm(x, self.weight, g, eps=self.eps)

    mlp: Any = importlib.import_module("fla.modules.mlp")
    fused_swiglu = mlp.swiglu

    def swiglu(x: Tensor, y: Tensor) -> Any:
        return F.silu(x) * y if x.device.type == "cpu" else fused_swiglu(x, y)

    mlp.swiglu = swiglu
    theirs.ShortConvolution = ShortConvolution
    theirs.FusedRMSNormGated = FusedRMSNormGated
    theirs.chunk_kda = chunk_kda
    theirs.fused_recurrent_kda = fused_recurrent_kda
