"""Streaming states: decode, rollback and resume with the bits of one uncut call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from libkda._devices import check_devices
from libkda._options import Activation, Options, StateLayout, StateOptions, options_of
from libkda._ran import Ran, told_by
from libkda._states import CpuStates, CudaStates


class StreamingState:
    """A set of streaming states, one a slot; decode() appends tokens to them.

    What decides the bits (op, gate, lower_bound, precision, bf16_state, chunk, key_window,
    reference) is fixed here. precision must be named: "mixed", "fp32" or "exact64". max_draft is
    the most tokens that a draft may hold. All slots start empty. Tensors named `slots` are [N],
    int32 or int64: the slot of each sequence, each used once; below 0 padding.

    Calls on different slots may run at the same time; calls on one slot may not.

    On a CUDA device: op "kda", precision "mixed", gate "bounded" with a bound that fits, chunk 32,
    key_dim = value_dim = 128. There tokens() and draft_tokens() wait for the device. Slots, counts
    and cu_seqlens that lie on the device are not read back: wrong ones are cut to what is there,
    and check() says so later.
    """

    def __init__(
        self,
        slots: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        *,
        max_draft: int = 0,
        device: torch.device | str = "cpu",
        **options: Unpack[StateOptions],
    ) -> None:
        self.slots = slots
        self.options = options_of("StreamingState", "kda", StateOptions, options)
        self.device = torch.device(device)
        sizes = (slots, heads, key_dim, value_dim, max_draft)
        self._states: CpuStates | CudaStates
        if self.device.type == "cuda":
            self._states = CudaStates(*sizes, self.options, self.device)
            self.device = self._states.memory.device  # with its index
        else:
            self._states = CpuStates(*sizes, self.options)

    def tokens(self, slot: int = 0) -> int:
        """The tokens that a slot has seen; drafts not counted."""
        return self._states.tokens(slot)

    def draft_tokens(self, slot: int = 0) -> int:
        """The draft tokens of a slot that wait for commit()."""
        return self._states.draft_tokens(slot)

    def commit(self, counts: Tensor, slots: Tensor | None = None) -> None:
        """After decode(..., draft=True): keeps the first counts[n] draft tokens of sequence n.

        counts: [N] int32 or int64. The bits are those of a call that never saw the others.
        """
        check_devices(self.device, counts=counts, slots=slots)
        self._states.commit(counts, slots)

    def clear(self, slot: int) -> None:
        """Forgets a slot's sequence."""
        self._states.clear(slot)

    def copy(self, source: int, target: int) -> None:
        """Snapshot and restore, at any token."""
        self._states.copy(source, target)

    def save(self, slot: int = 0) -> Tensor:
        """A slot as bytes [n] uint8, for states of the same options and version of libkda."""
        return self._states.save(slot)

    def load(self, slot: int, saved: Tensor) -> None:
        """What save() gave, into a slot."""
        self._states.load(slot, saved)

    def plain(self, slots: Tensor | None = None, state_layout: StateLayout = "key_first") -> Tensor:
        """Plain states [N, HV, K, V] (value_first: [N, HV, V, K]), the open chunk folded in.

        float64 with "exact64", else float32. Going on from one starts a new chunk grid: right, but
        with the bits of an uncut call only at chunk boundaries.
        """
        check_devices(self.device, slots=slots)
        return self._states.plain(slots, state_layout)

    def check(self) -> None:
        """Waits for a GPU, and raises where a call since the last check was given wrong indices."""
        self._states.check()


