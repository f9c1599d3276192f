"""What torch has to know of the operators: shapes (fake kernels), gradients, vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from libkda import _library  # noqa: F401  (registers the operators)

# Where a schema's arguments end that forward and backward share (inputs.h).
_TENSORS = 9
_OPTIONS = 12
# How many a layer has (cuda_streaming.cc), before those tensors.
_LAYER = 13


def _size(x: Tensor, dim: int) -> Any:
    """0 for a dimension that is not there: the call itself says what is wrong with the rank."""
    return x.shape[dim] if dim < x.dim() else 0


def _sequences(batch: Tensor, cu_seqlens: Tensor | None) -> Any:
    if cu_seqlens is None:
        return _size(batch, 0)
    bounds = _size(cu_seqlens, 0)
    return bounds - 1 if bounds else 0


def _state_shape(n: Any, q: Tensor, v: Tensor, layout: str) -> list[Any]:
    heads, values, keys = _size(v, 2), _size(v, 3), _size(q, 3)
    return [n, heads, keys, values] if layout == "key_first" else [n, heads, values, keys]


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty([0], dtype=torch.float32)


def _dense(like: Tensor) -> Tensor:
    return like.new_empty(like.shape)


def _wanted(gradients: Sequence[bool]) -> int:
    return sum(1 << i for i, needed in enumerate(gradients) if needed)


def _fake_forward(*args: Any) -> tuple[Tensor, Tensor]:
    q, _, v, _, _, _, _, initial_state, cu_seqlens = args[:_TENSORS]
    layout, wants_state = args[_TENSORS + _OPTIONS :]
    precision = args[_TENSORS + 7]
    if not wants_state:
        return _dense(v), _nothing(v)
    exact = precision == "exact64" or (precision == "automatic" and q.dtype == torch.float64)
    dtype = torch.float64 if exact else torch.float32
    if initial_state is not None:
        dtype = initial_state.dtype
    shape = _state_shape(_sequences(q, cu_seqlens), q, v, layout)
    return _dense(v), v.new_empty(shape, dtype=dtype)


def _fake_forward_ran(*args: Any) -> tuple[Tensor, ...]:
    numbers = torch.empty([12], dtype=torch.int64, device="cpu")
    return (*_fake_forward(*args), numbers, args[0].new_empty([1], dtype=torch.int32))


def _fake_gradients(of: Sequence[Tensor | None], wanted: int) -> tuple[Tensor, ...]:
    anything = of[0]
    assert anything is not None
    return tuple(
        _dense(x) if x is not None and wanted >> i & 1 else _nothing(anything)
        for i, x in enumerate(of)
    )


def _fake_backward(*args: Any) -> tuple[Tensor, ...]:
    return _fake_gradients(args[: _TENSORS - 1], args[_TENSORS + 2])


def _fake_pool(state_pool: Tensor, ran: Tensor | None, status: Tensor | None, *args: Any) -> Tensor:
    return _dense(args[2])


def _fake_decode(states: Tensor, ran: Tensor | None, *args: Any) -> Tensor:
    return _dense(args[2])


def _fake_cuda_decode(states: Tensor, status: Tensor, ran: Tensor | None, *args: Any) -> Tensor:
    return _dense(args[2])


def _fake_cuda_decode_layer(
    states: Tensor, status: Tensor, ran: Tensor | None, *args: Any
) -> Tensor:
    return _dense(args[_LAYER + 2])


def _fake_cuda_plain(states: Tensor, slots: Tensor | None, layout: str, HV: Any, *_: Any) -> Tensor:
    n = _size(states if slots is None else slots, 0)
    return states.new_empty([n, HV, 128, 128], dtype=torch.float32)


def _fake_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str,
    final_state: bool,
) -> tuple[Tensor, Tensor]:
    if not final_state:
        return _dense(x), _nothing(x)
    if initial_state is not None:
        return _dense(x), _dense(initial_state)
    width = _size(weight, 1) or 1
    return _dense(x), x.new_empty([_sequences(x, cu_seqlens), _size(x, 2), width - 1])


def _fake_conv_pool(state_pool: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _dense(x)


def _fake_conv_backward(*args: Any) -> tuple[Tensor, ...]:
    return _fake_gradients(args[:4], args[7])


def _fake_norm(x: Tensor, *args: Any) -> Tensor:
    return _dense(x)


def _fake_norm_backward(*args: Any) -> tuple[Tensor, ...]:
    return _fake_gradients(args[:3], args[4])


def _differentiate(name: str, backward: Callable[..., tuple[Tensor, ...]], tensors: int) -> None:
    """Gradients of kda::`name`, whose first arguments are `tensors` tensors that differentiate and
    cu_seqlens, by the operator `backward`."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[: tensors + 1])
        ctx.rest = inputs[tensors + 1 : -1]  # all but whether the state was asked for
        ctx.has_state = inputs[-1]
        ctx.set_materialize_grads(False)

    def run(ctx: Any, d_output: Tensor | None, d_state: Tensor | None, *_: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        count = tensors + 1 + len(ctx.rest) + 1
        if d_output is None and d_state is None:
            return (None,) * count
        if d_output is None:
            like = saved[2] if name != "causal_conv1d" else saved[0]
            d_output = like.new_zeros(like.shape)
        needed = [bool(n) for n in ctx.needs_input_grad[:tensors]]
        gradients = backward(
            *saved,
            d_output,
            d_state if ctx.has_state else None,
            _wanted(needed),
            *ctx.rest,
        )
        given = [g if n else None for g, n in zip(gradients, needed, strict=True)]
        return (*given, *(None,) * (count - tensors))

    torch.library.register_autograd(f"kda::{name}", run, setup_context=setup)


def _differentiate_norm() -> None:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.eps = inputs[3]

    def run(ctx: Any, d_y: Tensor) -> tuple[Any, ...]:
        needed = [bool(n) for n in ctx.needs_input_grad[:3]]
        gradients = torch.ops.kda.gated_norm_backward(
            *ctx.saved_tensors, d_y, _wanted(needed), ctx.eps
        )
        return (*(g if n else None for g, n in zip(gradients, needed, strict=True)), None)

    torch.library.register_autograd("kda::gated_norm", run, setup_context=setup)


def _refuse(name: str, why: str) -> None:
    """An operator that has no gradient says why."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    def run(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"kda::{name}: {why}")

    torch.library.register_autograd(f"kda::{name}", run, setup_context=setup)


def _refuse_vmap(name: str) -> None:
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        raise RuntimeError(
            f"kda::{name}: vmap is not supported; accepted: the batch dimension B of the inputs, "
            "with the mapped dimension folded into it (x.flatten(0, 1), and unflatten behind)"
        )

    torch.library.register_vmap(f"kda::{name}", vmap)


_FAKES: dict[str, Callable[..., Any]] = {
    "forward": _fake_forward,
    "forward_ran": _fake_forward_ran,
    "recurrent": _fake_forward,
    "recurrent_ran": _fake_forward_ran,
    "backward": _fake_backward,
    "pool": _fake_pool,
    "decode": _fake_decode,
    "cuda_decode": _fake_cuda_decode,
    "cuda_decode_layer": _fake_cuda_decode_layer,
    "cuda_commit": lambda *args: None,
    "cuda_plain": _fake_cuda_plain,
    "causal_conv1d": _fake_conv,
    "causal_conv1d_pool": _fake_conv_pool,
    "causal_conv1d_backward": _fake_conv_backward,
    "gated_norm": _fake_norm,
    "gated_norm_backward": _fake_norm_backward,
    "states_commit": lambda *args: None,
    "states_clear": lambda *args: None,
    "states_copy": lambda *args: None,
    "states_load": lambda *args: None,
}

# What gives numbers or bytes of a slot, and has no shapes to tell.
_ON_ONE_SLOT = ("states_plain", "states_tokens", "states_draft_tokens", "states_save")

_TWICE = (
    "gradients of gradients are not supported; accepted: one backward pass (no create_graph=True)"
)


def _register() -> None:
    for name, fake in _FAKES.items():
        torch.library.register_fake(f"kda::{name}", fake)
    for name in (*_FAKES, *_ON_ONE_SLOT):
        _refuse_vmap(name)
    ops = torch.ops.kda
    for name in ("forward", "forward_ran", "recurrent", "recurrent_ran"):
        _differentiate(name, ops.backward, 8)
    _differentiate("causal_conv1d", ops.causal_conv1d_backward, 4)
    _differentiate_norm()
    _refuse("backward", _TWICE)
    _refuse("gated_norm_backward", _TWICE)
    _refuse("causal_conv1d_backward", _TWICE)


_register()
