"""Whatever cannot be done is an error that names the argument, what it was and what is accepted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import libkda
from forms import FORMS, FUNCTIONS, call
from libkda import CudaConvolution, CudaLayer, StreamingState, decode

CASE = FORMS["bounded"].but(dtype=torch.float32)


def changed(**changes: Any) -> dict[str, Any]:
    return {**CASE.make(), **CASE.options, **changes}


BAD: dict[str, tuple[str, Any]] = {
    "rank": ("q", lambda t: changed(q=t["q"][0])),
    "five_dimensions": ("k", lambda t: changed(k=t["k"][None])),
    "no_dimension": ("v", lambda t: changed(v=torch.tensor(1.0))),
    "shape": ("k", lambda t: changed(k=t["k"][:, 1:])),
    "integers": ("v", lambda t: changed(v=t["v"].long())),
    "complex": ("q", lambda t: changed(q=t["q"].to(torch.complex64))),
    "stride": ("q", lambda t: changed(q=t["q"].transpose(1, 3).contiguous().transpose(1, 3))),
    "gate": ("gate", lambda t: changed(gate="exponential")),
    "no_bound": ("lower_bound", lambda t: changed(lower_bound=None)),
    "bound": ("lower_bound", lambda t: changed(lower_bound=1.0)),
    "precision": ("precision", lambda t: changed(precision="fp16")),
    "chunk": ("chunk", lambda t: changed(chunk=33)),
    "huge_chunk": ("chunk", lambda t: changed(chunk=2**33 + 32)),
    "window": ("key_window", lambda t: changed(key_window=48)),
    "reference": ("reference", lambda t: changed(reference="last_row")),
    "state_shape": ("initial_state", lambda t: changed(initial_state=t["initial_state"][:1])),
    "state_layout": ("initial_state", lambda t: changed(state_layout="value_first")),
    "layout_name": ("state_layout", lambda t: changed(state_layout="column_major")),
    "cu_seqlens": ("cu_seqlens", lambda t: changed(cu_seqlens=torch.tensor([0, 45]))),
    "one_elsewhere": ("k", lambda t: changed(k=t["k"].to("meta"))),
}


@pytest.mark.parametrize("name", BAD)
def test_refusals(name: str) -> None:
    argument, change = BAD[name]
    with pytest.raises(RuntimeError, match=rf"(?s)\A{argument}: .+; accepted: ."):
        libkda.chunk_kda(**change(CASE.make()), output_final_state=True)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_an_unknown_keyword_is_a_type_error(op: str) -> None:
    case = FORMS["bounded" if op == "kda" else op]
    with pytest.raises(TypeError, match="unexpected keyword argument 'use_qk_l2norm'"):
        call(case, case.make(), use_qk_l2norm=True)


def test_convolution_refusals() -> None:
    x, weight = torch.randn(2, 5, 3), torch.randn(3, 4)
    with pytest.raises(RuntimeError, match=r"weight: .+; accepted: "):
        libkda.causal_conv1d(x, weight[:2])
    with pytest.raises(RuntimeError, match=r"activation: .+; accepted: none, silu"):
        libkda.causal_conv1d(x, weight, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        libkda.causal_conv1d(x, weight, width=4)  # type: ignore[call-arg]


def test_refused_steps_leave_the_states_alone() -> None:
    options: Any = CASE.options
    state = StreamingState(2, CASE.HV, CASE.K, CASE.V, precision="fp32", **options)
    tensors = CASE.but(has_state=False).make()
    decode(state, **tensors)
    before = state.plain()
    for bad in (
        {"slots": torch.tensor([1, 1])},
        {"slots": torch.tensor([0, 2])},
        {"checkpoints": [(0, 50, 1)]},
        {"draft": True},
        {"q": tensors["q"].long()},
    ):
        with pytest.raises(RuntimeError, match=r"\A\w+: .+; accepted: "):
            decode(state, **{**tensors, **bad})
    assert torch.equal(state.plain(), before)
    with pytest.raises(RuntimeError, match=r"\A\w+: .+; accepted: "):
        state.tokens(2)
    with pytest.raises(RuntimeError, match=r"\A\w+: .+; accepted: "):
        state.load(0, torch.zeros(7, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"q: on meta; accepted: a tensor on cpu"):
        decode(state, **{name: x.to("meta") for name, x in tensors.items()})
    with pytest.raises(RuntimeError, match=r"counts: on meta; accepted: a tensor on cpu"):
        state.commit(torch.tensor([1, 1], device="meta"))
    with pytest.raises(RuntimeError, match=r"precision: .+; accepted: "):
        StreamingState(1, 2, 8, 8, precision="automatic")


def test_a_layer_is_for_cuda_states() -> None:
    options: Any = CASE.options
    state = StreamingState(2, CASE.HV, CASE.K, CASE.V, precision="fp32", **options)
    tensors = CASE.but(T=1, has_state=False).make()
    part = CudaConvolution(torch.zeros(8, 4), torch.zeros(2, 8, 3))
    with pytest.raises(
        RuntimeError,
        match=r"\Alayer: given with states on cpu; accepted: .+ update_conv_pool on each",
    ):
        decode(state, **tensors, layer=CudaLayer(part, part, part))
    assert state.tokens() == 0


@pytest.mark.parametrize("name", ["rank", "no_dimension", "gate", "layout_name", "chunk"])
def test_refusals_of_a_compiled_call(name: str) -> None:
    torch._dynamo.reset()
    argument, change = BAD[name]
    compiled = torch.compile(libkda.chunk_kda, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=rf"{argument}: .+; accepted: ."):
        compiled(**{**change(CASE.make()), "initial_state": None, "output_final_state": True})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there() -> None:
    options: Any = {**CASE.options, "precision": "mixed", "device": "cuda"}
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):  # ours or torch's
        StreamingState(1, 2, 128, 128, **options)
