"""libkda.compat beside FLA's and attn-gym's own kernels: the same call to both, on a GPU.

Skips without a GPU, and for each project that is not installed. Their tuners take the first
configuration that runs: any gives an answer, and to time them all takes minutes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from libkda.compat import attn_gym, fla
from naive import Case, error, truth

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

MIXED = 5e-3  # what libkda promises for 16-bit inputs
# The worst that is known of their chunk kernels against float64, 0.0064, and a quarter more.
THEIRS = 8e-3
EXACT = 1e-4  # float32 sums of both, whose exponentials are some units of the last place apart
BF16 = 2**-8  # an output that was rounded once

RAW = {"norm": "rsqrt", "sigmoid_beta": True}
CASE = Case(T=150, H=2, HV=4, K=128, V=128, dtype=torch.bfloat16, has_state=True)
BOUNDED = CASE.but(options={**RAW, "gate": "bounded", "lower_bound": -5.0})
SOFTPLUS = CASE.but(options={**RAW, "gate": "softplus"})


def installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        pytest.skip(f"{name} does not import: {missing}")


@pytest.fixture(autouse=True)
def _first_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    except ImportError:
        return
    prune, bench = tuner.prune_configs, tuner._bench

    def begin(self: Any, kwargs: Any) -> Any:
        self.has_one = False
        return prune(self, kwargs)

    def once(self: Any, *args: Any, **kwargs: Any) -> Any:
        times = [float("inf")] * 3 if self.has_one else bench(self, *args, **kwargs)
        self.has_one = self.has_one or times[0] < float("inf")
        return times

    def run(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    monkeypatch.setattr(tuner, "prune_configs", begin)
    monkeypatch.setattr(tuner, "_bench", once)
    monkeypatch.setattr(tuner, "do_bench", staticmethod(run))
    monkeypatch.setattr(tuner, "check_disk_cache", lambda self, key, configs, tune: tune())


def make(case: Case) -> tuple[dict[str, Any], Any, Any]:
    """Inputs on the GPU, and the truth about them there."""
    tensors = case.make()
    for name in ("A_log", "dt_bias", "initial_state"):
        if name in tensors:
            tensors[name] = tensors[name].float()
    true_o, true_state = truth(case, tensors)
    return {n: x.cuda() for n, x in tensors.items()}, true_o.cuda(), true_state.cuda()


def compare(ours: Tensor, theirs: Tensor, true: Tensor, us: float, them: float) -> None:
    """Ours as near the truth as promised, theirs as near as is known: then they are as near to each
    other as both can say."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert error(ours, true) <= us
    assert error(theirs, true) <= them, "the call means something else to them"


# --- FLA --------------------------------------------------------------------------------------


def fla_call(case: Case, tensors: dict[str, Any]) -> dict[str, Any]:
    raw = case.options.get("gate", "log") != "log"
    bound = case.options.get("lower_bound")
    call = {
        **tensors,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": "norm" in case.options,
        "use_gate_in_kernel": raw,
        "use_beta_sigmoid_in_kernel": "sigmoid_beta" in case.options,
        "allow_neg_eigval": "neg_eigval" in case.options,
        "lower_bound": bound,
    }
    if raw:
        call["dt_bias"] = tensors["dt_bias"].flatten()
    return call


FORMS = {
    "log": CASE,
    "softplus": SOFTPLUS,
    "neg_eigval": SOFTPLUS.but(options={**SOFTPLUS.options, "neg_eigval": True}),
    "bounded": BOUNDED,
}


@pytest.mark.parametrize("form", FORMS)
def test_fla_chunks(form: str) -> None:
    theirs = installed("fla.ops.kda")
    tensors, true_o, true_state = make(FORMS[form])
    call = fla_call(FORMS[form], tensors)
    if form == "bounded":
        call["safe_gate"] = True
    with torch.no_grad():
        o, state = fla.chunk_kda(**call)
        their_o, their_state = theirs.chunk_kda(**call)
    assert state is not None
    compare(o, their_o, true_o, MIXED, THEIRS)
    compare(state, their_state, true_state, MIXED, THEIRS)


@pytest.mark.parametrize("function", ["chunk_kda", "fused_recurrent_kda"])
def test_fla_packed_sequences(function: str) -> None:
    theirs = installed("fla.ops.kda")
    tensors, _, _ = make(BOUNDED.but(B=1))
    call = fla_call(BOUNDED, tensors)
    call["initial_state"] = torch.randn(3, 4, 128, 128, device="cuda")
    call["cu_seqlens"] = torch.tensor([0, 40, 41, 150], device="cuda")
    with torch.no_grad():
        o, state = getattr(fla, function)(**call)
        their_o, their_state = getattr(theirs, function)(**call)
    exact = function == "fused_recurrent_kda"
    assert error(o, their_o.double()) <= (BF16 if exact else MIXED + THEIRS)
    assert error(state, their_state.double()) <= (EXACT if exact else MIXED + THEIRS)


