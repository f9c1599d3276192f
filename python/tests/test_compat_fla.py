"""libkda.compat.fla: flash-linear-attention's calls give the recurrence."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import libkda
from libkda.compat import fla
from naive import Case, attention, error, gates

# The parameters of FLA 0.6 that may be given by position, in its order.
CHUNK = [
    "q",
    "k",
    "v",
    "g",
    "beta",
    "scale",
    "initial_state",
    "output_final_state",
    "use_qk_l2norm_in_kernel",
    "use_gate_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "safe_gate",
    "lower_bound",
    "disable_recompute",
    "return_intermediate_states",
    "state_v_first",
    "cu_seqlens",
    "cu_seqlens_cpu",
    "cp_context",
    "use_graph",
    "max_num_seqs",
]
RECURRENT = [
    "q",
    "k",
    "v",
    "g",
    "beta",
    "A_log",
    "dt_bias",
    "scale",
    "initial_state",
    "output_final_state",
    "use_qk_l2norm_in_kernel",
    "use_gate_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "lower_bound",
    "state_v_first",
    "cu_seqlens",
]
FUNCTIONS: dict[str, Any] = {"chunk": fla.chunk_kda, "recurrent": fla.fused_recurrent_kda}
EVERY_FUNCTION = pytest.mark.parametrize("name", FUNCTIONS)
CASE = Case(options={"gate": "softplus"}, dtype=torch.float32, T=70, has_state=True)


def given(tensors: dict[str, Any]) -> dict[str, Any]:
    """As FLA's layer stores them: dt_bias flat."""
    return {**tensors, "dt_bias": tensors["dt_bias"].flatten()}


def true(tensors: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    return attention(**{name: x.double() for name, x in tensors.items()}, **options)


@pytest.mark.parametrize(("name", "names"), [("chunk", CHUNK), ("recurrent", RECURRENT)])
def test_parameters_have_their_order(name: str, names: list[str]) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == names


@EVERY_FUNCTION
@pytest.mark.parametrize("bound", [None, -5.0])
def test_everything_in_the_kernel(name: str, bound: float | None) -> None:
    tensors = CASE.make()
    turned = {**given(tensors), "initial_state": tensors["initial_state"].mT.contiguous()}
    turned["beta"] = tensors["beta"].logit()
    o, state = FUNCTIONS[name](
        **turned,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=True,
        lower_bound=bound,
        state_v_first=True,
    )
    gate = "softplus" if bound is None else "bounded"
    true_o, true_state = true(
        {**tensors, "beta": tensors["beta"] * 2}, gate=gate, lower_bound=bound, norm="rsqrt"
    )
    assert error(o, true_o) <= 2e-6
    assert error(state.mT, true_state) <= 2e-6


@EVERY_FUNCTION
def test_a_gate_that_is_given_is_taken_as_it_is(name: str) -> None:
    tensors = Case(dtype=torch.float32).make()
    ignored = torch.randn(4)
    o, state = FUNCTIONS[name](**tensors, A_log=ignored, lower_bound=-3.0, scale=0.5)
    assert state is None
    assert error(o, true(tensors, scale=0.5)[0]) <= 2e-6


def test_a_bound_needs_no_A_log() -> None:
    tensors = CASE.make()
    del tensors["A_log"]
    o, _ = fla.chunk_kda(**given(tensors), use_gate_in_kernel=True, lower_bound=-5.0)
    assert error(o, true(tensors, gate="bounded", lower_bound=-5.0)[0]) <= 2e-6


def test_gradients_reach_the_flat_bias() -> None:
    tensors = {name: x.requires_grad_() for name, x in CASE.make().items()}
    fla.chunk_kda(**given(tensors), use_gate_in_kernel=True, chunk_size=64)[0].sum().backward()
    ours = {name: x.requires_grad_() for name, x in CASE.make().items()}
    libkda.chunk_kda(**ours, gate="softplus", chunk=64)[0].sum().backward()
    for name, x in tensors.items():
        assert x.grad is not None and ours[name].grad is not None
        assert torch.equal(x.grad, ours[name].grad), name


@EVERY_FUNCTION
def test_packed_sequences(name: str) -> None:
    case = Case(B=1, T=50, dtype=torch.float32)
    tensors = case.make()
    o, state = FUNCTIONS[name](
        **tensors, cu_seqlens=torch.tensor([0, 20, 50]), output_final_state=True
    )
    second = {n: x[:, 20:] for n, x in tensors.items()}
    alone, alone_state = FUNCTIONS[name](**second, output_final_state=True)
    assert torch.equal(o[:, 20:], alone)
    assert torch.equal(state[1:], alone_state)


BAD: dict[str, dict[str, Any]] = {
    "return_intermediate_states": {"return_intermediate_states": True},
    "cp_context": {"cp_context": object()},
    "use_graph": {"use_graph": True},
    "lower_bound": {"safe_gate": True, "use_gate_in_kernel": True},
    "chunk_size": {"chunk_size": 128},
    "A_log": {"A_log": torch.zeros(3), "use_gate_in_kernel": True},
    "dt_bias": {"dt_bias": torch.zeros(4), "use_gate_in_kernel": True},
    "initial_state": {"initial_state": torch.zeros(1, 4, 16, 24)},
    "transpose_state_layout": {"transpose_state_layout": True, "state_v_first": True},
    "neg_eigval": {"allow_neg_eigval": True},
}


@pytest.mark.parametrize("argument", BAD)
def test_refusals(argument: str) -> None:
    tensors = given(CASE.make())
    with pytest.raises(RuntimeError, match=rf"\A{argument}: .+; accepted: "):
        fla.chunk_kda(**{**tensors, **BAD[argument]})


def test_old_and_unknown_names() -> None:
    tensors = Case(dtype=torch.float32).make()
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        _, state = fla.chunk_kda(**tensors, transpose_state_layout=True, output_final_state=True)
    assert state is not None and state.shape == (2, 4, 24, 16)
    with pytest.raises(TypeError, match="head_first"):
        fla.chunk_kda(**tensors, head_first=True)  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match=r"\AA_log: absent; accepted: "):
        fla.fused_recurrent_kda(**tensors, use_gate_in_kernel=True)


