"""libkda.compat.attn_gym: attn-gym's calls give the recurrence."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from libkda.compat import attn_gym
from naive import Case, attention, error

CASE = Case(dtype=torch.float32, H=4, HV=4, T=40, has_state=True)
SLOTS = torch.tensor([3, 0, 1], dtype=torch.int32)  # the second is padding

POSITIONAL = {
    "chunk_kda": ["q", "k", "v", "gate", "beta", "initial_state"],
    "paged_chunk_kda": ["q", "k", "v", "gate", "beta", "state_cache", "state_indices"],
    "recurrent_kda": ["q", "k", "v", "gate", "beta", "initial_state"],
    "recurrent_kda_decode": [
        *("packed_qkv", "raw_gate", "raw_beta", "A_log", "dt_bias", "state_cache"),
        "state_indices",
    ],
    "bound_gate": ["raw_gate", "A_log", "dt_bias"],
}


def theirs(case: Case = CASE) -> dict[str, Any]:
    tensors = case.make()
    tensors["gate"] = tensors.pop("g")
    if "initial_state" in tensors:
        tensors["initial_state"] = tensors["initial_state"].mT.contiguous()
    return tensors


def true(tensors: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    exact = {name: x.double() for name, x in tensors.items()}
    exact["g"] = exact.pop("gate")
    if "initial_state" in exact:
        exact["initial_state"] = exact["initial_state"].mT
    o, state = attention(**exact, **options)
    return o, state.mT


@pytest.mark.parametrize("name", POSITIONAL)
def test_parameters_have_their_order(name: str) -> None:
    parameters = inspect.signature(getattr(attn_gym, name)).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[name]


@pytest.mark.parametrize("name", ["chunk_kda", "recurrent_kda"])
@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_outputs_and_states(name: str, impl: str) -> None:
    tensors = theirs()
    o, state = getattr(attn_gym, name)(**tensors, scale=0.3, output_final_state=True, impl=impl)
    true_o, true_state = true(tensors, scale=0.3)
    assert error(o, true_o) <= 2e-6
    assert error(state, true_state) <= 2e-6


@pytest.mark.parametrize("name", ["paged_chunk_kda", "recurrent_kda"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_pools(name: str, dtype: torch.dtype, bound: float) -> None:
    tensors = theirs(CASE.but(B=3, has_state=False))
    generator = torch.Generator().manual_seed(8)
    pool = torch.randn(5, 4, 24, 16, generator=generator).to(dtype)
    before = pool.clone()
    starts = torch.tensor([True, True, False])
    more: dict[str, Any] = {"state_indices": SLOTS, "has_initial_state": starts}
    if name == "recurrent_kda":
        o, none = attn_gym.recurrent_kda(**tensors, initial_state=pool, **more)
        assert none is None
    else:
        o = attn_gym.paged_chunk_kda(**tensors, state_cache=pool, **more)
    initial = torch.stack([before[3], before[0], torch.zeros_like(before[0])]).float()
    true_o, true_state = true({**tensors, "initial_state": initial})
    assert error(o[[0, 2]], true_o[[0, 2]]) <= 2e-6  # bfloat16 is storage only
    assert not o[1].any()
    assert error(pool[[3, 1]], true_state[[0, 2]]) <= bound  # 2^-9 and a rounding's spread
    assert torch.equal(pool[[0, 2, 4]], before[[0, 2, 4]])


@pytest.mark.parametrize("transform", ["bounded", "softplus"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_decode(transform: Any, dtype: torch.dtype, bound: float) -> None:
    options: dict[str, Any] = {"gate": transform, "norm": "rsqrt", "sigmoid_beta": True}
    tensors = theirs(CASE.but(B=3, T=1, options=options, has_state=False))
    packed = torch.cat([tensors[n].flatten(1) for n in ("q", "k", "v")], 1)
    pool = torch.randn(5, 4, 24, 16).to(dtype)
    before, out = pool.clone(), torch.empty(1, 3, 4, 24)
    o = attn_gym.recurrent_kda_decode(
        packed,
        tensors["gate"].transpose(0, 1),
        tensors["beta"].transpose(0, 1),
        tensors["A_log"],
        tensors["dt_bias"],
        pool,
        SLOTS,
        gate_transform=transform,
        out=out,
    )
    assert o is out
    initial = before[[3, 0, 1]].float()
    bounds = {"lower_bound": -5.0} if transform == "bounded" else {}
    true_o, true_state = true({**tensors, "initial_state": initial}, **options, **bounds)
    assert error(o[0, [0, 2]], true_o[[0, 2], 0]) <= 2e-6
    assert not o[0, 1].any()
    assert error(pool[[3, 1]], true_state[[0, 2]]) <= bound
    assert torch.equal(pool[[0, 2, 4]], before[[0, 2, 4]])


def test_bound_gate_then_chunk() -> None:
    case = CASE.but(options={"gate": "bounded"}, has_state=False)
    tensors = {name: x.requires_grad_() for name, x in case.make().items()}
    raw, A_log, dt_bias = (tensors.pop(n) for n in ("g", "A_log", "dt_bias"))
    gate = attn_gym.bound_gate(raw, A_log, dt_bias, lower_bound=-4.0)
    o, _ = attn_gym.chunk_kda(gate=gate, **tensors)
    exact = {n: x.double() for n, x in (*tensors.items(), ("g", raw))}
    expected, _ = attention(
        **exact, A_log=A_log.double(), dt_bias=dt_bias.double(), gate="bounded", lower_bound=-4.0
    )
    assert error(o, expected) <= 2e-6
    o.sum().backward()
    assert raw.grad is not None and raw.grad.any()


BAD: dict[str, Any] = {
    "kernel_options": lambda t: attn_gym.chunk_kda(**t, kernel_options={"backend": "cudnn"}),
    "impl": lambda t: attn_gym.chunk_kda(**t, impl="triton"),
    "has_initial_state": lambda t: attn_gym.recurrent_kda(**t, has_initial_state=torch.ones(2)),
    "output_final_state": lambda t: attn_gym.recurrent_kda(
        **t, state_indices=SLOTS[:2], output_final_state=True
    ),
    "initial_state": lambda t: attn_gym.recurrent_kda(
        **{**t, "initial_state": None}, state_indices=SLOTS[:2]
    ),
    "slots": lambda t: attn_gym.recurrent_kda(**t, state_indices=SLOTS[:2]),
    "state_indices": lambda t: attn_gym.recurrent_kda(
        **{**t, "initial_state": t["initial_state"].bfloat16()}, state_indices=SLOTS[:2]
    ),
}


@pytest.mark.parametrize("argument", BAD)
def test_refusals(argument: str) -> None:
    with pytest.raises(RuntimeError, match=rf"\A{argument}.*: .+; accepted: "):
        BAD[argument](theirs())
    with pytest.raises(TypeError):
        attn_gym.chunk_kda(**theirs(), chunk_size=64)  # type: ignore[call-arg]


def test_replay_states_are_refused() -> None:
    tensors = theirs()
    pool = tensors.pop("initial_state")
    with pytest.raises(RuntimeError, match=r"\Areplay_state: given; accepted: "):
        attn_gym.paged_chunk_kda(
            **tensors, state_cache=pool, state_indices=SLOTS[:2], replay_state=()
        )
