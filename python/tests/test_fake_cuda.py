"""What can be said of CUDA tensors without a GPU: devices, shapes, refusals, on tensors without
memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import libkda
from forms import BOUNDED
from libkda import CudaConvolution, CudaLayer, Options, Ran, StreamingState, decode
from libkda.layer import KDAConfig, build_kda


@pytest.fixture(autouse=True)
def _fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


def tensors(device: str = "cuda", tokens: int = 5) -> Any:
    x = torch.empty(2, tokens, 4, 128, device=device, dtype=torch.bfloat16)
    beta = torch.empty(2, tokens, 4, device=device, dtype=torch.bfloat16)
    return {"q": x, "k": x, "v": x, "g": x, "beta": beta}


def around(slots: int = 3) -> CudaLayer:
    def part() -> CudaConvolution:
        weight = torch.empty(512, 4, device="cuda")
        return CudaConvolution(weight, torch.empty(slots, 512, 3, device="cuda"))

    return CudaLayer(part(), part(), part())


def test_results_are_where_the_tensors_are() -> None:
    given, bounds = tensors(), torch.tensor([0, 3, 5])
    results = [
        *libkda.chunk_kda(**given, **BOUNDED, output_final_state=True, ran=Ran()),
        *libkda.recurrent_kda(**given, **BOUNDED, output_final_state=True),
        *libkda.causal_conv1d(
            torch.empty(1, 5, 6, device="cuda"),
            torch.empty(6, 4, device="cuda"),
            output_final_state=True,
            cu_seqlens=bounds,  # may stay on the CPU
        ),
        libkda.gated_norm(given["v"]),
    ]
    assert all(x is not None and x.device.type == "cuda" for x in results)
    shapes = [list(x.shape) for x in results if x is not None]
    states, o = [2, 4, 128, 128], [2, 5, 4, 128]
    assert shapes == [o, states, o, states, [1, 5, 6], [2, 6, 3], o]
    pool = torch.empty(3, 4, 128, 128, device="cuda")
    slots = torch.tensor([2, 0])
    o_pool = libkda.update_pool(pool, **given, options=Options(**BOUNDED), slots=slots, ran=Ran())
    assert list(o_pool.shape) == o


def test_streaming_states() -> None:
    options: Any = {**BOUNDED, "precision": "mixed", "max_draft": 3, "device": "cuda"}
    try:
        state = StreamingState(3, 4, 128, 128, **options)
    except RuntimeError as refusal:
        assert "context: CudaContext; accepted: CpuContext" in str(refusal)
        return
    given, slots = tensors(), torch.tensor([2, 0])
    assert list(decode(state, **given, slots=slots, draft=True).shape) == [2, 5, 4, 128]
    state.commit(torch.tensor([1, 1]), slots=slots)
    plain = state.plain(slots)
    assert (list(plain.shape), plain.device) == ([2, 4, 128, 128], state.device)
    with pytest.raises(RuntimeError, match=r"q: on cpu; accepted: a tensor on cuda:0"):
        decode(state, **tensors("cpu"))
    token = tensors(tokens=1)
    assert list(decode(state, **token, layer=around()).shape) == [2, 1, 4, 128]
    elsewhere = replace(around(), k=CudaConvolution(torch.empty(512, 4), around().k.state))
    with pytest.raises(RuntimeError, match=r"layer.k.weight: on cpu; accepted: a tensor on cuda:0"):
        decode(state, **token, layer=elsewhere)
    gate = torch.empty(2, 1, 4, 128, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match=r"requires_grad: True; accepted: False"):
        decode(state, **token, layer=replace(around(), gate=gate))


@pytest.mark.parametrize("name", ["k", "beta"])
def test_one_elsewhere(name: str) -> None:
    given = tensors()
    given[name] = tensors("cpu")[name]
    with pytest.raises(RuntimeError, match=rf"{name}: on cpu; accepted: a tensor on cuda:0"):
        libkda.chunk_kda(**given, **BOUNDED)
    with pytest.raises(RuntimeError, match=r"cu_seqlens: on cuda:0; accepted: a tensor on cpu"):
        libkda.chunk_kda(**tensors("cpu"), **BOUNDED, cu_seqlens=torch.empty(3, device="cuda"))


CONFIG = KDAConfig(hidden_size=64, num_heads=2, head_dim=128)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"gate_lower_bound": -6.0}, False),
        ({"gate_lower_bound": None}, False),
        ({"num_v_heads": 4}, False),
        ({"kernel_size": 5}, False),
        ({"streaming": False}, False),
    ],
)
def test_which_steps_of_the_layer_are_one_launch(
    changes: dict[str, Any], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[CudaLayer | None] = []

    def spy(*args: Any, layer: CudaLayer | None = None, **more: Any) -> torch.Tensor:
        given.append(layer)
        return decode(*args, **more) if layer is None else decode(*args, **more, layer=layer)

    monkeypatch.setattr("libkda.layer.decode", spy)
    layer = build_kda(replace(CONFIG, **changes))
    for module in layer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            there = torch.empty(parameter.shape, device="cuda", dtype=torch.bfloat16)
            setattr(module, name, torch.nn.Parameter(there))
    with torch.no_grad():
        try:
            state = layer.new_state(2)
        except RuntimeError as refusal:
            assert "context: CudaContext; accepted: CpuContext" in str(refusal)
            return
        for tokens in (5, 1, 2, 1):
            x = torch.empty(2, tokens, 64, device="cuda", dtype=torch.bfloat16)
            assert layer(x, state=state).shape == x.shape
    streams = changes.get("streaming", True)
    assert [x is not None for x in given] == ([False, fits, False, fits] if streams else [])