@pytest.mark.parametrize("case", [BOUNDED, SOFTPLUS], ids=["bounded", "softplus"])
@pytest.mark.parametrize("v_first", [False, True])
def test_fla_decode(case: Case, v_first: bool) -> None:
    theirs = installed("fla.ops.kda")
    tensors, true_o, true_state = make(case.but(T=1))
    call = {**fla_call(case, tensors), "state_v_first": v_first}
    if v_first:
        call["initial_state"] = tensors["initial_state"].mT.contiguous()
        true_state = true_state.mT
    with torch.no_grad():
        o, state = fla.fused_recurrent_kda(**call)
        their_o, their_state = theirs.fused_recurrent_kda(**call)
    assert state is not None
    compare(o, their_o, true_o, BF16, BF16)
    compare(state, their_state, true_state, EXACT, EXACT)


@pytest.fixture
def fla_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fla.layers.kda, which patch() may change until the test ends."""
    layers, mlp = installed("fla.layers.kda"), installed("fla.modules.mlp")
    for name in ("chunk_kda", "fused_recurrent_kda", "ShortConvolution", "FusedRMSNormGated"):
        monkeypatch.setattr(layers, name, getattr(layers, name))  # put back at the end
    monkeypatch.setattr(mlp, "swiglu", mlp.swiglu)
    yield layers


def layer_outputs(layer: Any, x: Tensor) -> list[Tensor]:
    """Of 130 tokens in chunks; of the same with a cache, and two steps behind it."""
    cache = installed("fla.models.cache_utils").Cache()
    with torch.no_grad():
        outputs = [layer(x[:, :130])[0]]
        for a, b in ((0, 130), (130, 131), (131, 132)):
            o, _, cache = layer(x[:, a:b], past_key_values=cache, use_cache=True)
            outputs.append(o)
    return outputs


def test_fla_layer_patched(fla_layers: Any) -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "head_dim": 128, "num_heads": 2, "num_v_heads": 4}
    sizes |= {"safe_gate": True, "lower_bound": -5.0, "layer_idx": 0}
    torch.manual_seed(0)
    original = fla_layers.KimiDeltaAttention(**sizes).to("cuda", torch.bfloat16).eval()
    x = torch.randn(2, 132, 256, device="cuda", dtype=torch.bfloat16)
    theirs = layer_outputs(original, x)
    fla.patch()
    patched = fla_layers.KimiDeltaAttention(**sizes).to("cuda", torch.bfloat16).eval()
    patched.load_state_dict(original.state_dict())
    assert type(patched.q_conv1d) is not type(original.q_conv1d)
    for ours, their in zip(layer_outputs(patched, x), theirs, strict=True):
        # Convolution, attention, norm and projection round to 8 bits, each project in its way.
        assert error(ours, their.double()) <= 2e-2


# --- attn-gym ---------------------------------------------------------------------------------

# As many value heads as key heads; gates not below -5.9 a token.
GYM = CASE.but(B=1, H=4, HV=4)


def gym(case: Case = GYM) -> tuple[dict[str, Any], Tensor, Tensor]:
    tensors, true_o, true_state = make(case)
    tensors["gate"] = tensors.pop("g").float()
    tensors["beta"] = tensors["beta"].float()
    if "initial_state" in tensors:
        tensors["initial_state"] = tensors["initial_state"].mT.contiguous()
    return tensors, true_o, true_state.mT


@pytest.mark.parametrize("packed", [False, True])
def test_attn_gym_chunks(packed: bool) -> None:
    theirs = installed("attn_gym.linear")
    tensors, true_o, true_state = gym()
    call = {**tensors, "output_final_state": True}
    if packed:
        call["cu_seqlens"] = torch.tensor([0, 40, 41, 150], dtype=torch.int32, device="cuda")
        call["initial_state"] = torch.randn(3, 4, 128, 128, device="cuda")
    with torch.no_grad():
        o, state = attn_gym.chunk_kda(**call)
        their_o, their_state = theirs.chunk_kda(**call)
    assert state is not None
    if packed:
        assert error(o, their_o.double()) <= MIXED + THEIRS
        assert error(state, their_state.double()) <= MIXED + THEIRS
    else:
        compare(o, their_o, true_o, MIXED, THEIRS)
        compare(state, their_state, true_state, MIXED, THEIRS)


def both_pools(ours: Any, theirs: Any, call: dict[str, Any], name: str) -> tuple[Tensor, ...]:
    """Outputs and pools of a call that changes the pool `name` in place."""
    pools = [call[name].clone(), call[name].clone()]
    with torch.no_grad():
        o = ours(**{**call, name: pools[0]})
        their_o = theirs(**{**call, name: pools[1]})
    o, their_o = (x[0] if isinstance(x, tuple) else x for x in (o, their_o))
    return o, their_o, *pools


SLOTS = [3, 0, 1]  # the second is padding


@pytest.mark.parametrize("name", ["paged_chunk_kda", "recurrent_kda"])
def test_attn_gym_pools(name: str) -> None:
    theirs = installed("attn_gym.linear")
    tensors, _, _ = gym(GYM.but(B=3, has_state=False))
    pool = "state_cache" if name == "paged_chunk_kda" else "initial_state"
    call = {
        **tensors,
        pool: torch.randn(5, 4, 128, 128, device="cuda"),
        "state_indices": torch.tensor(SLOTS, dtype=torch.int32, device="cuda"),
        "has_initial_state": torch.tensor([True, True, False], device="cuda"),
    }
    ours = getattr(attn_gym, name)
    o, their_o, after, their_after = both_pools(ours, getattr(theirs, name), call, pool)
    assert not o[1].any() and not their_o[1].any()
    exact = name == "recurrent_kda"
    assert error(o, their_o.double()) <= (BF16 if exact else MIXED + THEIRS)
    assert error(after, their_after.double()) <= (EXACT if exact else MIXED + THEIRS)
    assert torch.equal(after[[0, 2, 4]], call[pool][[0, 2, 4]])


@pytest.mark.parametrize("transform", ["bounded", "softplus"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attn_gym_decode(transform: str, dtype: torch.dtype) -> None:
    theirs = installed("attn_gym.linear")
    case = (BOUNDED if transform == "bounded" else SOFTPLUS).but(B=3, T=1, H=4, has_state=False)
    tensors, _, _ = make(case)
    call = {
        "packed_qkv": torch.cat([tensors[n].flatten(1) for n in ("q", "k", "v")], 1),
        "raw_gate": tensors["g"].transpose(0, 1).contiguous(),
        "raw_beta": tensors["beta"].transpose(0, 1).contiguous(),
        "A_log": tensors["A_log"],
        "dt_bias": tensors["dt_bias"],
        "state_cache": torch.randn(5, 4, 128, 128, device="cuda").to(dtype),
        "state_indices": torch.tensor(SLOTS, dtype=torch.int32, device="cuda"),
        "gate_transform": transform,
    }
    ours, gym_decode = attn_gym.recurrent_kda_decode, theirs.recurrent_kda_decode
    o, their_o, after, their_after = both_pools(ours, gym_decode, call, "state_cache")
    assert o.shape == their_o.shape and not o[0, 1].any()
    assert error(o, their_o.double()) <= BF16
    # A bfloat16 state is rounded by both; where their sums differ, some by one place.
    assert error(after, their_after.double()) <= (EXACT if dtype == torch.float32 else 1e-3)


def test_attn_gym_gates() -> None:
    theirs = installed("attn_gym.linear.kda")
    tensors, _, _ = make(BOUNDED.but(H=4))
    call = (tensors["g"], tensors["A_log"], tensors["dt_bias"])
    gates = attn_gym.bound_gate(*call)
    # Theirs may be of hardware's fast functions, good to 2^-10 or so.
    assert error(theirs.bound_gate(*call), gates.double()) <= 2e-3


def test_attn_gym_replay_states() -> None:
    theirs = installed("attn_gym.linear")
    tensors, true_o, _ = gym(GYM.but(B=2, has_state=False))
    slots = torch.tensor([2, 1], dtype=torch.int32, device="cuda")

    def run(module: Any) -> tuple[Tensor, Any, Tensor]:
        pool = torch.zeros(3, 4, 128, 128, device="cuda")
        wide = [torch.zeros(3, 64, 4, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
        gate, beta = (torch.zeros(3, 64, 4, *end, device="cuda") for end in ((128,), ()))
        count = torch.zeros(3, dtype=torch.int32, device="cuda")
        replay = module.ReplayState(*wide, gate, beta, count)
        outputs = []
        for a, b in ((0, 70), (70, 71), (71, 72), (72, 127), (127, 128), (128, 150)):
            piece = {n: x[:, a:b].contiguous() for n, x in tensors.items()}
            with torch.no_grad():
                o = module.paged_chunk_kda(
                    **piece, state_cache=pool, state_indices=slots, replay_state=replay
                )
            outputs.append(o)
        return torch.cat(outputs, 1), replay, pool

    o, replay, pool = run(attn_gym)
    their_o, their_replay, their_pool = run(theirs)
    assert torch.equal(o, attn_gym.chunk_kda(**tensors)[0])
    compare(o, their_o, true_o, MIXED, THEIRS)
    assert error(pool, their_pool.double()) <= MIXED + THEIRS
    assert torch.equal(replay.count, their_replay.count)
    for ours, their in zip(replay[:5], their_replay[:5], strict=True):
        assert torch.equal(ours[1:, :22], their[1:, :22])
