"""The audit finds leaks that are there, names them rightly, and finds none in libkda."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import libkda
from forms import BOUNDED
from libkda.audit import assert_causal, audit
from naive import Case

CASE = Case(B=1, T=40, H=1, HV=1, K=16, V=8, dtype=torch.bfloat16, options=BOUNDED)


def kda(**options: Any) -> Any:
    tensors = CASE.make()
    parameters = {name: tensors[name] for name in ("A_log", "dt_bias")}

    def call(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return libkda.chunk_kda(q, k, v, g, beta, **parameters, **BOUNDED, **options)[0]

    return call, [tensors[name] for name in ("q", "k", "v", "g", "beta")]


@pytest.mark.parametrize("reference", ["shifted", "first_row", "pairwise"])
def test_libkda_is_causal(reference: str) -> None:
    window = {"key_window": 16} if reference == "first_row" else {}
    function, inputs = kda(reference=reference, **window)
    assert_causal(function, *inputs, gradients=True, cuts=range(1, 40, 3))


def test_midpoint_is_not() -> None:
    function, inputs = kda(reference="midpoint")
    report = audit(function, *inputs)
    assert not report.is_causal
    # A window is measured from its token 16, or its last: gates up to there change rows before it.
    assert {leak.later for leak in report.leaks} <= {*range(1, 17), *range(33, 40)}
    assert all(leak.later is not None and leak.earlier < leak.later for leak in report.leaks)
    with pytest.raises(AssertionError, match="output 0 at token"):
        assert_causal(function, *inputs)


def test_a_forgotten_mask() -> None:
    report = audit(lambda x: x + x.roll(-3, 1), torch.randn(2, 9, 4))
    assert {(leak.earlier, leak.later) for leak in report.leaks} >= {(0, 3), (5, 8)}
    assert all(leak.later == leak.earlier + 3 for leak in report.leaks)
    assert "8 of 8 cuts" in str(report)


def test_values_that_share_a_scale() -> None:
    def quantised(x: Tensor) -> Tensor:
        blocks = x.unflatten(1, (-1, 8))
        scale = blocks.abs().amax(2, keepdim=True) / 7
        y: Tensor = (blocks / scale).round() * scale
        return y.flatten(1, 2)

    report = audit(quantised, torch.randn(1, 32, 3), draws=3)
    blamed = [(leak.earlier, leak.later) for leak in report.leaks if leak.later is not None]
    assert len(blamed) > 20
    assert all(earlier // 8 == later // 8 for earlier, later in blamed)


def test_a_leak_in_gradients_alone() -> None:
    class Peeks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *d_y: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return d_y[0] * (1 + 1e-3 * x[:, -1:])  # type: ignore[no-any-return]

    x = torch.randn(1, 6, 2)
    assert audit(Peeks.apply, x).is_causal
    report = audit(Peeks.apply, x, gradients=True)
    assert len(report.leaks) == 5
    assert report.leaks[0].what == "gradient of input 0" and report.leaks[0].later == 5


def test_refusals() -> None:
    x = torch.randn(1, 5, 2)
    with pytest.raises(ValueError, match=r"inputs: .+; accepted: "):
        audit(lambda a, b: a, x, x[:, 1:])
    with pytest.raises(ValueError, match=r"function: no output .+; accepted: "):
        audit(lambda a: a.sum(1), x)
    with pytest.raises(ValueError, match=r"function: gives other bits .+; accepted: "):
        audit(lambda a: a + torch.rand(()), x)
