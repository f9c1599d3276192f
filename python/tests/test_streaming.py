"""One answer: prefill, decode, drafts, snapshots and pools give the bits of one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import libkda
from forms import BOUNDED, FORMS, call
from libkda import Options, StreamingState, decode
from naive import Case

PER_TOKEN = ("q", "k", "v", "g", "beta")
T = 75
STREAMED = [form for form, case in FORMS.items() if "scale" not in case.options]


def stream_case(form: str, dtype: torch.dtype) -> Case:
    return FORMS[form].but(B=1, T=T, dtype=dtype, has_state=False)


def states(case: Case, slots: int = 1, max_draft: int = 0) -> StreamingState:
    precision: Any = {torch.bfloat16: "mixed", torch.float32: "fp32", torch.float64: "exact64"}
    options: dict[str, Any] = {**case.options, "op": case.op}
    return StreamingState(
        slots,
        case.HV,
        case.K,
        case.V,
        precision=precision[case.dtype],
        max_draft=max_draft,
        **options,
    )


def piece(tensors: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    return {n: x[:, begin:end] if n in PER_TOKEN else x for n, x in tensors.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", STREAMED)
def test_token_by_token(form: str, dtype: torch.dtype) -> None:
    case = stream_case(form, dtype)
    tensors = case.make()
    whole, final = call(case, tensors, output_final_state=True)
    state = states(case)
    o = torch.cat([decode(state, **piece(tensors, t, t + 1)) for t in range(T)], 1)
    assert torch.equal(o, whole)
    assert state.tokens() == T
    assert torch.equal(state.plain(), final)


def test_a_prefill_then_tokens_with_any_number_of_threads() -> None:
    case = stream_case("bounded", torch.bfloat16)
    tensors = case.make()
    whole, _ = call(case, tensors)
    state, threads = states(case), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        o = [decode(state, **piece(tensors, 0, 50))]
        torch.set_num_threads(3)
        o += [decode(state, **piece(tensors, t, t + 1)) for t in range(50, T)]
        again, _ = call(case, tensors)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat(o, 1), whole)
    assert torch.equal(again, whole)


def test_drafts_that_are_rejected_never_happened() -> None:
    case = stream_case("bounded", torch.float32)
    tensors = case.make()
    whole, _ = call(case, tensors)
    wrong = {n: x + 0.25 if n in PER_TOKEN else x for n, x in tensors.items()}
    state = states(case, max_draft=4)
    t = 0
    while t < T:
        right = min(2, T - t)
        draft: dict[str, Any] = {
            n: torch.cat([x[:, t : t + right], wrong[n][:, :2]], 1) if n in PER_TOKEN else x
            for n, x in tensors.items()
        }
        o = decode(state, **draft, draft=True)
        assert torch.equal(o[:, :right], whole[:, t : t + right])
        assert (state.tokens(), state.draft_tokens()) == (t, right + 2)
        state.commit(torch.tensor([right]))
        t += right
    assert state.tokens() == T


def test_snapshots_checkpoints_and_bytes() -> None:
    case = stream_case("softplus", torch.float32)
    tensors = case.make()
    whole, _ = call(case, tensors)
    state = states(case, slots=4)
    decode(state, **piece(tensors, 0, 40), slots=torch.tensor([0]), checkpoints=[(0, 33, 1)])
    state.copy(0, 2)
    state.load(3, state.save(0))
    state.clear(0)
    assert [state.tokens(slot) for slot in range(4)] == [0, 33, 40, 40]
    for slot, begin in ((1, 33), (2, 40), (3, 40)):
        o = decode(state, **piece(tensors, begin, T), slots=torch.tensor([slot], dtype=torch.int32))
        assert torch.equal(o, whole[:, begin:])


def test_a_batch_in_slots_with_padding_and_fresh_starts() -> None:
    case = FORMS["bounded"].but(B=3, T=1, dtype=torch.float32, has_state=False)
    first, second = case.make(), case.but(seed=2).make()
    second.update({name: first[name] for name in ("A_log", "dt_bias")})
    state = states(case, slots=5)
    decode(state, **first, slots=torch.tensor([4, 0, 2]))
    o = decode(
        state,
        **second,
        slots=torch.tensor([4, -1, 2]),
        has_initial_state=torch.tensor([True, True, False]),
    )
    assert not o[1].any()
    assert [state.tokens(slot) for slot in range(5)] == [1, 0, 1, 0, 2]
    two = {n: torch.cat([x, second[n]], 1) if n in PER_TOKEN else x for n, x in first.items()}
    uncut, _ = call(case, two)
    assert torch.equal(o[0], uncut[0, 1:])
    assert torch.equal(o[2], call(case, second)[0][2])


def test_states_are_freed_with_their_object() -> None:
    state = states(stream_case("log", torch.float32))
    handle = state._states.handle  # type: ignore[union-attr]
    del state
    with pytest.raises(RuntimeError, match="states: no streaming states that live; accepted: "):
        torch.ops.kda.states_tokens(handle, 0)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("layout", ["key_first", "value_first"])
def test_a_pool_of_plain_states(recurrent: bool, layout: Any) -> None:
    case = Case(B=2, T=32, options=BOUNDED, dtype=torch.float32)
    tensors = case.make()
    drawn = torch.randn(5, case.HV, case.K, case.V)
    pool = drawn.mT.contiguous() if layout == "value_first" else drawn.clone()
    o = libkda.update_pool(
        pool,
        **tensors,
        options=Options(**BOUNDED),
        slots=torch.tensor([3, 1]),
        state_layout=layout,
        recurrent=recurrent,
    )
    function = libkda.recurrent_kda if recurrent else libkda.chunk_kda
    expected, final = function(
        **tensors,
        **BOUNDED,
        initial_state=drawn[[3, 1]],
        output_final_state=True,
    )
    assert final is not None
    expected_pool = drawn.clone()
    expected_pool[[3, 1]] = final
    assert torch.equal(o, expected)
    assert torch.equal(pool.mT if layout == "value_first" else pool, expected_pool)


def test_a_pool_of_convolution_states() -> None:
    x, weight = torch.randn(2, 9, 6), torch.randn(6, 4)
    y, final = libkda.causal_conv1d(x, weight, output_final_state=True)
    pool = torch.randn(4, 6, 3)
    untouched = pool[[0, 3]].clone()
    slots = torch.tensor([2, 1])
    fresh = torch.zeros(2, dtype=torch.bool)
    o = [libkda.update_conv_pool(pool, x[:, :4], weight, slots=slots, has_initial_state=fresh)]
    o += [libkda.update_conv_pool(pool, x[:, t : t + 1], weight, slots=slots) for t in range(4, 9)]
    assert torch.equal(torch.cat(o, 1), y)
    assert final is not None and torch.equal(pool[[2, 1]], final)
    assert torch.equal(pool[[0, 3]], untouched)


def test_gradients_are_refused() -> None:
    case = stream_case("log", torch.float32)
    tensors = case.make()
    tensors["q"].requires_grad_()
    with pytest.raises(RuntimeError, match="requires_grad: True; accepted: "):
        decode(states(case), **tensors)
    with torch.no_grad():
        decode(states(case), **tensors)
