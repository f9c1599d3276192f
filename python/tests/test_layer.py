"""The layer: chunks and kernels against the recurrence, states, padding, checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from libkda import StreamingState
from libkda.layer import KDAConfig, build_kda
from naive import error

CONFIG = KDAConfig(
    hidden_size=24, num_heads=2, head_dim=8, num_v_heads=4, v_head_dim=6, backend="recurrent"
)
FORMS: dict[str, KDAConfig] = {
    "bounded": CONFIG,
    "full_rank": replace(CONFIG, kda_full_rank_output_gate=True, qk_norm="normalize"),
    "softplus": replace(CONFIG, gate_lower_bound=None, neg_eigval=True, output_gate_bias=True),
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def pair(config: KDAConfig, backend: Any, dtype: torch.dtype = torch.float64, **but: Any) -> Any:
    """The recurrence and another layer, with the same parameters."""
    torch.manual_seed(0)
    one = build_kda(config).to(dtype)
    other = build_kda(replace(config, backend=backend, **but)).to(dtype)
    other.load_state_dict(one.state_dict())
    return one, other


def inputs(T: int, dtype: torch.dtype = torch.float64, B: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(B, T, 24, generator=generator, dtype=torch.float64).to(dtype)


def gradients(layer: Any, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    layer(x).square().sum().backward()
    return [x.grad, *(p.grad for p in layer.parameters())]


@EVERY_FORM
@pytest.mark.parametrize("backend", ["chunkwise", "fused"])
@pytest.mark.parametrize("chunk", [1, 2, 4, 8])
def test_chunks_are_the_recurrence(form: str, backend: str, chunk: int) -> None:
    one, other = pair(FORMS[form], backend, chunk_size=chunk)
    x = inputs(19)  # not a multiple
    assert error(other(x), one(x)) <= 2e-11
    for a, b in zip(gradients(other, x), gradients(one, x), strict=True):
        assert error(a, b) <= 2e-11


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_dtypes(dtype: torch.dtype, bound: float) -> None:
    # bfloat16: linear layers, convolutions and norms each round to 8 bits.
    one, other = pair(CONFIG, "fused", dtype)
    x = inputs(50, dtype)
    y = other(x)
    assert y.dtype == dtype
    assert other.A_log.dtype == other.dt_bias.dtype == torch.float32
    assert error(y, one.double()(x.double())) <= bound


def test_earlier_outputs_do_not_see_later_tokens() -> None:
    _, layer = pair(CONFIG, "fused", torch.float32)
    x = inputs(70, torch.float32)
    changed = x.clone()
    changed[:, 45:] += 1
    # Linear layers of torch may sum in another order for another length, so T stays.
    assert torch.equal(layer(x)[:, :45], layer(changed)[:, :45])


@EVERY_FORM
@pytest.mark.parametrize("backend", ["recurrent", "chunkwise", "fused", "fused with plain states"])
def test_states(form: str, backend: str) -> None:
    backend, _, plain = backend.partition(" ")
    one, layer = pair(FORMS[form], backend, streaming=not plain)
    x = inputs(40 if backend == "fused" else 12)
    whole = one(x)
    state = layer.new_state(2)
    assert isinstance(state.recurrent, StreamingState) == (backend == "fused" and not plain)
    with torch.no_grad():
        steps = [layer(x[:, :7], state=state)]
        steps += [layer(x[:, t : t + 1], state=state) for t in range(7, x.shape[1])]
    assert error(torch.cat(steps, 1), whole) <= 2e-11


def test_gradients_flow_through_a_plain_state() -> None:
    from libkda.layer import KDAState

    one, layer = pair(CONFIG, "fused")
    x, expected = inputs(40), gradients(one, inputs(40))
    state, leaf = KDAState(), x.clone().requires_grad_()
    y = torch.cat([layer(leaf[:, :16], state=state), layer(leaf[:, 16:], state=state)], 1)
    y.square().sum().backward()
    assert leaf.grad is not None
    assert error(leaf.grad, expected[0]) <= 2e-11


@pytest.mark.parametrize("backend", ["recurrent", "chunkwise", "fused"])
def test_padding_does_nothing(backend: str) -> None:
    one, layer = pair(CONFIG, backend)
    x = inputs(20)
    mask = torch.ones(2, 20)
    mask[0, :7] = 0  # padded on the left
    mask[1, 12:] = 0  # and on the right
    state = layer.new_state(2)
    with torch.no_grad():
        y = layer(x, state=state, attention_mask=mask)
        after = layer(x, state=state)
    for row, kept in ((0, slice(7, 20)), (1, slice(0, 12))):
        alone = one(torch.cat([x[row : row + 1, kept], x[row : row + 1]], 1))[0]
        tokens = kept.stop - kept.start
        assert error(y[row, kept], alone[:tokens]) <= 2e-11
        assert error(after[row], alone[tokens:]) <= 2e-11
        assert not y[row][mask[row] == 0].any()


def test_checkpoints_of_fla_load() -> None:
    layer = build_kda(replace(CONFIG, output_gate_bias=True, backend="fused"))
    names = {"f_a_proj": "f_proj.0", "f_b_proj": "f_proj.1"}
    names |= {"g_a_proj": "g_proj.0", "g_b_proj": "g_proj.1"}
    stored = {}
    for name, tensor in layer.state_dict().items():
        module, _, part = name.partition(".")
        stored[f"{names.get(module, module)}.{part}" if part else name] = tensor + 0.5
    # Stored for more heads than there are, and in four dimensions.
    stored["A_log"] = torch.cat([stored["A_log"], torch.zeros(3)]).view(1, 1, -1, 1)
    before = dict(stored)
    other = build_kda(replace(CONFIG, output_gate_bias=True, backend="chunkwise"))
    assert other.load_state_dict(dict(stored)).missing_keys == []
    for name, tensor in layer.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor + 0.5), name
    assert before.keys() == stored.keys()


def test_initial_values() -> None:
    torch.manual_seed(1)
    bounded, softplus = build_kda(CONFIG), build_kda(FORMS["softplus"])
    assert not bounded.A_log.any()
    assert (softplus.A_log.exp() >= 1).all() and (softplus.A_log.exp() <= 16).all()
    scales = torch.nn.functional.softplus(softplus.dt_bias)
    assert (scales >= 0.99e-3).all() and (scales <= 1.01e-1).all()


def test_compiled() -> None:
    torch._dynamo.reset()
    layer = build_kda(replace(CONFIG, backend="fused"))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for T in (20, 33):
        x = inputs(T, torch.float32)
        eager = gradients(layer, x)
        layer.zero_grad(set_to_none=True)
        for a, b in zip(gradients(compiled, x), eager, strict=True):
            assert torch.equal(a, b)
        layer.zero_grad(set_to_none=True)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"num_v_heads: 3; accepted: "):
        build_kda(replace(CONFIG, num_v_heads=3))
    with pytest.raises(ValueError, match=r"backend: 'triton'; accepted: "):
        build_kda(replace(CONFIG, backend="triton"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"attention_mask: .+; accepted: "):
        build_kda(CONFIG)(inputs(5, torch.float32), attention_mask=torch.ones(2, 4))
