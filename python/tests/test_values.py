"""Outputs and gradients against the recurrence in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import libkda
from forms import BOUNDED, FORMS, call
from naive import Case, attention, error, truth

# Promised for each precision: outputs and states, gradients.
PROMISE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-6, 1e-5),
    torch.bfloat16: (5e-3, 6e-3),
}
DTYPES = pytest.mark.parametrize("dtype", PROMISE, ids=["f64", "f32", "bf16"])
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


@EVERY_FORM
@DTYPES
def test_outputs_and_states(form: str, dtype: torch.dtype) -> None:
    case = FORMS[form].but(dtype=dtype)
    tensors = case.make()
    if "initial_state" in tensors and dtype == torch.bfloat16:
        tensors["initial_state"] = tensors["initial_state"].float()
    o, state = call(case, tensors, output_final_state=True)
    true_o, true_state = truth(case, tensors)
    # bfloat16 outputs are rounded once more: 2^-9 at most, 2^-9 / sqrt(3) on average.
    bound = PROMISE[dtype][0]
    assert o.dtype == dtype
    assert error(o, true_o) <= bound
    assert error(state, true_state) <= bound
    assert state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@EVERY_FORM
@DTYPES
def test_gradients(form: str, dtype: torch.dtype) -> None:
    case = FORMS[form].but(dtype=dtype)
    given = case.make()
    if "initial_state" in given and dtype == torch.bfloat16:
        given["initial_state"] = given["initial_state"].float()

    def gradients(tensors: dict[str, Any], run: Any) -> dict[str, Any]:
        leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
        o, state = run(leaves)
        generator = torch.Generator().manual_seed(5)
        d_o = torch.randn(o.shape, generator=generator, dtype=torch.float64)
        d_state = torch.randn(state.shape, generator=generator, dtype=torch.float64)
        torch.autograd.backward([o, state], [d_o.to(dtype).to(o), d_state.float().to(state)])
        return {name: x.grad for name, x in leaves.items() if x.grad is not None}

    ours = gradients(given, lambda t: call(case, t, output_final_state=True))
    true = gradients({n: x.double() for n, x in given.items()}, lambda t: truth(case, t))
    assert set(ours) == set(given)
    for name in given:
        assert ours[name].dtype == given[name].dtype
        assert error(ours[name], true[name]) <= PROMISE[dtype][1], name


@EVERY_FORM
def test_gradcheck(form: str) -> None:
    case = FORMS[form].but(B=1, T=5, H=1, HV=2, K=3, V=2)
    tensors = {name: x.requires_grad_() for name, x in case.make().items()}
    names = list(tensors)

    def run(*values: Tensor) -> Any:
        return call(case, dict(zip(names, values, strict=True)), output_final_state=True)

    assert torch.autograd.gradcheck(run, tuple(tensors.values()))


def test_one_gradient_alone() -> None:
    case = FORMS["bounded"].but(dtype=torch.float32)
    whole = {name: x.requires_grad_() for name, x in case.make().items()}
    call(case, whole)[0].sum().backward()
    for name in whole:
        tensors = case.make()
        tensors[name].requires_grad_()
        call(case, tensors)[0].sum().backward()
        assert torch.equal(tensors[name].grad, whole[name].grad), name
        assert all(x.grad is None for other, x in tensors.items() if other != name)


def test_a_loss_on_the_final_state_alone() -> None:
    case = FORMS["log"]
    ours = {name: x.requires_grad_() for name, x in case.make().items()}
    call(case, ours, output_final_state=True)[1].square().sum().backward()
    true = {name: x.requires_grad_() for name, x in case.make().items()}
    truth(case, true)[1].square().sum().backward()
    for name in ("k", "v", "g", "beta", "initial_state"):
        assert error(ours[name].grad, true[name].grad) <= 1e-12, name
    assert not ours["q"].grad.any()


def test_recurrent() -> None:
    case = FORMS["bounded"].but(dtype=torch.float32)
    tensors = {name: x.requires_grad_() for name, x in case.make().items()}
    o, state = libkda.recurrent_kda(**tensors, **case.options, output_final_state=True)
    true_o, true_state = truth(case, tensors)
    assert error(o, true_o) <= 2e-6
    assert state is not None and error(state, true_state) <= 2e-6
    o.sum().backward()
    chunked = {name: x.requires_grad_() for name, x in case.make().items()}
    call(case, chunked)[0].sum().backward()
    for name, x in tensors.items():
        assert torch.equal(x.grad, chunked[name].grad)


def test_value_first_states() -> None:
    case = FORMS["log"]
    tensors = case.make()
    o, state = call(case, tensors, output_final_state=True)
    tensors["initial_state"] = tensors["initial_state"].mT.contiguous()
    turned_o, turned = call(case, tensors, output_final_state=True, state_layout="value_first")
    assert torch.equal(turned_o, o)
    assert torch.equal(turned.mT, state)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_packed_sequences(index: torch.dtype) -> None:
    case = Case(B=1, T=60, options=BOUNDED, dtype=torch.float32)
    packed = {name: x.requires_grad_() for name, x in case.make().items()}
    bounds = [0, 7, 7, 41, 52]  # one is empty; the last rows belong to none
    cu_seqlens = torch.tensor(bounds, dtype=index)
    states = torch.randn(4, case.HV, case.K, case.V).requires_grad_()
    o, final = call(
        case, packed, initial_state=states, cu_seqlens=cu_seqlens, output_final_state=True
    )
    o.square().sum().backward()
    assert not o[:, 52:].any()
    per_token = ("q", "k", "v", "g", "beta")
    for n, (begin, end) in enumerate(itertools.pairwise(bounds)):
        single = case.make()
        single.update({name: single[name][:, begin:end].clone() for name in per_token})
        single["initial_state"] = states[n : n + 1].detach().clone()
        for x in single.values():
            x.requires_grad_()
        alone, alone_final = call(case, single, output_final_state=True)
        assert torch.equal(o[:, begin:end], alone)
        assert torch.equal(final[n], alone_final[0])
        alone.square().sum().backward()
        for name in per_token:
            assert torch.equal(packed[name].grad[:, begin:end], single[name].grad), name
    assert all(not packed[name].grad[:, 52:].any() for name in per_token)


def test_no_tokens() -> None:
    case = FORMS["bounded"].but(T=0)
    tensors = {name: x.requires_grad_() for name, x in case.make().items()}
    o, state = call(case, tensors, output_final_state=True)
    assert o.shape == (case.B, 0, case.HV, case.V)
    assert torch.equal(state, tensors["initial_state"])
    (o.sum() + state.sum()).backward()
    assert torch.equal(tensors["initial_state"].grad, torch.ones_like(state))


def test_strided_inputs_are_taken_as_they_are() -> None:
    case = FORMS["bounded"].but(H=4, HV=4, K=16, V=16, dtype=torch.float32)
    tensors = case.make()
    expected, _ = call(case, tensors)
    fused = torch.cat([tensors[name] for name in ("q", "k", "v")], -1)
    tensors["q"], tensors["k"], tensors["v"] = fused.split(16, -1)
    tensors["g"] = tensors["g"].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(call(case, tensors)[0], expected)


def test_a_gate_for_all_heads_may_be_expanded() -> None:
    case = FORMS["log"].but(dtype=torch.float32, has_state=False)
    tensors = case.make()
    one = tensors["g"][:, :, :1]
    tensors["g"] = one.expand_as(tensors["g"])
    expected, _ = call(case, {**tensors, "g": tensors["g"].contiguous()})
    assert torch.equal(call(case, tensors)[0], expected)


def test_the_naive_recurrence_is_not_ours() -> None:
    q = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    g, beta = torch.full((1, 2, 1, 1), -0.5, dtype=torch.float64), torch.full((1, 2, 1), 0.5)
    v = torch.tensor([1.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1)
    o, _ = attention(q, q, v, g, beta.double())
    # S_0 = 0.5; S_1 = 0.5 e^-0.5 + 0.5 (3 - 0.5 e^-0.5), by hand.
    half = 0.5 * torch.exp(torch.tensor(-0.5, dtype=torch.float64))
    assert torch.allclose(o.flatten(), torch.stack([torch.tensor(0.5).double(), 1.5 + 0.5 * half]))
