"""What ran is told, and only asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import libkda
from forms import BOUNDED, FORMS, FUNCTIONS, call
from libkda import Options, Ran

CASE = FORMS["bounded"].but(T=45, dtype=torch.float32, has_state=False)


def test_each_function_tells() -> None:
    for form in ("bounded", "gdn", "delta", "linear"):
        case = FORMS[form].but(dtype=torch.float32)
        ran = Ran()
        o, _ = call(case, case.make(), ran=ran, chunk=16)
        assert torch.equal(o, call(case, case.make(), chunk=16)[0])
        assert (ran.backend, ran.precision, ran.chunk) == ("cpu", "fp32", 16), form
        assert ran.chunks == case.B * case.HV * 3
        assert ran.windows >= ran.chunks
        assert ran.isa in ("sse4", "avx2", "avx512", "avx512_bf16", "neon")
        assert ran.threads >= 1
    assert set(FUNCTIONS) == {"kda", "gdn", "delta", "linear"}


def test_names() -> None:
    for precision, dtype in (("exact64", torch.float64), ("mixed", torch.bfloat16)):
        ran = Ran()
        call(CASE, CASE.but(dtype=dtype).make(), ran=ran)
        assert ran.precision == precision
    for reference in ("shifted", "first_row", "midpoint", "pairwise"):
        ran = Ran()
        call(CASE, CASE.make(), ran=ran, chunk=16, reference=reference)
        assert ran.reference == reference
        assert (ran.one_token_windows == ran.windows) == (reference == "pairwise")


def test_windows_that_a_gate_cuts() -> None:
    case = FORMS["log"].but(dtype=torch.float32, has_state=False)
    quiet, wild = Ran(), Ran()
    tensors = case.make()
    call(case, {**tensors, "g": tensors["g"] * 0}, ran=quiet)
    call(case, {**tensors, "g": tensors["g"] - 100}, ran=wild)
    assert quiet.cuts and wild.cuts and quiet.windows == quiet.chunks < wild.windows
    assert "backend='cpu'" in repr(wild) and f"windows={wild.windows}" in repr(wild)


def test_recurrent_pools_and_decode_tell() -> None:
    tensors = CASE.make()
    ran = Ran()
    libkda.recurrent_kda(**tensors, **BOUNDED, ran=ran)
    assert ran.precision == "fp32" and ran.chunks == 0
    ran = Ran()
    pool = torch.zeros(2, CASE.HV, CASE.K, CASE.V)
    libkda.update_pool(pool, **tensors, options=Options(**BOUNDED), ran=ran)
    assert ran.chunks == 2 * CASE.HV * 2
    state = libkda.StreamingState(2, CASE.HV, CASE.K, CASE.V, precision="fp32", **BOUNDED)
    ran = Ran()
    libkda.decode(state, **tensors, ran=ran)
    assert ran.backend == "cpu" and ran.windows > 0


def test_gradients_and_compile() -> None:
    torch._dynamo.reset()
    grown = {name: x.requires_grad_() for name, x in CASE.make().items()}
    ran = Ran()

    def step(tensors: dict[str, Any], ran: Ran | None) -> Tensor:
        return libkda.chunk_kda(**tensors, **BOUNDED, ran=ran)[0].square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = [
        torch.autograd.grad(function(grown, told), list(grown.values()))
        for function, told in ((step, None), (step, Ran()), (compiled, ran))
    ]
    for gradients in zip(*results, strict=True):
        assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])
    assert ran.chunks == 2 * CASE.HV * 2
