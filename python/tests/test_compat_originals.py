"""libkda.compat beside the reference functions of FLA and attn-gym themselves, where these are
installed: the same call to both, on the CPU, in float32."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

from libkda.compat import attn_gym, fla
from naive import Case, error

# Both sum in float32; chunks of 64 tokens and those of 32 round differently.
LIMIT = 5e-6
# T is a multiple of 64: attn-gym's and FLA's chunked references want it so.
CASE = Case(dtype=torch.float32, T=128, H=4, HV=4, has_state=True)


def original(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        pytest.skip(f"{name} does not import: {missing}")


@pytest.mark.parametrize("name", ["naive_recurrent_kda", "naive_chunk_kda"])
def test_fla(name: str) -> None:
    theirs = getattr(original("fla.ops.kda.naive"), name)
    tensors = CASE.make()
    o, state = getattr(fla, name)(**tensors, scale=0.3, output_final_state=True)
    their_o, their_state = theirs(**tensors, scale=0.3, output_final_state=True)
    assert o.shape == their_o.shape and o.dtype == their_o.dtype
    assert state is not None and state.shape == their_state.shape
    assert error(o, their_o.double()) <= LIMIT
    assert error(state, their_state.double()) <= LIMIT
    kernels, _ = fla.chunk_kda(**tensors, scale=0.3)
    assert error(kernels, their_o.double()) <= LIMIT


def test_fla_gates() -> None:
    theirs = original("fla.ops.kda.gate")
    tensors = CASE.but(options={"gate": "softplus"}).make()
    raw: Any = (tensors["g"], tensors["A_log"], tensors["dt_bias"].flatten())
    for name in ("naive_kda_gate", "naive_kda_lowerbound_gate"):
        assert error(getattr(fla, name)(*raw), getattr(theirs, name)(*raw).double()) <= LIMIT
    for bound, name in ((None, "naive_kda_gate"), (-5.0, "naive_kda_lowerbound_gate")):
        call: Any = {n: tensors[n] for n in ("q", "k", "v", "beta", "initial_state")}
        log, _ = fla.chunk_kda(g=getattr(theirs, name)(*raw), **call)
        fused, _ = fla.chunk_kda(
            g=raw[0],
            **call,
            A_log=raw[1],
            dt_bias=raw[2],
            use_gate_in_kernel=True,
            lower_bound=bound,
        )
        assert error(fused, log.double()) <= LIMIT


@pytest.mark.parametrize("name", ["chunk_kda", "recurrent_kda"])
@pytest.mark.parametrize("packed", [False, True])
def test_attn_gym(name: str, packed: bool) -> None:
    theirs = getattr(original("attn_gym.linear"), name)
    tensors: Any = CASE.but(B=1 if packed else 2).make()
    tensors["gate"] = tensors.pop("g")
    tensors["initial_state"] = tensors["initial_state"].mT.contiguous()
    if packed:
        tensors["cu_seqlens"] = torch.tensor([0, 64, 64, 128], dtype=torch.int32)
        tensors["initial_state"] = torch.randn(3, 4, 24, 16)
    call = {**tensors, "output_final_state": True, "impl": "reference"}
    o, state = getattr(attn_gym, name)(**call)
    their_o, their_state = theirs(**call)
    assert o.shape == their_o.shape and state.shape == their_state.shape
    assert error(o, their_o.double()) <= LIMIT
    assert error(state, their_state.double()) <= LIMIT


def test_attn_gym_gates() -> None:
    theirs = original("attn_gym.linear.kda").bound_gate
    tensors = CASE.but(options={"gate": "bounded"}).make()
    raw: Any = (tensors["g"], tensors["A_log"], tensors["dt_bias"])
    their_gates = theirs(*raw, lower_bound=-4.0, impl="reference")
    assert error(attn_gym.bound_gate(*raw, lower_bound=-4.0), their_gates.double()) <= LIMIT


@pytest.mark.parametrize(
    "name", ["chunk_kda", "paged_chunk_kda", "recurrent_kda", "recurrent_kda_decode"]
)
def test_parameters_of_attn_gym(name: str) -> None:
    theirs = inspect.signature(getattr(original("attn_gym.linear"), name)).parameters
    ours = inspect.signature(getattr(attn_gym, name)).parameters
    assert list(ours) == list(theirs)
    assert [p.kind for p in ours.values()] == [p.kind for p in theirs.values()]


def test_parameters_of_fla() -> None:
    theirs = original("fla.ops.kda")
    for name in ("chunk_kda", "fused_recurrent_kda"):
        ours = inspect.signature(getattr(fla, name)).parameters
        for parameter in inspect.signature(getattr(theirs, name)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                assert ours[parameter.name].kind == parameter.kind
                assert ours[parameter.name].default == parameter.default or (
                    parameter.name == "initial_state"  # None, or nothing at all
                )
