"""The operators as citizens of torch: opcheck, compile, autocast, vmap, second derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import libkda
from forms import BOUNDED, FORMS, call
from libkda import Options
from naive import Case

SMALL = FORMS["bounded"].but(B=1, T=9, H=1, HV=2, K=8, V=6, dtype=torch.float32)


def inputs(case: Case, grad: bool = False) -> list[Tensor | None]:
    tensors = case.make()
    if grad:
        tensors = {name: x.requires_grad_() for name, x in tensors.items()}
    names = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state", "cu_seqlens")
    return [tensors.get(name) for name in names]


OPTIONS = Options(**BOUNDED)


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    ops = torch.ops.kda
    x, weight, bias = torch.randn(2, 7, 5), torch.randn(5, 4), torch.randn(5)
    d_o, d_state = torch.randn(1, 9, 2, 6), torch.randn(1, 2, 8, 6)
    grown = [x.clone().requires_grad_() for x in (x, weight, bias)]
    return {
        "forward": (ops.forward, (*inputs(SMALL, True), *OPTIONS, "key_first", True)),
        "no_state": (ops.forward, (*inputs(SMALL), *OPTIONS, "key_first", False)),
        "forward_ran": (ops.forward_ran, (*inputs(SMALL, True), *OPTIONS, "key_first", True)),
        "recurrent_ran": (ops.recurrent_ran, (*inputs(SMALL, True), *OPTIONS, "key_first", False)),
        "recurrent": (ops.recurrent, (*inputs(SMALL, True), *OPTIONS, "key_first", True)),
        "backward": (
            ops.backward,
            (*inputs(SMALL), d_o, d_state, 0b10101101, *OPTIONS, "key_first"),
        ),
        "pool": (
            ops.pool,
            (
                torch.randn(3, 2, 8, 6),
                libkda.Ran().numbers,
                torch.zeros(1, dtype=torch.int32),
                *inputs(SMALL.but(has_state=False)),
                torch.tensor([2]),
                None,
                *OPTIONS,
                "key_first",
                False,
            ),
        ),
        "conv": (ops.causal_conv1d, (*grown, None, None, "silu", True)),
        "conv_backward": (
            ops.causal_conv1d_backward,
            (x, weight, bias, None, None, torch.randn_like(x), None, 7, "silu"),
        ),
        "conv_pool": (
            ops.causal_conv1d_pool,
            (torch.randn(2, 5, 3), x, weight, bias, None, None, None, None, "none"),
        ),
    }


CALLS = calls()


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operator, arguments = CALLS[name]
    torch.library.opcheck(operator.default, arguments)


def test_compile_forward_and_backward_with_changing_length() -> None:
    torch._dynamo.reset()
    weight = torch.randn(2 * 8 * 2, 4)

    def step(x: Tensor, tensors: dict[str, Any]) -> Tensor:
        mixed, _ = libkda.causal_conv1d(x, weight)
        B, T, _ = x.shape
        q, k = mixed.view(B, T, 2, 16).split(8, -1)
        o, state = libkda.chunk_kda(q, k, **tensors, **BOUNDED, output_final_state=True)
        assert state is not None
        return o.square().sum() + state.sum()

    graphs = 0

    def count(module: Any, example: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    counted = torch.compile(step, fullgraph=True, backend=count)
    for T in (9, 40, 33, 70):
        case = SMALL.but(T=T, H=2, HV=2, has_state=False)
        tensors = {n: x for n, x in case.make().items() if n not in ("q", "k")}
        x = torch.randn(1, T, 32)
        results = []
        for function in (step, compiled):
            leaves = {n: y.clone().requires_grad_() for n, y in tensors.items()}
            leaf = x.clone().requires_grad_()
            loss = function(leaf, leaves)
            loss.backward()
            results.append([loss.detach(), leaf.grad, *(y.grad for y in leaves.values())])
        counted(x, tensors)
        for eager, made in zip(*results, strict=True):
            assert torch.equal(eager, made)
    assert graphs <= 2  # the second length makes it dynamic; the others take that graph


def test_compiled_decode_changes_the_states() -> None:
    torch._dynamo.reset()
    case = SMALL.but(T=40, has_state=False)
    tensors = case.make()
    whole, _ = call(case, tensors)
    options: dict[str, Any] = dict(BOUNDED)
    state = libkda.StreamingState(1, 2, 8, 6, precision="fp32", **options)

    raw = {name: tensors[name] for name in ("A_log", "dt_bias")}

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return libkda.decode(state, q, k, v, g, beta, **raw) * 2

    names = ("q", "k", "v", "g", "beta")
    o = [step(*(tensors[n][:, t : t + 1] for n in names)) for t in range(40)]
    assert torch.equal(torch.cat(o, 1), whole * 2)
    assert state.tokens() == 40


def test_autocast_changes_nothing() -> None:
    tensors = SMALL.but(dtype=torch.bfloat16, has_state=False).make()
    for name in ("g", "beta", "A_log", "dt_bias"):
        tensors[name] = tensors[name].float()
    results = []
    for enabled in (False, True):
        leaves = {n: x.clone().requires_grad_() for n, x in tensors.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            o, _ = call(SMALL, leaves)
            o.float().square().sum().backward()
        results.append([o, *(x.grad for x in leaves.values())])
    for plain, cast in zip(*results, strict=True):
        assert plain.dtype == cast.dtype
        assert torch.equal(plain, cast)


def test_a_second_derivative_is_refused() -> None:
    tensors = {name: x.requires_grad_() for name, x in SMALL.make().items()}
    o, _ = call(SMALL, tensors)
    (dq,) = torch.autograd.grad(o.square().sum(), tensors["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients are not supported; accepted:"):
        dq.sum().backward()
    x, weight = torch.randn(1, 5, 2, requires_grad=True), torch.randn(2, 4)
    y, _ = libkda.causal_conv1d(x, weight)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients are not supported; accepted:"):
        dx.sum().backward()


def test_vmap_is_refused() -> None:
    tensors = SMALL.make()
    q = torch.stack([tensors.pop("q")] * 2)
    with pytest.raises(RuntimeError, match=r"vmap is not supported; accepted: .+flatten"):
        torch.vmap(lambda one: call(SMALL, {"q": one, **tensors})[0])(q)
    state = libkda.StreamingState(2, 2, 8, 6, precision="fp32", **BOUNDED)
    tensors.pop("initial_state")
    with pytest.raises(RuntimeError, match=r"kda::decode: vmap is not supported; accepted: "):
        torch.vmap(lambda one: libkda.decode(state, one, **tensors))(q)
    with pytest.raises(RuntimeError, match=r"states_plain: vmap is not supported; accepted: "):
        torch.vmap(state.plain)(torch.tensor([[0], [1]]))


def test_expanded_gradients_are_taken() -> None:
    tensors = {name: x.requires_grad_() for name, x in SMALL.make().items()}
    o, state = call(SMALL, tensors, output_final_state=True)
    (o.mean() + state.mean()).backward()  # their gradients have stride 0
    dense = {name: x.requires_grad_() for name, x in SMALL.make().items()}
    o, state = call(SMALL, dense, output_final_state=True)
    torch.autograd.backward(
        [o, state],
        [torch.full(x.shape, 1 / x.numel()) for x in (o, state)],
    )
    for name in tensors:
        assert torch.equal(tensors[name].grad, dense[name].grad), name


def test_checkpointed_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    results = []
    for saves in (True, False):
        tensors = {name: x.requires_grad_() for name, x in SMALL.make().items()}
        run = lambda q, t=tensors: call(SMALL, {**t, "q": q})[0]  # noqa: E731
        q = tensors["q"]
        o = run(q) if saves else checkpoint(run, q, use_reentrant=False)
        o.square().sum().backward()
        results.append([x.grad for x in tensors.values()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
