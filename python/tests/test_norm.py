"""The gated RMS norm against the formula, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import libkda
from naive import error

SHAPES = ((2, 7, 3, 20), (20,), (2, 7, 3, 20))


def formula(x: Tensor, weight: Tensor | None, gate: Tensor | None) -> Tensor:
    y = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    y = y if weight is None else y * weight
    return y if gate is None else y * gate.sigmoid()


@pytest.mark.parametrize("has", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(
    ("dtype", "bound"),
    # float32: sums of 20 and of 42 terms; bfloat16 rounds the results once more
    [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 3e-3)],
)
def test_values_and_gradients(dtype: torch.dtype, bound: float, has: tuple[bool, bool]) -> None:
    generator = torch.Generator().manual_seed(4)
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    given = [x if i == 0 or has[i - 1] else None for i, x in enumerate(drawn)]
    ours = [None if x is None else x.clone().requires_grad_() for x in given]
    true = [None if x is None else x.double().requires_grad_() for x in given]
    assert ours[0] is not None and true[0] is not None
    y, true_y = libkda.gated_norm(ours[0], *ours[1:]), formula(true[0], *true[1:])
    assert y.dtype == dtype
    assert error(y, true_y) <= bound
    d_y = torch.randn(y.shape, generator=generator).to(dtype)
    y.backward(d_y)
    true_y.backward(d_y.double())
    for one, other in zip(ours, true, strict=True):
        if one is not None and other is not None:
            assert one.grad is not None and other.grad is not None
            assert error(one.grad, other.grad) <= bound


def test_as_an_operator() -> None:
    x, weight, gate = (torch.randn(shape, requires_grad=True) for shape in SHAPES)
    torch.library.opcheck(torch.ops.kda.gated_norm.default, (x, weight, gate, 1e-5))
    with pytest.raises(RuntimeError, match=r"\Aweight: .+; accepted: "):
        libkda.gated_norm(x, weight[1:])
    with pytest.raises(RuntimeError, match=r"\Aeps: .+; accepted: "):
        libkda.gated_norm(x, eps=-1.0)
    (dx,) = torch.autograd.grad(libkda.gated_norm(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients are not supported"):
        dx.sum().backward()
