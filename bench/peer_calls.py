"""The calls that bench/peers.py times: the same inputs in each project's own words.

Every project gets heads of 128 channels, bfloat16, raw gates with A_log and dt_bias, logits of
beta, q and k to be normalised. A project whose kernel takes less is given what it lacks by its own
functions, within the timed call. A Job is checked on what it was timed with, against the recurrence
in float64 (python/tests/naive.py).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python/tests"))

naive: Any = importlib.import_module("naive")

DIM = 128
BOUND = -5.0
BOUNDED: dict[str, Any] = {
    "gate": "bounded",
    "lower_bound": BOUND,
    "norm": "rsqrt",
    "sigmoid_beta": True,
}
L2_BYTES = 128 << 20  # states of decode rotate through more than any L2 holds, up to 8 sets
REPLAY = 64  # tokens after which a step of an exact decode has cost all that it ever costs


@dataclass(frozen=True)
class Case:
    """kind: prefill, train, decode (recurrent), exact_decode (the prefill's bits), conv, conv_step
    or norm. heads is the number of channels of a convolution."""

    kind: str
    batch: int
    tokens: int
    heads: int
    lengths: tuple[int, ...] = ()
    what: str = ""


@dataclass
class Job:
    """step(i) is the i-th call of a timed run of `steps` calls; check() gives errors by name."""

    step: Callable[[int], Any]
    check: Callable[[], dict[str, float]]
    steps: int = 1


class Refused(Exception):
    """A project has no such call, or will not do it; the text says why."""


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def inputs(case: Case) -> dict[str, torch.Tensor]:
    B, T, H = case.batch, case.tokens, case.heads
    return {
        **{n: draw(B, T, H, DIM, seed=i) for i, n in enumerate(("q", "k", "v", "g"))},
        "beta": draw(B, T, H, seed=4),
        "A_log": 0.3 * draw(H, seed=5, dtype=torch.float32),
        "dt_bias": draw(H, DIM, seed=6, dtype=torch.float32),
    }


def bounds(case: Case) -> torch.Tensor | None:
    if not case.lengths:
        return None
    return torch.tensor([0, *case.lengths], device="cuda").cumsum(0)


def truth(x: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> tuple[Any, Any]:
    """Outputs and the final state [N, H, K, V] in float64; differentiable, in little memory."""
    exact = {n: t.double() for n, t in x.items()}
    raw = {n: exact.pop(n) for n in ("A_log", "dt_bias")}
    B, T, H, K = exact["q"].shape
    S = exact["q"].new_zeros(B, H, K, K) if state is None else state.double()

    def part(S: torch.Tensor, *tokens: torch.Tensor) -> Any:
        given = dict(zip(exact, tokens, strict=True))
        return naive.attention(**given, **raw, **BOUNDED, initial_state=S)

    outputs = []
    for t in range(0, T, 128):
        tokens = [e[:, t : t + 128] for e in exact.values()]
        o, S = checkpoint(part, S, *tokens, use_reentrant=False)
        outputs.append(o)
    return torch.cat(outputs, 1), S


def errors(got: dict[str, Any], true: dict[str, Any]) -> dict[str, float]:
    return {name: naive.error(x, true[name]) for name, x in got.items()}


def packed_truth(case: Case, x: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    if not case.lengths:
        return truth(x)
    outputs, states, begin = [], [], 0
    for length in case.lengths:
        one = {n: t[:, begin : begin + length] if t.dim() > 2 else t for n, t in x.items()}
        o, S = truth(one)
        outputs.append(o)
        states.append(S)
        begin += length
    return torch.cat(outputs, 1), torch.cat(states)


# --- whole sequences: call(x, cu_seqlens) gives outputs, and final states [N, H, K, V] ---------


def libkda_chunks() -> Any:
    import libkda

    return lambda x, cu: libkda.chunk_kda(**x, **BOUNDED, cu_seqlens=cu, output_final_state=True)


def fla_chunks() -> Any:
    ops = importlib.import_module("fla.ops.kda")

    def call(x: dict[str, Any], cu: torch.Tensor | None) -> Any:
        return ops.chunk_kda(
            **{**x, "dt_bias": x["dt_bias"].flatten()},
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=True,
            lower_bound=BOUND,
            output_final_state=True,
            cu_seqlens=cu,
        )

    return call


def attn_gym_inputs() -> Any:
    """From raw inputs to those that its kernels take, by its own kernels."""
    kda = importlib.import_module("attn_gym.linear.kda")

    def ready(x: dict[str, Any]) -> tuple[Any, ...]:
        gate = kda.bound_gate(x["g"], x["A_log"], x["dt_bias"], lower_bound=BOUND)
        return kda.l2norm(x["q"]), kda.l2norm(x["k"]), x["v"], gate, x["beta"].float().sigmoid()

    return kda, ready


def attn_gym_chunks() -> Any:
    kda, ready = attn_gym_inputs()

    def call(x: dict[str, Any], cu: torch.Tensor | None) -> Any:
        o, state = kda.chunk_kda(*ready(x), cu_seqlens=cu, output_final_state=True)
        return o, state.mT

    return call


CHUNKS = {"libkda": libkda_chunks, "fla": fla_chunks, "attn_gym": attn_gym_chunks}


def prefill(case: Case, peer: str) -> Job:
    call, x, cu = CHUNKS[peer](), inputs(case), bounds(case)
    if cu is not None and peer == "attn_gym":
        cu = cu.int()

    def check() -> dict[str, float]:
        with torch.no_grad():
            o, state = call(x, cu)
            true_o, true_state = packed_truth(case, x)
        return errors({"o": o, "state": state}, {"o": true_o, "state": true_state})

    return Job(torch.no_grad()(lambda i: call(x, cu)), check)


def train(case: Case, peer: str) -> Job:
    call = CHUNKS[peer]()
    x = {name: t.requires_grad_() for name, t in inputs(case).items()}
    d_o = draw(case.batch, case.tokens, case.heads, DIM, seed=7)

    def step(i: int) -> Any:
        return torch.autograd.grad(call(x, None)[0], list(x.values()), d_o)

    def check() -> dict[str, float]:
        got = dict(zip(x, step(0), strict=True))
        exact = {n: t.detach().double().requires_grad_() for n, t in x.items()}
        true = torch.autograd.grad(truth(exact)[0], list(exact.values()), d_o.double())
        return errors(
            {f"d{n}": g for n, g in got.items()}, dict(zip([f"d{n}" for n in x], true, strict=True))
        )

    return Job(step, check)


# --- decode: a token of each sequence --------------------------------------------------------


def rotation(case: Case) -> int:
    """Sets of states that steps take in turns."""
    state = case.batch * case.heads * DIM * DIM * 4
    return max(1, min(8, L2_BYTES // state))


def decode(case: Case, peer: str) -> Job:
    x, sets = inputs(case), rotation(case)
    B, H = case.batch, case.heads
    # Slot 0 stays empty: attn-gym takes it for padding.
    pool = draw(sets * B + 1, H, DIM, DIM, seed=8, dtype=torch.float32)
    slots = [torch.arange(B, dtype=torch.int32, device="cuda") + 1 + s * B for s in range(sets)]
    transposed = True
    if peer == "libkda":
        import libkda

        tokens: dict[str, Any] = x
        options = libkda.Options(**BOUNDED)

        def run(s: int) -> Any:
            return libkda.update_pool(
                pool,
                **tokens,
                options=options,
                slots=slots[s],
                state_layout="value_first",
                recurrent=True,
            )

    elif peer == "fla":
        fused = importlib.import_module("fla.ops.kda.fused_recurrent")
        transposed = False

        def run(s: int) -> Any:
            o, _ = fused.fused_recurrent_kda_fwd(
                **x,
                initial_state=pool[1 + s * B : 1 + (s + 1) * B],
                inplace_final_state=True,
                use_qk_l2norm_in_kernel=True,
                use_gate_in_kernel=True,
                use_beta_sigmoid_in_kernel=True,
                lower_bound=BOUND,
            )
            return o

    else:
        kda = importlib.import_module("attn_gym.linear.kda")
        packed = torch.cat([x[n].flatten(1) for n in ("q", "k", "v")], 1)
        gate, beta = (x[n].transpose(0, 1).contiguous() for n in ("g", "beta"))
        out = torch.empty(1, B, H, DIM, dtype=torch.bfloat16, device="cuda")

        def run(s: int) -> Any:
            kda.recurrent_kda_decode(
                packed, gate, beta, x["A_log"], x["dt_bias"], pool, slots[s], out=out
            )
            return out.transpose(0, 1)

    def check() -> dict[str, float]:
        with torch.no_grad():
            drawn = draw(B, H, DIM, DIM, seed=9, dtype=torch.float32)
            pool[1 : B + 1] = drawn
            o = run(0)
            state = pool[1 : B + 1]
            true_o, true_state = truth(x, drawn.mT if transposed else drawn)
            got = state.mT if transposed else state
        return errors({"o": o, "state": got}, {"o": true_o, "state": true_state})

    return Job(torch.no_grad()(lambda i: run(i % sets)), check, 8 * sets)


def exact_decode(case: Case, peer: str) -> Job:
    """A step whose outputs have the bits of the project's own prefill."""
    x, sets = inputs(case), rotation(case)
    B, H = case.batch, case.heads
    slots = [torch.arange(B, dtype=torch.int32, device="cuda") + 1 + s * B for s in range(sets)]
    if peer == "fla":
        raise Refused("has none: its decode, fused_recurrent_kda, has other bits than its prefill")
    if peer == "libkda":
        import libkda

        sizes = (sets * B + 1, H, DIM, DIM)
        state = libkda.StreamingState(*sizes, precision="mixed", device="cuda", **BOUNDED)

        def clear() -> None:
            for slot in range(sets * B + 1):
                state.clear(slot)

        def run(s: int, x: dict[str, Any] = x) -> Any:
            return libkda.decode(state, **x, slots=slots[s])

    else:
        kda, ready = attn_gym_inputs()
        pool = torch.zeros(sets * B + 1, H, DIM, DIM, device="cuda")
        wide = (sets * B + 1, REPLAY, H, DIM)
        cache = [torch.zeros(wide, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
        cache.append(torch.zeros(wide, device="cuda"))
        cache.append(torch.zeros(wide[:3], device="cuda"))
        count = torch.zeros(sets * B + 1, dtype=torch.int32, device="cuda")
        replay = kda.ReplayState(*cache, count)

        def clear() -> None:
            for tensor in (pool, *cache, count):
                tensor.zero_()

        def run(s: int, x: dict[str, Any] = x) -> Any:
            return kda.paged_chunk_kda(*ready(x), pool, slots[s], replay_state=replay)

    def check() -> dict[str, float]:
        whole = inputs(replace(case, tokens=REPLAY + 6))
        with torch.no_grad():
            clear()
            steps = [
                run(
                    0,
                    {
                        n: t[:, i : i + 1].contiguous() if t.dim() > 2 else t
                        for n, t in whole.items()
                    },
                )
                for i in range(REPLAY + 6)
            ]
            return errors({"o": torch.cat(steps, 1)}, {"o": truth(whole)[0]})

    return Job(torch.no_grad()(lambda i: run(i % sets)), check, REPLAY * sets)


# --- around it: heads is the number of channels of a convolution ------------------------------

WIDTH = 4


def true_conv(x: torch.Tensor, weight: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """past: [B, C, W - 1], the inputs before x [B, T, C]."""
    wide = torch.cat([past.double(), x.double().mT], 2)
    T, w = x.shape[1], weight.double()
    terms = [w[:, i, None] * wide[:, :, i : i + T] for i in range(WIDTH)]
    return F.silu(torch.stack(terms).sum(0)).mT


def conv(case: Case, peer: str) -> Job:
    x = draw(case.batch, case.tokens, case.heads, seed=1)
    weight = draw(case.heads, WIDTH, seed=2)
    if peer == "libkda":
        import libkda

        def run(i: int) -> Any:
            return libkda.causal_conv1d(x, weight)[0]

    else:
        module = "fla.modules.causal_conv1d" if peer == "fla" else "attn_gym.linear"
        theirs = importlib.import_module(module).causal_conv1d

        def run(i: int) -> Any:
            y = theirs(x, weight, activation="silu")
            return y[0] if peer == "fla" else y

    past = x.new_zeros(case.batch, case.heads, WIDTH - 1)

    def check() -> dict[str, float]:
        return errors({"y": run(0)}, {"y": true_conv(x, weight, past)})

    return Job(torch.no_grad()(run), torch.no_grad()(check))


def conv_step(case: Case, peer: str) -> Job:
    N, C = case.batch, case.heads
    x, weight = draw(N, 1, C, seed=1), draw(C, WIDTH, seed=2)
    drawn = draw(N, C, WIDTH - 1, seed=3)
    if peer == "libkda":
        import libkda

        state, past = drawn.clone(), lambda s: s

        def run(i: int) -> Any:
            return libkda.update_conv_pool(state, x, weight)

    elif peer == "fla":
        update = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d_update
        state, past = F.pad(drawn, (1, 0)), lambda s: s[..., 1:]

        def run(i: int) -> Any:
            return update(x, state, weight=weight, activation="silu")[0]

    else:
        step = importlib.import_module("attn_gym.linear").causal_conv1d_decode
        state, past = drawn.mT.contiguous(), lambda s: s.mT

        def run(i: int) -> Any:
            return step(x[:, 0], weight, state, activation="silu")[:, None]

    def check() -> dict[str, float]:
        past(state).copy_(drawn)
        y, after = run(0), torch.cat([drawn, x.mT], 2)[..., 1:].double()
        true = {"y": true_conv(x, weight, drawn), "state": after}
        return errors({"y": y, "state": past(state)}, true)

    return Job(torch.no_grad()(run), torch.no_grad()(check), 32)


def norm(case: Case, peer: str) -> Job:
    shape = (case.batch, case.tokens, case.heads, DIM)
    x, gate = draw(*shape, seed=1), draw(*shape, seed=2)
    weight = draw(DIM, seed=3, dtype=torch.float32)
    if peer == "libkda":
        import libkda

        def run(i: int) -> Any:
            return libkda.gated_norm(x, weight, gate, eps=1e-5)

    elif peer == "fla":
        theirs = importlib.import_module("fla.modules.norm.fused_norm_gate").rms_norm_gated

        def run(i: int) -> Any:
            return theirs(x, gate, weight, None, "sigmoid", eps=1e-5)

    else:
        raise Refused("has none")

    def check() -> dict[str, float]:
        exact = x.double()
        size = (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return errors(
            {"y": run(0)}, {"y": exact * size * weight.double() * gate.double().sigmoid()}
        )

    return Job(torch.no_grad()(run), torch.no_grad()(check))


KINDS: dict[str, Callable[[Case, str], Job]] = {
    "prefill": prefill,
    "train": train,
    "decode": decode,
    "exact_decode": exact_decode,
    "conv": conv,
    "conv_step": conv_step,
    "norm": norm,
}