@pytest.mark.parametrize("function", [fla.naive_recurrent_kda, fla.naive_chunk_kda])
def test_naive_forms(function: Any) -> None:
    case = Case(dtype=torch.bfloat16, T=70, has_state=True)
    tensors = case.make()
    true_o, true_state = true(tensors, scale=0.2)
    names = list(inspect.signature(function).parameters)
    assert names[:8] == [*CHUNK[:8]]
    o, state = function(*(tensors[n] for n in CHUNK[:5]), 0.2, tensors["initial_state"], True)
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert error(o, true_o) <= 2**-8  # rounded once
    assert error(state, true_state) <= 2e-6
    assert function(*(tensors[n] for n in CHUNK[:5]))[1] is None


def test_gates() -> None:
    tensors = Case(options={"gate": "softplus"}, dtype=torch.float32).make()
    g, A_log, dt_bias = tensors["g"], tensors["A_log"], tensors["dt_bias"]
    assert torch.equal(
        fla.fused_kda_gate(g, A_log.view(1, 1, -1, 1), dt_bias.flatten()),
        fla.naive_kda_gate(g, A_log, dt_bias),
    )
    wanted = {
        "softplus": fla.naive_kda_gate(g.bfloat16(), A_log, dt_bias),
        "bounded": fla.naive_kda_lowerbound_gate(g.bfloat16(), A_log, dt_bias),
    }
    for gate, ours in wanted.items():
        exact: Any = [x.double() for x in (g.bfloat16(), A_log, dt_bias)]
        assert error(ours, gates(exact[0], exact[1], exact[2], gate, -5.0)) <= 1e-6
        assert ours.dtype == torch.float32
    short = fla.naive_kda_lowerbound_gate(g, None, None, -3.0, torch.bfloat16)
    assert torch.equal(short, (-3 * g.sigmoid()).bfloat16())
    with pytest.raises(RuntimeError, match=r"A_log: absent; accepted: "):
        fla.fused_kda_gate(g)