def _without_gradients(*tensors: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(
            "requires_grad: True; accepted: False, or a call under torch.no_grad() (what works on "
            "states in place has no gradients; chunk_kda has)"
        )


@dataclass(frozen=True)
class CudaConvolution:
    """One convolution of a CudaLayer.

    weight: [C, W], W from 2 to 4, C the channels of all heads. state: [slots, C, W - 1], float32 or
    bfloat16, moved on in place: as many slots as the StreamingState has, and a sequence has the
    same in both. bias: [C].
    """

    weight: Tensor
    state: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class CudaLayer:
    """What a layer has around the recurrence, for decode(..., layer=) on CUDA streaming states.

    q, k, v: their convolutions. norm_weight: [V]; absent: 1. gate: [B, T, HV, V], logits; absent:
    no gate. activation: "silu" or "none", of the convolutions. eps: of the norm. Weights, biases
    and states are dense and begin at multiples of 16 bytes; a slot of a state may be further from
    the next. Floating tensors are float32, bfloat16 or float16.
    """

    q: CudaConvolution
    k: CudaConvolution
    v: CudaConvolution
    norm_weight: Tensor | None = None
    gate: Tensor | None = None
    activation: Activation = "silu"
    eps: float = 1e-5

    def _tensors(self) -> dict[str, Tensor | None]:
        """All of them by their names in errors, in the order of the operator."""
        parts = {"layer.q": self.q, "layer.k": self.k, "layer.v": self.v}
        named: dict[str, Tensor | None] = {f"{n}.state": part.state for n, part in parts.items()}
        named |= {f"{n}.weight": part.weight for n, part in parts.items()}
        named |= {f"{n}.bias": part.bias for n, part in parts.items()}
        return named | {"layer.norm_weight": self.norm_weight, "layer.gate": self.gate}


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
    layer: CudaLayer | None = None,
    ran: Ran | None = None,
) -> Tensor:
    """Appends tokens, one or many, to streaming states: o [B, T, HV, V], like v.

    Args:
        q, k, v, g, beta, A_log, dt_bias, cu_seqlens: as chunk_kda has them, for the state's op.
        slots: [N], the slot of each sequence; absent: sequence n has slot n.
        has_initial_state: [N] bool or uint8; False starts from zero, whatever the slot holds.
        draft: the states stay where they are, and remember these tokens for commit().
        checkpoints: (sequence, offset, slot): copies of the state after `offset` tokens of this
            call, into slots that no sequence uses.
        layer: the whole layer between its projections, in one launch: see below.
        ran: filled in with what ran.

    However a sequence is cut into calls, its outputs have the bits of one call of chunk_kda with
    the same options and inputs. Errors are RuntimeErrors, and leave the states untouched.

    With layer q, k and v are what comes from the projections, and o is what goes into the last one:
    the bits of update_conv_pool on each of q, k and v, decode, and gated_norm, called in turn, in
    bfloat16. It takes states of a CUDA device, one token a sequence, H = HV, and a bounded gate
    with lower_bound from -5 on in one window of 32. cu_seqlens stays on the CPU then, or is absent.
    Prompts and drafts go by the separate calls, on the same states::

        layer = CudaLayer(
            q=CudaConvolution(weight_q, pool_q),  # pools [slots, C, W - 1], as update_conv_pool has
            k=CudaConvolution(weight_k, pool_k),
            v=CudaConvolution(weight_v, pool_v),
            norm_weight=weight,
            gate=z,
        )
        o = decode(state, q, k, v, g, beta, slots=slots, layer=layer)
    """
    around = {} if layer is None else layer._tensors()
    check_devices(
        state.device,
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        A_log=A_log,
        dt_bias=dt_bias,
        cu_seqlens=cu_seqlens,
        slots=slots,
        has_initial_state=has_initial_state,
        **around,
    )
    _without_gradients(q, k, v, g, beta, A_log, dt_bias, *around.values())
    flat = [int(number) for checkpoint in checkpoints for number in checkpoint]
    tensors = (q, k, v, g, beta, A_log, dt_bias, None, cu_seqlens)
    return state._states.decode(
        None if ran is None else ran.numbers,
        tensors,
        slots,
        has_initial_state,
        draft,
        flat,
        None if layer is None else (*around.values(), layer.activation, layer.eps),
    )


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
    ran: Ran | None = None,
) -> Tensor:
    """Appends tokens to plain states in the slots of a pool, in place: o [B, T, HV, V], like v.

    Args:
        state_pool: [slots, HV, K, V] (value_first: [slots, HV, V, K]).
        options: libkda.Options of the call; the tensors are as chunk_kda has them.
        slots, has_initial_state: as in decode().
        recurrent: token by token, as recurrent_kda.
        ran: filled in with what ran.

    A plain state starts a new chunk grid at each call; StreamingState keeps the bits of one call.
    On a GPU slots and cu_seqlens that lie there are not read back: a slot that the pool does not
    have is taken as padding, sequences are cut to the tokens that are given, and ran.check() tells.
    """
    check_devices(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        A_log=A_log,
        dt_bias=dt_bias,
        state_pool=state_pool,
        cu_seqlens=cu_seqlens,
        slots=slots,
        has_initial_state=has_initial_state,
    )
    _without_gradients(state_pool, q, k, v, g, beta, A_log, dt_bias)
    o: Tensor = torch.ops.kda.pool(
        state_pool,
        *told_by(ran, q.device),
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
    check_devices(
        x=x,
        weight=weight,
        bias=bias,
        state_pool=state_pool,
        cu_seqlens=cu_seqlens,
        slots=slots,
        has_initial_state=has_initial_state,
    )
    _without_gradients(state_pool, x, weight, bias)
    y: Tensor = torch.ops.kda.causal_conv1d_pool(
        state_pool, x, weight, bias, None, cu_seqlens, slots, has_initial_state, activation
    )
    return y
