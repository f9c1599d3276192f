"""The operators on CUDA tensors; skips where there is no GPU or no build for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import forms
import libkda
from forms import BOUNDED, call
from libkda import Options, Ran, StreamingState, decode
from libkda.audit import audit
from libkda.compat import attn_gym, fla, flash_kda
from libkda.layer import KDAConfig, build_kda
from libkda.model import HybridConfig, HybridModel
from naive import Case, error, truth

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

RAW = {"norm": "rsqrt", "sigmoid_beta": True}
CASE = Case(T=75, K=128, V=128, options=BOUNDED, dtype=torch.bfloat16)
FORMS = {
    "bounded": CASE,
    "state": CASE.but(has_state=True),
    "softplus": CASE.but(options={**RAW, "gate": "softplus"}),
    "log": CASE.but(options={}),
}
PER_TOKEN = ("q", "k", "v", "g", "beta")
MIXED = 5e-3  # promised for outputs and states


def make(case: Case, device: str = "cuda") -> dict[str, Any]:
    tensors = case.make()
    for name in ("A_log", "dt_bias", "initial_state"):
        if name in tensors:
            tensors[name] = tensors[name].float()
    return {name: x.to(device) for name, x in tensors.items()}


def piece(tensors: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    return {n: x[:, begin:end] if n in PER_TOKEN else x for n, x in tensors.items()}


def states(case: Case, slots: int = 1, max_draft: int = 0) -> StreamingState:
    sizes = (slots, case.HV, 128, 128)
    return StreamingState(
        *sizes, precision="mixed", max_draft=max_draft, device="cuda", **case.options
    )


@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_states(form: str) -> None:
    case = FORMS[form]
    tensors, ran = make(case), Ran()
    o, state = call(case, tensors, output_final_state=True, ran=ran)
    true_o, true_state = truth(case, make(case, "cpu"))
    assert (o.device.type, ran.backend, ran.precision) == ("cuda", "cuda", "mixed")
    assert ran.chunks == case.B * case.HV * 3
    assert error(o.cpu(), true_o) <= MIXED
    assert error(state.cpu(), true_state) <= MIXED
    on_cpu, _ = call(case, make(case, "cpu"))
    assert error(o.cpu(), on_cpu.double()) <= 2 * MIXED


@pytest.mark.parametrize("form", ["log", "bounded", "scaled", "gdn", "delta", "linear"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_family_with_other_sizes(form: str, dtype: torch.dtype) -> None:
    case = forms.FORMS[form].but(dtype=dtype)
    ran = Ran()
    o, state = call(case, make(case), output_final_state=True, ran=ran)
    true_o, true_state = truth(case, make(case, "cpu"))
    assert ran.backend == "cuda" and o.dtype == dtype
    assert error(o.cpu(), true_o) <= MIXED
    assert error(state.cpu(), true_state) <= MIXED


def test_strided_inputs_and_packed_sequences() -> None:
    tensors = make(CASE.but(B=1, T=150))
    wide = {n: torch.cat([x, x], -1)[..., : x.shape[-1]] for n, x in tensors.items()}
    whole, _ = call(CASE, tensors)
    assert torch.equal(call(CASE, wide)[0], whole)
    bounds = torch.tensor([0, 0, 37, 140])
    results = [
        call(CASE, tensors, cu_seqlens=where, output_final_state=True)
        for where in (bounds, bounds.cuda(), bounds.int().cuda())
    ]
    for o, state in results:
        assert torch.equal(o, results[0][0]) and torch.equal(state, results[0][1])
    o, state = results[0]
    assert not o[:, 140:].any() and not state[0].any()
    for n, (begin, end) in enumerate(((0, 37), (37, 140))):
        alone, final = call(CASE, piece(tensors, begin, end), output_final_state=True)
        assert torch.equal(o[:, begin:end], alone)
        assert torch.equal(state[n + 1 : n + 2], final)
    with pytest.raises(RuntimeError, match=r"cu_seqlens: .+; accepted: "):
        call(CASE, tensors, cu_seqlens=bounds.flip(0))  # on the CPU it is checked


@pytest.mark.parametrize("layout", ["key_first", "value_first"])
def test_recurrent(layout: Any) -> None:
    case = CASE.but(has_state=True, dtype=torch.float32)
    tensors = make(case)
    true_o, true_state = truth(case, make(case, "cpu"))
    if layout == "value_first":
        tensors["initial_state"] = tensors["initial_state"].mT.contiguous()
    o, state = libkda.recurrent_kda(
        **tensors, **BOUNDED, output_final_state=True, state_layout=layout
    )
    assert state is not None
    state = state.mT if layout == "value_first" else state
    assert error(o.cpu(), true_o) <= 2e-6
    assert error(state.cpu(), true_state) <= 2e-6


@pytest.mark.parametrize("form", ["bounded", "softplus", "log"])
def test_decode_has_the_bits_of_a_prefill(form: str) -> None:
    case = FORMS[form].but(B=1)
    tensors = make(case)
    whole, final = call(case, tensors, output_final_state=True)
    for cuts in (range(76), (0, 50, *range(51, 76)), (0, 7, 40, 75)):
        state, ran = states(case), Ran()
        o = [
            decode(state, **piece(tensors, a, b), ran=ran)
            for a, b in zip(cuts, list(cuts)[1:], strict=False)
        ]
        assert torch.equal(torch.cat(o, 1), whole)
        assert state.tokens() == 75 and ran.backend == "cuda"
        assert torch.equal(state.plain(), final)
        assert torch.equal(state.plain(state_layout="value_first"), final.mT)


def test_drafts_snapshots_and_slots() -> None:
    case = CASE.but(B=1)
    tensors = make(case)
    whole, _ = call(case, tensors)
    wrong = {n: x + 0.25 if n in PER_TOKEN else x for n, x in tensors.items()}
    state = states(case, slots=3, max_draft=4)
    slot = torch.tensor([1], device="cuda")
    for t in range(0, 74, 2):
        draft: Any = {
            n: torch.cat([x[:, t : t + 2], wrong[n][:, :2]], 1) if n in PER_TOKEN else x
            for n, x in tensors.items()
        }
        o = decode(state, **draft, slots=slot, draft=True)
        assert torch.equal(o[:, :2], whole[:, t : t + 2])
        assert (state.tokens(1), state.draft_tokens(1)) == (t, 4)
        state.commit(torch.tensor([2]), slots=slot)
    state.copy(1, 0)
    state.load(2, state.save(1))
    state.clear(1)
    assert [state.tokens(n) for n in range(3)] == [74, 0, 74]
    last = piece(tensors, 74, 75)
    for n in (0, 2):
        assert torch.equal(decode(state, **last, slots=torch.tensor([n])), whole[:, 74:])
    fresh = torch.tensor([False])
    o = decode(state, **piece(tensors, 0, 1), slots=slot - 1, has_initial_state=fresh)
    assert torch.equal(o, whole[:, :1]) and state.tokens(0) == 1
    state.check()


def test_wrong_indices_of_plain_calls() -> None:
    tensors, ran = make(CASE.but(B=1)), Ran()
    call(CASE, tensors, cu_seqlens=torch.tensor([0, 40, 75], device="cuda"), ran=ran)
    ran.check()
    o, _ = call(CASE, tensors, cu_seqlens=torch.tensor([0, 40, 90], device="cuda"), ran=ran)
    with pytest.raises(RuntimeError, match=r"cu_seqlens: .+; accepted: "):
        ran.check()
    ran.check()  # said once
    assert torch.equal(o[:, :40], call(CASE, piece(tensors, 0, 40))[0])
    pool, form = torch.zeros(2, CASE.HV, 128, 128, device="cuda"), Options(**BOUNDED)
    slots = torch.tensor([2], device="cuda")
    libkda.update_pool(pool, **tensors, options=form, slots=slots, ran=ran)
    with pytest.raises(RuntimeError, match=r"slots: .+; accepted: "):
        ran.check()
    assert not pool.any()


def test_wrong_indices_of_states() -> None:
    state, token = states(CASE, slots=2), make(CASE.but(T=1))
    with pytest.raises(RuntimeError, match=r"slots: .+; accepted: "):
        decode(state, **token, slots=torch.tensor([0, 2]))
    decode(state, **token, slots=torch.tensor([1, 2], device="cuda"))
    with pytest.raises(RuntimeError, match=r"slots: .+; accepted: "):
        state.check()
    state.check()  # said once
    assert [state.tokens(0), state.tokens(1)] == [0, 1]
    with pytest.raises(RuntimeError, match=r"slot: 2; accepted: 0 to 1"):
        state.tokens(2)
    with pytest.raises(RuntimeError, match=r"checkpoints: .+; accepted: "):
        decode(state, **token, checkpoints=[(0, 1, 2)])


def test_checkpoints() -> None:
    tensors = make(CASE.but(T=70, has_state=False))
    whole, _ = call(CASE, tensors)
    state = states(CASE, slots=5)
    points = [(0, 33, 2), (1, 64, 3), (1, 0, 4)]
    assert torch.equal(decode(state, **tensors, checkpoints=points), whole)
    assert [state.tokens(slot) for slot in range(5)] == [70, 70, 33, 64, 0]
    for row, at, slot in points:
        alone = {n: x[row : row + 1] if n in PER_TOKEN else x for n, x in tensors.items()}
        o = decode(state, **piece(alone, at, 70), slots=torch.tensor([slot]))
        assert torch.equal(o[0], whole[row, at:])


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_a_pool_of_plain_states(recurrent: bool, where: str) -> None:
    tensors = make(CASE.but(T=33))
    drawn = torch.randn(5, CASE.HV, 128, 128, device="cuda")
    pool, options, ran = drawn.clone(), Options(**BOUNDED), Ran()
    slots = torch.tensor([3, -1], device=where)
    o = libkda.update_pool(
        pool, **tensors, options=options, slots=slots, recurrent=recurrent, ran=ran
    )
    one = {n: x[:1] if n in PER_TOKEN else x for n, x in tensors.items()}
    function = libkda.recurrent_kda if recurrent else libkda.chunk_kda
    expected, final = function(**one, **BOUNDED, initial_state=drawn[3:4], output_final_state=True)
    assert final is not None and ran.backend == "cuda"
    drawn[3:4] = final
    assert torch.equal(o[:1], expected) and not o[1].any()
    assert torch.equal(pool, drawn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolution_and_norm(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 40, 12, generator=generator).to(dtype)
    weight, bias = torch.randn(12, 4, generator=generator), torch.randn(12, generator=generator)
    y, final = libkda.causal_conv1d(x, weight, bias, output_final_state=True)
    on_gpu = [t.cuda() for t in (x, weight, bias)]
    got, got_final = libkda.causal_conv1d(*on_gpu, output_final_state=True)
    # Sigmoids differ by a unit of float32's last place, and so may a rounding to bfloat16.
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    assert final is not None and got_final is not None
    assert error(got.cpu(), y.double()) <= bound and torch.equal(got_final.cpu(), final)
    pool = torch.zeros(3, 12, 3, device="cuda", dtype=dtype)
    slots = torch.tensor([2, 0])
    pieces = [
        libkda.update_conv_pool(pool, on_gpu[0][:, a:b], *on_gpu[1:], slots=where)
        for a, b, where in ((0, 2, slots), (2, 3, slots.cuda()), (3, 40, slots))
    ]
    assert torch.equal(torch.cat(pieces, 1), got) and torch.equal(pool[[2, 0]], got_final)
    packed = on_gpu[0].view(1, 80, 12)
    cut, _ = libkda.causal_conv1d(packed, *on_gpu[1:], cu_seqlens=torch.tensor([0, 40, 80]))
    assert torch.equal(cut.view_as(got), got)

    o, gate = (torch.randn(2, 9, 3, 16, generator=generator).to(dtype) for _ in range(2))
    scale = torch.randn(16, generator=generator)
    normed = libkda.gated_norm(o.cuda(), scale.cuda(), gate.cuda())
    assert error(normed.cpu(), libkda.gated_norm(o, scale, gate).double()) <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_convolution_and_norm(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    given = [normal(1, 60, 12).to(dtype), normal(12, 4), normal(12), normal(2, 12, 3)]
    rows = [normal(2, 9, 3, 16).to(dtype), normal(16), normal(2, 9, 3, 16).to(dtype)]

    def gradients(device: str) -> list[Any]:
        leaves = [x.to(device).requires_grad_() for x in (*given, *rows)]
        x, weight, bias, past, o, scale, gate = leaves
        cut = torch.tensor([0, 25, 60])
        y, state = libkda.causal_conv1d(
            x, weight, bias, initial_state=past, cu_seqlens=cut, output_final_state=True
        )
        assert state is not None
        normed = libkda.gated_norm(o, scale, gate)
        loss = y.double().square().sum() + state.double().sum() + normed.double().square().sum()
        return [g.cpu() for g in torch.autograd.grad(loss, leaves)]

    for ours, theirs in zip(gradients("cuda"), gradients("cpu"), strict=True):
        assert ours.dtype == theirs.dtype
        assert error(ours, theirs.double()) <= (1e-6 if dtype == torch.float32 else 4e-3)


def test_the_layer_and_a_model() -> None:
    config = KDAConfig(hidden_size=64, num_heads=2, head_dim=128, num_v_heads=4)
    torch.manual_seed(0)
    layer = build_kda(config).to("cuda", torch.bfloat16)
    exact = build_kda(replace(config, backend="recurrent")).double()
    exact.load_state_dict({name: x.cpu() for name, x in layer.state_dict().items()})
    x = torch.randn(2, 40, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        y = layer(x)
        # Linear layers, convolutions and norms each round to 8 bits.
        assert error(y.cpu(), exact(x.cpu().double())) <= 2e-2
        state = layer.new_state(2)
        steps = [layer(x[:, :33], state=state)]
        steps += [layer(x[:, t : t + 1], state=state) for t in range(33, 40)]
        assert error(torch.cat(steps, 1).cpu(), y.cpu().double()) <= 2e-2
        mask = torch.ones(2, 40, device="cuda")
        mask[0, :7] = 0
        assert error(layer(x, attention_mask=mask)[0, 7:].cpu(), layer(x[:1, 7:])[0].cpu()) <= 2e-2
    softplus = build_kda(replace(config, gate_lower_bound=None, streaming=False))
    softplus.to("cuda", torch.bfloat16)
    with torch.no_grad():
        y, state = softplus(x), softplus.new_state(2)
        steps = [softplus(x[:, a:b], state=state) for a, b in ((0, 33), (33, 34), (34, 40))]
    assert error(torch.cat(steps, 1).cpu(), y.cpu().double()) <= 2e-2
    hybrid = HybridModel(HybridConfig(vocab_size=19, hidden_size=64, num_heads=2, head_dim=128))
    hybrid.to("cuda", torch.bfloat16)
    assert hybrid.generate(torch.randint(19, (2, 40), device="cuda"), 5).shape == (2, 5)


def test_the_current_stream_is_used() -> None:
    case = CASE.but(B=1)
    tensors = make(case)
    whole, _ = call(case, tensors)
    late: Any = {n: torch.zeros_like(x) for n, x in tensors.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    state = states(case)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # some 50 ms: who does not wait reads zeros
        for name, x in late.items():
            x.copy_(tensors[name])
        o, _ = call(case, late)
        steps = decode(state, **late)
    stream.synchronize()
    assert torch.equal(o, whole) and torch.equal(steps, whole)


def test_graphs() -> None:
    case = CASE.but(B=1)
    tensors = make(case)
    whole, _ = call(case, tensors)
    inputs = {n: torch.zeros_like(x) for n, x in tensors.items()}
    call(case, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = call(case, inputs)
    for name, x in inputs.items():
        x.copy_(tensors[name])
    graph.replay()
    assert torch.equal(o, whole)

    state = states(case, slots=4)
    token = {n: x.clone() for n, x in piece(tensors, 0, 1).items()}
    slots = torch.tensor([0], device="cuda")
    decode(state, **token, slots=slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = decode(state, **token, slots=slots)
        with pytest.raises(RuntimeError, match=r"slots: .+ graph is captured; accepted: "):
            decode(state, **token, slots=slots.new_tensor([0], device="cpu"))
    state.clear(0)
    slots.fill_(2)  # replays read slots anew
    for t in range(75):
        for name in PER_TOKEN:
            token[name].copy_(tensors[name][:, t : t + 1])
        graph.replay()
        assert torch.equal(step, whole[:, t : t + 1])
    assert [state.tokens(n) for n in range(4)] == [0, 0, 75, 0]


def test_compile() -> None:
    torch._dynamo.reset()
    case = CASE.but(B=1)
    state = states(case)

    def both(tensors: dict[str, Any]) -> tuple[Tensor, Tensor]:
        o, _ = libkda.chunk_kda(**tensors, **BOUNDED)
        return o * 2, decode(state, **tensors) * 2

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for T in (9, 40, 33):
        tensors = make(case.but(T=T))
        state.clear(0)
        o, steps = compiled(tensors)
        assert torch.equal(o, call(case, tensors)[0] * 2) and torch.equal(o, steps)
        assert state.tokens() == T


def operators() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    ops = torch.ops.kda
    tensors = make(CASE.but(T=9))
    names = (*PER_TOKEN, "A_log", "dt_bias", "initial_state", "cu_seqlens")
    inputs = tuple(tensors.get(name) for name in names)
    options = Options(**BOUNDED, precision="mixed")
    form = (CASE.HV, 2, *options)
    memory = torch.zeros(2, ops.cuda_slot_bytes(*form), dtype=torch.uint8, device="cuda")
    status = torch.zeros(1, dtype=torch.int32, device="cuda")
    pool = torch.zeros(2, CASE.HV, 128, 128, device="cuda")
    x, weight = torch.randn(2, 9, 6, device="cuda"), torch.randn(6, 4, device="cuda")
    past = torch.randn(2, 6, 3, device="cuda")
    counts = torch.ones(2, dtype=torch.int32, device="cuda")
    few = make(CASE.but(T=1, HV=CASE.H))
    token = tuple(few.get(name) for name in names)
    heads = (CASE.H, 2, *options)
    slots = torch.zeros(2, ops.cuda_slot_bytes(*heads), dtype=torch.uint8, device="cuda")
    pasts = [torch.randn(2, CASE.H * 128, 3, device="cuda") for _ in range(3)]
    weights = [torch.randn(CASE.H * 128, 4, device="cuda") for _ in range(3)]
    around = (*pasts, *weights, None, None, None, None, few["v"], "silu", 1e-5)
    return {
        "forward": (ops.forward, (*inputs, *options, "key_first", True)),
        "forward_ran": (ops.forward_ran, (*inputs, *options, "key_first", False)),
        "recurrent": (ops.recurrent, (*inputs, *options, "value_first", True)),
        "pool": (ops.pool, (pool, None, status, *inputs, None, None, *options, "key_first", False)),
        "conv": (ops.causal_conv1d, (x, weight, None, past, None, "silu", True)),
        "conv_pool": (
            ops.causal_conv1d_pool,
            (past, x, weight, None, None, None, None, None, "none"),
        ),
        "gated_norm": (ops.gated_norm, (tensors["v"], None, tensors["v"], 1e-5)),
        "cuda_decode": (
            ops.cuda_decode,
            (memory, status, None, *inputs, None, None, False, [], *form),
        ),
        "cuda_decode_layer": (
            ops.cuda_decode_layer,
            (slots, status, None, *around, *token, None, None, False, [], *heads),
        ),
        "cuda_commit": (ops.cuda_commit, (memory, status, None, counts, *form)),
        "cuda_plain": (ops.cuda_plain, (memory, None, "key_first", *form)),
    }


def test_opcheck() -> None:
    for operator, arguments in operators().values():
        torch.library.opcheck(operator.default, arguments)


def test_audit_takes_cuda_callables() -> None:
    tensors = make(CASE.but(T=40, B=1))
    raw = {name: tensors[name] for name in ("A_log", "dt_bias")}

    def attend(*tokens: Any) -> Tensor:
        options: Any = {**raw, **BOUNDED}
        return libkda.chunk_kda(*tokens, **options)[0]

    inputs = [tensors[name] for name in PER_TOKEN]
    assert audit(attend, *inputs, cuts=(1, 17, 32, 39)).is_causal
    leaky = audit(lambda *x: attend(*x) + x[2].mean(1, keepdim=True)[:, :, :1], *inputs, cuts=[9])
    assert not leaky.is_causal and leaky.leaks[0].later is not None


def test_refusals() -> None:
    tensors = make(CASE)
    grown = {**tensors, "q": tensors["q"].clone().requires_grad_()}
    o, _ = call(CASE, grown)
    with pytest.raises(RuntimeError, match=r"backward: on cuda:0; accepted: CPU tensors, or a"):
        o.sum().backward()
    for argument, changed in (
        ("k", {"k": tensors["k"].cpu()}),
        ("A_log", {"A_log": tensors["A_log"].cpu()}),
        ("lower_bound", {"lower_bound": 1.0}),
        ("q", {"q": tensors["q"][0]}),
    ):
        with pytest.raises(RuntimeError, match=rf"(?s)\A{argument}: .+; accepted: ."):
            libkda.chunk_kda(**{**tensors, **BOUNDED, **changed})
    with pytest.raises(RuntimeError, match=r"precision: exact64; accepted: .+ on CUDA"):
        call(CASE, {n: x.double() for n, x in tensors.items()})
    with pytest.raises(RuntimeError, match=r"key_dim, value_dim: 64, 128; accepted: 128, 128"):
        StreamingState(1, 4, 64, 128, precision="mixed", device="cuda", **BOUNDED)


def test_other_names() -> None:
    tensors = make(CASE)
    q, k, v, g, beta, A_log, dt_bias = (tensors[n] for n in (*PER_TOKEN, "A_log", "dt_bias"))
    expected, final = call(CASE, tensors, output_final_state=True)
    assert final is not None
    o, state = fla.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        lower_bound=-5.0,
        A_log=A_log,
        dt_bias=dt_bias.flatten(),
        output_final_state=True,
    )
    assert torch.equal(o, expected) and state is not None and torch.equal(state, final)

    heads = slice(0, CASE.H)  # FlashKDA and attn-gym have as many value heads as key heads
    few: Any = (q, k, v[:, :, heads], g[:, :, heads], beta[:, :, heads])
    out, kept = torch.empty_like(v[:, :, heads]), torch.empty_like(final[:, heads]).mT.contiguous()
    behind: Any = (128**-0.5, out, A_log[heads], dt_bias[heads], -5.0, None, kept)
    flash_kda.fwd(*few, *behind)
    few_o, few_final = libkda.chunk_kda(
        *few, A_log=A_log[heads], dt_bias=dt_bias[heads], **BOUNDED, output_final_state=True
    )
    assert few_final is not None
    assert torch.equal(out, few_o) and torch.equal(kept, few_final.mT)

    log = attn_gym.bound_gate(few[3], A_log[heads], dt_bias[heads], impl="reference")
    strength = few[4].float().sigmoid()
    unit: Any = [torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype) for x in (q, k)]
    rest: Any = (few[2], log, strength)
    o, _ = attn_gym.chunk_kda(*unit, *rest)
    assert error(o, few_o.double()) <= 2e-2  # q and k were rounded
    pool = torch.zeros(4, CASE.H, 128, 128, device="cuda")
    slots = torch.tensor([2, 3], device="cuda")
    into: Any = {"state_cache": pool, "state_indices": slots}
    paged = attn_gym.paged_chunk_kda(*unit, *rest, **into)
    assert torch.equal(paged, o) and pool[2:].any() and not pool[:2].any()
    before = pool.clone()
    packed = torch.cat([x[:, 0].flatten(1) for x in few[:3]], 1)
    step = attn_gym.recurrent_kda_decode(
        packed,
        few[3][:, :1].transpose(0, 1),
        few[4][:, :1].transpose(0, 1),
        A_log[heads],
        dt_bias[heads],
        pool,
        slots,
    )
    first: Any = {"A_log": A_log[heads], "dt_bias": dt_bias[heads], "initial_state": before[2:]}
    options: Any = {**first, **BOUNDED, "state_layout": "value_first"}
    same, _ = libkda.recurrent_kda(*(x[:, :1] for x in few), **options)
    assert torch.equal(step.transpose(0, 1), same)
    o, _ = fla.fused_recurrent_kda(*unit, *rest)
    assert error(o, few_o.double()) <= 2e-2
