"""Streaming states: decode, rollback and resume with the bits of one uncut call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from libkda._ops import refuse_other_devices
from libkda._options import (
    Gate,
    Norm,
    Op,
    Options,
    Precision,
    Reference,
    StateLayout,
)

_states = torch.ops.kda


class StreamingState:
    """A set of streaming states, one a slot; decode() appends tokens to them.

    What decides the bits (op, gate, lower_bound, precision, bf16_state, chunk, key_window,
    reference) is fixed here. precision must be named: "mixed", "fp32" or "exact64". max_draft is
    the most tokens that a draft may hold. All slots start empty. Tensors named `slots` are [N],
    int32 or int64: the slot of each sequence, each used once; below 0 padding.

    Calls on different slots may run at the same time; calls on one slot may not.
    """

    def __init__(
        self,
        slots: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        *,
        precision: Precision,
        max_draft: int = 0,
        op: Op = "kda",
        gate: Gate = "log",
        lower_bound: float | None = None,
        norm: Norm = "none",
        sigmoid_beta: bool = False,
        neg_eigval: bool = False,
        scale: float | None = None,
        bf16_state: bool = False,
        chunk: int = 32,
        key_window: int | None = None,
        reference: Reference = "shifted",
    ) -> None:
        self.slots = slots
        self.options = Options(
            op,
            gate,
            norm,
            sigmoid_beta,
            neg_eigval,
            lower_bound,
            scale,
            precision,
            bf16_state,
            chunk,
            key_window,
            reference,
        )
        name: int = _states.states_new(heads, key_dim, value_dim, slots, max_draft, *self.options)
        self._free = weakref.finalize(self, _states.states_free, name)
        # The operators' name of these states; a tensor, so that they can say that they change it.
        self.handle = torch.tensor([name], dtype=torch.int64, device="cpu")

    def tokens(self, slot: int = 0) -> int:
        """The tokens that a slot has seen; drafts not counted."""
        return int(_states.states_tokens(self.handle, slot))

    def draft_tokens(self, slot: int = 0) -> int:
        """The draft tokens of a slot that wait for commit()."""
        return int(_states.states_draft_tokens(self.handle, slot))

    def commit(self, counts: Tensor, slots: Tensor | None = None) -> None:
        """After decode(..., draft=True): keeps the first counts[n] draft tokens of sequence n.

        counts: [N] int32 or int64. The bits are those of a call that never saw the others.
        """
        _states.states_commit(self.handle, slots, counts)

    def clear(self, slot: int) -> None:
        """Forgets a slot's sequence."""
        _states.states_clear(self.handle, slot)

    def copy(self, source: int, target: int) -> None:
        """Snapshot and restore, at any token."""
        _states.states_copy(self.handle, source, target)

    def save(self, slot: int = 0) -> Tensor:
        """A slot as bytes [n] uint8, for states of the same options and version of libkda."""
        saved: Tensor = _states.states_save(self.handle, slot)
        return saved

    def load(self, slot: int, saved: Tensor) -> None:
        """What save() gave, into a slot."""
        _states.states_load(self.handle, slot, saved)

    def plain(self, slots: Tensor | None = None, state_layout: StateLayout = "key_first") -> Tensor:
        """Plain states [N, HV, K, V] (value_first: [N, HV, V, K]), the open chunk folded in.

        float64 with "exact64", else float32. Going on from one starts a new chunk grid: right, but
        with the bits of an uncut call only at chunk boundaries.
        """
        plain: Tensor = _states.states_plain(self.handle, slots, state_layout)
        return plain


def _without_gradients(*tensors: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(
            "requires_grad: True; accepted: False, or a call under torch.no_grad() (what works on "
            "states in place has no gradients; chunk_kda has)"
        )


def decode(
    state: StreamingState,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    slots: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    draft: bool = False,
    checkpoints: Sequence[tuple[int, int, int]] = (),
) -> Tensor:
    """Appends tokens, one or many, to streaming states: o [B, T, HV, V], like v.

    Args:
        q, k, v, g, beta, A_log, dt_bias, cu_seqlens: as chunk_kda has them, for the state's op.
        slots: [N], the slot of each sequence; absent: sequence n has slot n.
        has_initial_state: [N] bool or uint8; False starts from zero, whatever the slot holds.
        draft: the states stay where they are, and remember these tokens for commit().
        checkpoints: (sequence, offset, slot): copies of the state after `offset` tokens of this
            call, into slots that no sequence uses.

    However a sequence is cut into calls, its outputs have the bits of one call of chunk_kda with
    the same options and inputs. Errors are RuntimeErrors, and leave the states untouched.
    """
    refuse_other_devices(q=q, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias)
    refuse_other_devices(
        q=q, cu_seqlens=cu_seqlens, slots=slots, has_initial_state=has_initial_state
    )
    _without_gradients(q, k, v, g, beta, A_log, dt_bias)
    flat = [int(number) for checkpoint in checkpoints for number in checkpoint]
    o: Tensor = _states.decode(
        state.handle,
        q,
        k,
        v,
        g,
        beta,
        A_log,
        dt_bias,
        None,
        cu_seqlens,
        slots,
        has_initial_state,
        draft,
        flat,
    )
    return o


def update_pool(
    state_pool: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    options: Options | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    slots: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    state_layout: StateLayout = "key_first",
    recurrent: bool = False,
) -> Tensor:
    """Appends tokens to plain states in the slots of a pool, in place: o [B, T, HV, V], like v.

    Args:
        state_pool: [slots, HV, K, V] (value_first: [slots, HV, V, K]).
        options: libkda.Options of the call; the tensors are as chunk_kda has them.
        slots, has_initial_state: as in decode().
        recurrent: token by token, as recurrent_kda.

    A plain state starts a new chunk grid at each call; StreamingState keeps the bits of one call.
    """
    refuse_other_devices(state_pool=state_pool, q=q, k=k, v=v, g=g, beta=beta)
    refuse_other_devices(q=q, A_log=A_log, dt_bias=dt_bias, cu_seqlens=cu_seqlens)
    refuse_other_devices(q=q, slots=slots, has_initial_state=has_initial_state)
    _without_gradients(state_pool, q, k, v, g, beta, A_log, dt_bias)
    o: Tensor = _states.pool(
        state_pool,
        q,
        k,
        v,
        g,
        beta,
        A_log,
        dt_bias,
        None,
        cu_seqlens,
        slots,
        has_initial_state,
        *(options or Options()),
        state_layout,
        recurrent,
    )
    return o


def update_conv_pool(
    state_pool: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "silu",
    cu_seqlens: Tensor | None = None,
    slots: Tensor | None = None,
    has_initial_state: Tensor | None = None,
) -> Tensor:
    """causal_conv1d on states in the slots of a pool [slots, C, W - 1], in place: y like x."""
    refuse_other_devices(state_pool=state_pool, x=x, weight=weight, bias=bias)
    refuse_other_devices(x=x, cu_seqlens=cu_seqlens, slots=slots)
    refuse_other_devices(x=x, has_initial_state=has_initial_state)
    _without_gradients(state_pool, x, weight, bias)
    y: Tensor = _states.causal_conv1d_pool(
        state_pool, x, weight, bias, None, cu_seqlens, slots, has_initial_state, activation
    )
    return y
