"""What can be said of CUDA tensors without a GPU: devices, shapes, refusals, on tensors without
memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import libkda
from forms import BOUNDED
from libkda import Options, Ran, StreamingState, decode


@pytest.fixture(autouse=True)
def _fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


def tensors(device: str = "cuda") -> Any:
    x = torch.empty(2, 5, 4, 128, device=device, dtype=torch.bfloat16)
    beta = torch.empty(2, 5, 4, device=device, dtype=torch.bfloat16)
    return {"q": x, "k": x, "v": x, "g": x, "beta": beta}


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


@pytest.mark.parametrize("name", ["k", "beta"])
def test_one_elsewhere(name: str) -> None:
    given = tensors()
    given[name] = tensors("cpu")[name]
    with pytest.raises(RuntimeError, match=rf"{name}: on cpu; accepted: a tensor on cuda:0"):
        libkda.chunk_kda(**given, **BOUNDED)
    with pytest.raises(RuntimeError, match=r"cu_seqlens: on cuda:0; accepted: a tensor on cpu"):
        libkda.chunk_kda(**tensors("cpu"), **BOUNDED, cu_seqlens=torch.empty(3, device="cuda"))
