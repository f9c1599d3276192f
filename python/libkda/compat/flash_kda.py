"""FlashKDA's fwd, fwd_cp and get_workspace_size.

    from libkda.compat import flash_kda

replaces `import flash_kda`; after install() other packages' `import flash_kda` finds it too. What
differs: any K, V and T, strided inputs and float32 ones; value heads may share key heads; a
bfloat16 state is read and written as such, and kept in float32 on the way.
"""

from __future__ import annotations

import sys

from torch import Tensor

from libkda import _ops
from libkda.compat import refuse


def get_workspace_size(T_total: int, H: int, N: int) -> int:
    """Bytes of workspace that fwd needs from its caller: none, for any sizes."""
    return 0


def _check_output(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        refuse(name, f"shape {list(tensor.shape)}", f"{list(shape)}")
    if not tensor.is_floating_point():
        refuse(name, tensor.dtype, "float64, float32, bfloat16, float16")
    if tensor.requires_grad:
        refuse(name, "requires_grad", "a buffer without; libkda.chunk_kda has gradients")


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    out: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """Writes the outputs, and the final state where a tensor for it is given.

    Args:
        q, k: [B, T, H, K], normalised inside. v: [B, T, H, V].
        g: [B, T, H, K], the gate before lower_bound sigmoid(exp(A_log) (g + dt_bias)).
        beta: [B, T, H], logits. A_log: [H]. dt_bias: [H, K]. lower_bound: below 0.
        out: [B, T, H, V], written.
        initial_state, final_state: [N, H, V, K], float32 or bfloat16; may be one tensor.
        cu_seqlens: [N + 1]; needs B = 1.

    There are no gradients through `out`. Errors are RuntimeErrors; then nothing was written.
    """
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    _check_output("out", out, tuple(v.shape))
    if final_state is not None:
        shape = (sequences, v.shape[2], v.shape[3], q.shape[3])
        _check_output("final_state", final_state, shape)
    o, state = _ops.chunk_kda(
        q.detach(),
        k.detach(),
        v.detach(),
        g.detach(),
        beta.detach(),
        A_log=A_log.detach(),
        dt_bias=dt_bias.detach(),
        gate="bounded",
        lower_bound=lower_bound,
        norm="rsqrt",
        sigmoid_beta=True,
        scale=scale,
        initial_state=None if initial_state is None else initial_state.detach().float(),
        output_final_state=final_state is not None,
        state_layout="value_first",
        cu_seqlens=cu_seqlens,
    )
    out.copy_(o)
    if final_state is not None and state is not None:
        final_state.copy_(state)


def fwd_cp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    out: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    auto_cp: bool = True,
) -> None:
    """fwd, with its bits. FlashKDA's spreads a long sequence over one GPU, where decays make a
    cut's error small; here nothing is cut, and auto_cp changes nothing."""
    fwd(
        q,
        k,
        v,
        g,
        beta,
        scale,
        out,
        A_log,
        dt_bias,
        lower_bound,
        initial_state,
        final_state,
        cu_seqlens,
    )


def install() -> None:
    """Makes this module what `import flash_kda` finds from now on, in this process."""
    sys.modules["flash_kda"] = sys.modules[__name__]
