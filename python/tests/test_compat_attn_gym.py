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


def replay_state(pool: Tensor, dtype: torch.dtype) -> attn_gym.ReplayState:
    rows = (len(pool), 64, 4)
    wide = [torch.full((*rows, n), float("nan"), dtype=dtype) for n in (16, 16, 24)]
    count = torch.full((len(pool), 1), 7, dtype=torch.int32)
    return attn_gym.ReplayState(
        wide[0], wide[1], wide[2], torch.zeros(*rows, 16), torch.zeros(rows), count
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cuts", [(1,) * 150, (70, 1, 1, 56, 1, 1, 20), (63, 1, 1, 64, 21), (150,)])
def test_replay_states_give_the_bits_of_one_call(cuts: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = theirs(CASE.but(T=150, B=2, has_state=False))
    for name in ("q", "k", "v"):
        tensors[name] = tensors[name].to(dtype)
    whole, _ = attn_gym.chunk_kda(**tensors)
    at = sum(cuts) // 64 * 64
    _, state = attn_gym.chunk_kda(
        **{n: x[:, :at] for n, x in tensors.items()}, output_final_state=True
    )
    pool = torch.randn(4, 4, 24, 16)  # two slots are another's, and padding
    before = pool.clone()
    replay = replay_state(pool, dtype)
    slots, begin, outputs = torch.tensor([3, 0, 1], dtype=torch.int32), 0, []
    for cut in cuts:
        piece = {n: x[:, begin : begin + cut] for n, x in tensors.items()}
        piece = {n: torch.stack([x[0], x[1], x[1]]) for n, x in piece.items()}
        starts = torch.tensor([begin > 0] * 3)
        outputs.append(
            attn_gym.paged_chunk_kda(
                **piece,
                state_cache=pool,
                state_indices=slots,
                has_initial_state=starts if begin == 0 else None,
                replay_state=replay,
            )
        )
        begin += cut
    o = torch.cat(outputs, 1)
    assert torch.equal(o[[0, 2]], whole) and not o[1].any()
    assert state is not None and torch.equal(pool[[3, 1]], state)
    assert torch.equal(pool[[0, 2]], before[[0, 2]])
    assert replay.count.flatten().tolist() == [7, 150 % 64, 7, 150 % 64]
    assert torch.equal(replay.q[3, : 150 % 64], tensors["q"][0, at:])
    assert replay.q[[0, 2]].isnan().all()


def test_replay_states_of_packed_sequences() -> None:
    tensors = theirs(CASE.but(T=160, B=1, has_state=False))
    pool = torch.zeros(4, 4, 24, 16)
    replay = replay_state(pool, torch.float32)
    replay.count.zero_()
    bounds = torch.tensor([0, 70, 70, 75], dtype=torch.int32)
    o = attn_gym.paged_chunk_kda(
        **tensors,
        state_cache=pool,
        state_indices=torch.tensor([2, 1, 3], dtype=torch.int32),
        cu_seqlens=bounds,
        replay_state=replay,
    )
    for begin, end in ((0, 70), (70, 75)):
        alone, _ = attn_gym.chunk_kda(**{n: x[:, begin:end] for n, x in tensors.items()})
        assert torch.equal(o[:, begin:end], alone)
    assert not o[:, 75:].any()
    assert replay.count.flatten().tolist() == [0, 0, 6, 5]


BAD_REPLAY: dict[str, Any] = {
    "replay_state": {"replay_state": lambda r: r._replace(k=r.k[:, :32])},
    "state_indices": {"state_indices": lambda _: torch.tensor([1, 4])},
    "requires_grad": {"q": lambda _: torch.zeros(2, 1, 4, 16, requires_grad=True)},
}


@pytest.mark.parametrize("argument", BAD_REPLAY)
def test_refusals_with_replay_states(argument: str) -> None:
    pool = torch.zeros(4, 4, 24, 16)
    replay = replay_state(pool, torch.float32)
    call: Any = theirs(CASE.but(T=1, has_state=False))
    call |= {"state_cache": pool, "state_indices": torch.tensor([1, 2]), "replay_state": replay}
    call |= {name: make(replay) for name, make in BAD_REPLAY[argument].items()}
    with pytest.raises(RuntimeError, match=rf"\A{argument}.*: .+; accepted: "):
        attn_gym.paged_chunk_kda(**call)
    assert not pool.any() and replay.q.isnan().all()
