"""libkda.compat.flash_kda: FlashKDA's calls give the recurrence."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import pytest
import torch

from libkda.compat import flash_kda
from naive import Case, attention, error

BOUNDED: dict[str, Any] = {"gate": "bounded", "norm": "rsqrt", "sigmoid_beta": True}
CASE = Case(options=BOUNDED, dtype=torch.bfloat16, H=4, HV=4, T=70)


def inputs(case: Case = CASE) -> tuple[dict[str, Any], torch.Tensor]:
    tensors = case.make()
    tensors["A_log"], tensors["dt_bias"] = tensors["A_log"].float(), tensors["dt_bias"].float()
    return tensors, torch.full_like(tensors["v"], float("nan"))


def test_parameters_have_their_order() -> None:
    names = list(inspect.signature(flash_kda.fwd).parameters)
    assert names[:10] == [
        *("q", "k", "v", "g", "beta", "scale", "out", "A_log", "dt_bias", "lower_bound")
    ]
    assert names[10:] == ["initial_state", "final_state", "cu_seqlens"]
    assert list(inspect.signature(flash_kda.fwd_cp).parameters) == [*names, "auto_cp"]
    assert flash_kda.get_workspace_size(8192, 64, 1) % 128 == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_states(dtype: torch.dtype) -> None:
    tensors, out = inputs()
    state = torch.randn(2, 4, 24, 16).to(dtype)
    true = {name: x.double() for name, x in tensors.items()}
    true_o, true_state = attention(
        **true, **BOUNDED, lower_bound=-5.0, scale=0.2, initial_state=state.double().mT
    )
    t = tensors
    flash_kda.fwd(
        *(t["q"], t["k"], t["v"], t["g"], t["beta"], 0.2, out, t["A_log"], t["dt_bias"], -5.0),
        initial_state=state,
        final_state=state,  # in place
    )
    assert error(out, true_o) <= 5e-3
    assert error(state.mT, true_state) <= 5e-3


@pytest.mark.parametrize("auto_cp", [False, True])
def test_fwd_cp_is_fwd(auto_cp: bool) -> None:
    tensors, out = inputs()
    expected, states = torch.empty_like(out), torch.randn(2, 2, 4, 24, 16)
    arguments: Any = {**tensors, "scale": 0.2, "lower_bound": -5.0}
    flash_kda.fwd(**arguments, out=expected, final_state=states[0])
    flash_kda.fwd_cp(**arguments, out=out, final_state=states[1], auto_cp=auto_cp)
    assert torch.equal(out, expected) and torch.equal(states[0], states[1])


def test_packed_sequences() -> None:
    tensors, out = inputs(CASE.but(B=1))
    final = torch.empty(2, 4, 24, 16)
    cu_seqlens = torch.tensor([0, 33, 70])
    flash_kda.fwd(
        **tensors, scale=0.25, out=out, lower_bound=-5.0, final_state=final, cu_seqlens=cu_seqlens
    )
    second = {n: x[:, 33:] if x.dim() > 2 else x for n, x in tensors.items()}
    alone, alone_final = torch.empty_like(second["v"]), torch.empty(1, 4, 24, 16)
    flash_kda.fwd(**second, scale=0.25, out=alone, lower_bound=-5.0, final_state=alone_final)
    assert torch.equal(out[:, 33:], alone)
    assert torch.equal(final[1:], alone_final)


BAD: dict[str, dict[str, Any]] = {
    "out": {"out": torch.empty(2, 70, 4, 16)},
    "final_state": {"final_state": torch.zeros(2, 4, 16, 24)},
    "lower_bound": {"lower_bound": 0.0},
    "A_log": {"A_log": torch.zeros(3)},
    "initial_state": {"initial_state": torch.zeros(2, 4, 16, 24)},
}


@pytest.mark.parametrize("argument", BAD)
def test_refusals_write_nothing(argument: str) -> None:
    tensors, out = inputs()
    arguments = {**tensors, "scale": 0.25, "out": out, "lower_bound": -5.0, **BAD[argument]}
    with pytest.raises(RuntimeError, match=rf"\A{argument}: .+; accepted: "):
        flash_kda.fwd(**arguments)
    assert out.isnan().all()
    with pytest.raises(TypeError, match="enable_cp"):
        flash_kda.fwd(**arguments, enable_cp=True)  # type: ignore[call-arg]


def test_install() -> None:
    assert "flash_kda" not in sys.modules
    try:
        flash_kda.install()
        assert importlib.import_module("flash_kda") is flash_kda
    finally:
        sys.modules.pop("flash_kda", None)
