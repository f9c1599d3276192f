"""The short convolution against torch's own, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import libkda
from naive import error


def reference(
    activation: str, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    B, _, C = x.shape
    width = weight.shape[1]
    past = x.new_zeros(B, C, width - 1) if state is None else state
    padded = torch.cat([past, x.mT], -1)
    y = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=C).mT
    final = padded[..., padded.shape[-1] - (width - 1) :]
    return torch.nn.functional.silu(y) if activation == "silu" else y, final


@pytest.mark.parametrize("activation", ["silu", "none"])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    ("dtype", "bound"),
    # float32 sums of at most 5 terms; bfloat16 rounds the result once more
    [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 3e-3)],
)
def test_values_and_gradients(
    activation: Any, width: int, dtype: torch.dtype, bound: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 11, 6), (6, width), (6,), (2, 6, width - 1))
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    ours = [x.clone().requires_grad_() for x in drawn]
    true = [x.double().requires_grad_() for x in drawn]
    x, weight, bias, state = ours
    y, final = libkda.causal_conv1d(
        x, weight, bias, activation=activation, initial_state=state, output_final_state=True
    )
    true_y, true_final = reference(activation, *true)
    assert final is not None and y.dtype == dtype and final.dtype == dtype
    assert error(y, true_y) <= bound
    assert torch.equal(final.double(), true_final)
    d_y = torch.randn(y.shape, generator=generator).to(dtype)
    d_final = torch.randn(final.shape, generator=generator).to(dtype)
    torch.autograd.backward([y, final], [d_y, d_final])
    torch.autograd.backward([true_y, true_final], [d_y.double(), d_final.double()])
    for one, other in zip(ours, true, strict=True):
        assert one.grad is not None and other.grad is not None
        assert error(one.grad, other.grad) <= bound


def test_gradcheck() -> None:
    tensors = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((1, 5, 2), (2, 3), (2,))
    ]
    assert torch.autograd.gradcheck(lambda *t: libkda.causal_conv1d(*t)[0], tensors)


def test_packed_sequences() -> None:
    x, weight = torch.randn(1, 12, 4), torch.randn(4, 4)
    y, final = libkda.causal_conv1d(
        x, weight, cu_seqlens=torch.tensor([0, 5, 10]), output_final_state=True
    )
    for n in range(2):
        alone, alone_final = libkda.causal_conv1d(
            x[:, 5 * n : 5 * n + 5], weight, output_final_state=True
        )
        assert torch.equal(y[:, 5 * n : 5 * n + 5], alone)
        assert final is not None and alone_final is not None
        assert torch.equal(final[n], alone_final[0])
    assert not y[:, 10:].any()
