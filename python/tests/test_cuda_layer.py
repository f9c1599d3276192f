"""A layer's step in one launch on CUDA tensors; skips where there is no GPU or no build for one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import libkda
from forms import BOUNDED
from libkda import CudaConvolution, CudaLayer, Ran, StreamingState, decode, update_conv_pool
from libkda.layer import FusedKDAChunkwise, KDAConfig, build_kda

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

H, SLOTS = 2, 7
BF16, F32 = torch.bfloat16, torch.float32


def normal(seed: int, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to("cuda", dtype)


def states() -> StreamingState:
    return StreamingState(SLOTS, H, 128, 128, precision="mixed", device="cuda", **BOUNDED)


def token(seed: int, *rows: int) -> dict[str, Any]:
    """Of each sequence, as it comes from the projections."""
    drawn = {n: normal(seed + i, *rows, H, 128) for i, n in enumerate(("q", "k", "v", "g"))}
    raw = {"A_log": normal(1, H, dtype=F32), "dt_bias": normal(2, H, 128, dtype=F32)}
    return {**drawn, "beta": normal(seed + 4, *rows, H), **raw}


def around(width: int, bias: bool, dtype: torch.dtype) -> CudaLayer:
    def part(seed: int) -> CudaConvolution:
        return CudaConvolution(
            normal(seed, H * 128, width, dtype=dtype),
            torch.zeros(SLOTS, H * 128, width - 1, device="cuda", dtype=dtype),
            normal(seed + 9, H * 128, dtype=dtype) if bias else None,
        )

    return CudaLayer(part(11), part(12), part(13), normal(14, 128, dtype=dtype), eps=1e-3)


def separately(
    state: StreamingState, tensors: dict[str, Any], layer: CudaLayer, **call: Any
) -> Tensor:
    mixed = {}
    for name, part in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
        x = tensors[name]
        y = update_conv_pool(
            part.state,
            x.flatten(-2),
            part.weight,
            part.bias,
            activation=layer.activation,
            **call,
        )
        mixed[name] = y.view_as(x)
    o = decode(state, **{**tensors, **mixed}, **call)
    return libkda.gated_norm(o, layer.norm_weight, layer.gate, eps=layer.eps)


def apart(layer: CudaLayer) -> CudaLayer:
    """The same with convolution states of its own."""
    q, k, v = (replace(part, state=part.state.clone()) for part in (layer.q, layer.k, layer.v))
    return replace(layer, q=q, k=k, v=v)


FORMS: dict[str, dict[str, Any]] = {
    "bf16": {"width": 4, "bias": False, "dtype": BF16},
    "fp32 around": {"width": 3, "bias": True, "dtype": F32},
}


def expect_same(one: StreamingState, other: StreamingState, layers: tuple[CudaLayer, ...]) -> None:
    for slot in range(SLOTS):
        assert torch.equal(one.save(slot), other.save(slot)), slot
    for a, b in zip(*((x.q, x.k, x.v) for x in layers), strict=True):
        assert torch.equal(a.state, b.state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_the_bits_of_separate_calls(form: str, where: str) -> None:
    layer, ran = around(**FORMS[form]), Ran()
    ours, theirs = (layer, states()), (apart(layer), states())
    for t in range(40):
        tensors, gate = token(100 * t, 5, 1), normal(100 * t + 50, 5, 1, H, 128)
        slots = (torch.randperm(SLOTS, generator=torch.Generator().manual_seed(t))[:5]).to(where)
        slots[t % 5] = -1  # padding
        call: Any = {"slots": slots, "has_initial_state": torch.arange(5).to(where) != t % 4}
        o = decode(ours[1], **tensors, **call, layer=replace(ours[0], gate=gate), ran=ran)
        assert torch.equal(o, separately(theirs[1], tensors, replace(theirs[0], gate=gate), **call))
    assert o.any() and ran.backend == "cuda"
    expect_same(ours[1], theirs[1], (ours[0], theirs[0]))
    ours[1].check()


def test_a_prompt_then_packed_tokens() -> None:
    layer = replace(around(4, False, BF16), norm_weight=None, activation="none")
    ours, theirs = (layer, states()), (apart(layer), states())
    prompt: Any = {"slots": torch.tensor([2, 4, 1])}
    for one, state in (ours, theirs):
        separately(state, token(7, 3, 45), one, **prompt)
    for ends in ([0, 1, 1, 2], [0, 0, 1, 2], [0, 1, 2, 3]):
        tensors, call = token(90, 1, 3), {**prompt, "cu_seqlens": torch.tensor(ends)}
        o = decode(ours[1], **tensors, **call, layer=ours[0])
        assert torch.equal(o, separately(theirs[1], tensors, theirs[0], **call))
    expect_same(ours[1], theirs[1], (ours[0], theirs[0]))


def test_refusals() -> None:
    layer, state, tensors = around(4, False, BF16), states(), token(5, SLOTS, 1)
    wide, relu = around(5, False, BF16), cast(Any, "relu")
    bad: dict[str, dict[str, Any]] = {
        r"layer: given with a draft": {"draft": True},
        r"layer: given with checkpoints": {
            "checkpoints": [(0, 1, 6)],
            "slots": torch.arange(SLOTS),
        },
        r"layer: given with 2 tokens": token(5, SLOTS, 2),
        r"layer\.k\.weight: W = 5": {"layer": replace(layer, k=wide.k)},
        r"layer\.v\.state: ": {
            "layer": replace(layer, v=replace(layer.v, state=layer.v.state[1:]))
        },
        r"layer\.k\.state: ": {"layer": replace(layer, k=layer.q)},
        r"layer\.gate: ": {"layer": replace(layer, gate=tensors["v"][1:])},
        r"layer\.q\.bias: ": {"layer": replace(layer, q=replace(layer.q, bias=layer.norm_weight))},
        r"layer\.activation: ": {"layer": replace(layer, activation=relu)},
        r"layer\.eps: 0": {"layer": replace(layer, eps=0.0)},
        r"cu_seqlens: on cuda:0 with layer": {
            **token(5, 1, 2),
            "cu_seqlens": torch.tensor([0, 1, 2], device="cuda"),
        },
    }
    for message, changes in bad.items():
        with pytest.raises(RuntimeError, match=rf"\A{message}.*; accepted: "):
            decode(state, **{**tensors, "layer": layer, **changes})
    assert [state.tokens(slot) for slot in range(SLOTS)] == [0] * SLOTS
    assert not layer.q.state.any()


def test_the_layer_steps_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = build_kda(KDAConfig(hidden_size=64, num_heads=H, head_dim=128)).to("cuda", BF16)
    x, count = normal(3, 2, 45, 64), 0

    def spy(*args: Any, **more: Any) -> Tensor:
        nonlocal count
        count += more.get("layer") is not None
        return decode(*args, **more)

    cuts = (0, 9, *range(10, 40), 42, 43, 45)

    def run(step: Any) -> tuple[Tensor, Any]:
        state = layer.new_state(2)
        with torch.no_grad():
            pieces = [step(x[:, a:b], state=state) for a, b in itertools.pairwise(cuts)]
        return torch.cat(pieces, 1), state

    def bits(state: Any) -> list[Tensor]:
        return [state.recurrent.save(0), state.recurrent.save(1), *state.conv]

    torch._dynamo.reset()
    compiled, _ = run(torch.compile(layer, fullgraph=True, backend="aot_eager"))
    monkeypatch.setattr("libkda.layer.decode", spy)
    y, state = run(layer)
    assert count == 30 + 1
    monkeypatch.setattr(FusedKDAChunkwise, "_cuda_layer", lambda *args: None)
    expected, separate = run(layer)
    assert count == 31 and torch.equal(y, expected) and torch.equal(compiled, expected)
    for a, b in zip(bits(state), bits(separate), strict=True):
        assert torch.equal(a, b)


def test_a_graph_of_the_layers_step() -> None:
    torch.manual_seed(0)
    layer = build_kda(KDAConfig(hidden_size=64, num_heads=H, head_dim=128)).to("cuda", BF16)
    x = normal(4, 2, 50, 64)
    with torch.no_grad():
        states = [layer.new_state(2), layer.new_state(2)]
        for state in states:
            layer(x[:, :5], state=state)
            layer(x[:, 5:6], state=state)
        row = torch.empty_like(x[:, :1])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(row, state=states[0])
        for t in range(6, 50):
            row.copy_(x[:, t : t + 1])
            graph.replay()
            assert torch.equal(y, layer(x[:, t : t + 1], state=states[1])), t
