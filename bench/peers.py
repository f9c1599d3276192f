"""Times libkda beside other projects' kernels on one GPU, and checks each answer.

Each call runs in a process of its own with a limit of time, one at a time on the GPU: what is not
installed, fails or takes too long is a row with the reason. Peers compile and tune themselves on
their first call, which can take minutes and is not timed. Times are the GPU's, by replay of a CUDA
graph of the call, median of 9 replays after half a second of them; of calls that cannot be captured
by CUDA events, marked "e", with the host's time in them where that is longer. Errors are relative
L2 against the recurrence in float64, the worst of the call's results, on the inputs that were
timed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

EXAMPLES = """examples:
  PYTHONPATH=python LIBKDA_TORCH=build/libkda_torch.so python3 bench/peers.py
  python3 bench/peers.py --case prefill_h96,exact_decode_32 --peers fla
  python3 bench/peers.py --case all --jobs 12 --warm 3 --json peers.json

peers: pip install fla-core flash-linear-attention      (fla)
       pip install 'attn-gym[linear]'                   (attn_gym)
"""

OURS, PEERS = "libkda", ("fla", "attn_gym")

# kind, batch, tokens, heads (channels of a convolution), packed lengths, what it is
CASES: dict[str, tuple[Any, ...]] = {
    "prefill_h16": ("prefill", 1, 8192, 16, (), "8192 tokens, 16 heads"),
    "prefill_h32": ("prefill", 1, 8192, 32, (), "8192 tokens, 32 heads"),
    "prefill_h64": ("prefill", 1, 8192, 64, (), "8192 tokens, 64 heads"),
    "prefill_h96": ("prefill", 1, 8192, 96, (), "8192 tokens, 96 heads"),
    "prefill_packed": (
        *("prefill", 1, 8192, 64, (1300, 547, 2048, 963, 271, 3063)),
        "6 packed sequences, 8192 tokens, 64 heads",
    ),
    "train_h32": ("train", 1, 8192, 32, (), "forward and backward, 8192 tokens, 32 heads"),
    **{
        f"{kind}_{batch}": (kind, batch, 1, 32, (), f"{what}, batch {batch}, 32 heads")
        for kind, what in (
            ("decode", "a recurrent step"),
            ("exact_decode", "a step with the bits of the prefill"),
        )
        for batch in (1, 8, 32, 128)
    },
    "conv": ("conv", 1, 8192, 12288, (), "convolution of 4, silu, 8192 tokens, 12288 channels"),
    "conv_step_128": ("conv_step", 128, 1, 12288, (), "its step, batch 128"),
    "norm_h32": ("norm", 1, 8192, 32, (), "gated norm, 8192 tokens, 32 heads"),
}
DEFAULT = (
    *("prefill_h32", "prefill_h16", "train_h32", "decode_32", "exact_decode_32"),
    *("conv", "conv_step_128", "norm_h32"),
)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", default=",".join(DEFAULT), help="names, or all (see --list)")
    parser.add_argument("--peers", default=",".join(PEERS), help="of fla, attn_gym (default both)")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a call may take")
    parser.add_argument("--total", type=float, default=1e9, help="seconds that all may take")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument(
        "--warm", type=int, default=0, help="processes that compile each peer's call first (none)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("--list", action="store_true", help="name the cases, and stop")
    # What a process of its own is told: the case, who, and its share of others' compiling.
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--compile-only", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.case = list(CASES) if given.case == "all" else given.case.split(",")
    given.peers = [name for name in given.peers.split(",") if name]
    for what, names, known in (("case", given.case, CASES), ("peers", given.peers, PEERS)):
        for name in names:
            if name not in known:
                parser.error(f"--{what}: {name!r}; accepted: {', '.join(known)}")
    return given


# --- one call, in a process of its own -------------------------------------------------------


def compile_only(share: int, shares: int) -> None:
    """Makes Triton's tuner compile all that it would time, beginning with this process's share: who
    comes later finds it in the cache on the disk."""
    tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    prune = tuner.prune_configs

    def once(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    def turned(self: Any, kwargs: Any) -> Any:
        configs = prune(self, kwargs)
        begin = len(configs) * share // shares
        return configs[begin:] + configs[:begin]

    def not_kept(self: Any, key: Any, configs: Any, bench: Callable[[], None]) -> bool:
        bench()
        return False

    tuner.do_bench, tuner.prune_configs = staticmethod(once), turned
    tuner.check_disk_cache = not_kept


BUSY = 0.5  # seconds after which the clock of a GPU that was idle is up


def elapsed(torch: Any, call: Callable[[], Any], times: int) -> float:
    """ms a call, by events, median, of a GPU that has been busy with it."""
    began = time.monotonic()
    while time.monotonic() - began < BUSY:
        call()
        torch.cuda.synchronize()
    all_times = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        all_times.append(begin.elapsed_time(end))
    return float(sorted(all_times)[times // 2])


def timed(torch: Any, job: Any) -> dict[str, Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            job.step(i)
    stream.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    job.step(0)
    memory = (torch.cuda.max_memory_allocated() - before) / 1e6
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for i in range(job.steps):
                job.step(i)
        ms, by = elapsed(torch, graph.replay, 9), "graph"
    except Exception as error:
        torch.cuda.synchronize()

        def run() -> None:
            for i in range(job.steps):
                job.step(i)

        ms, by = elapsed(torch, run, 9), f"events ({reason(error)})"
    return {"ms": ms / job.steps, "by": by, "memory_mb": round(memory)}


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return text if type(error).__name__ == "Refused" else f"{type(error).__name__}: {text}"


# What takes a while to import.
MODULES = {"libkda": "libkda", "fla": "fla.ops.kda", "attn_gym": "attn_gym.linear.kda"}


def run_one(name: str, who: str, share: list[int] | None, wait: bool = False) -> dict[str, Any]:
    """A row, or {"reason": why there is none}. Waits for its turn before it uses the GPU."""
    try:
        import torch
    except ImportError as error:
        return {"reason": reason(error)}
    if not torch.cuda.is_available():
        return {"reason": "no CUDA device"}
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        if share:
            compile_only(*share)
        calls: Any = importlib.import_module("peer_calls")
        importlib.import_module(MODULES[who])
        torch.cuda.init()
        if wait:
            sys.stdin.readline()
        case = calls.Case(*CASES[name])
        job = calls.KINDS[case.kind](case, who)
        if share:
            job.step(0)
            torch.cuda.synchronize()
            return {}
        row = timed(torch, job)
        row["errors"] = job.check()
        return {**row, "device": torch.cuda.get_device_name()}
    except ModuleNotFoundError as error:
        return {"reason": f"not installed: {error}"}
    except Exception as error:
        return {"reason": reason(error)}


# --- all of them -----------------------------------------------------------------------------


def in_process(
    command: list[str], turn: Lock | None, seconds: Callable[[], float]
) -> dict[str, Any]:
    """The row that a process prints as its last line. It is told when its turn has come, and ends
    with its children after that many seconds."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=log, start_new_session=True
        )
        with turn or nullcontext():
            limit = seconds()
            try:
                process.communicate(b"\n", max(limit, 0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                late = f"not done after {limit:.3g} s" if limit > 0 else "no time was left"
                return {"reason": late}
        for file in (out, log):
            file.seek(0)
        lines = out.read().splitlines()
        try:
            return dict(json.loads(lines[-1]))
        except (IndexError, ValueError):
            said = " ".join(log.read().split())[-200:]
            return {"reason": f"ended with {process.returncode}: {said}"}


def command(name: str, who: str, *more: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--run", name, who, *more]


def worst(row: dict[str, Any]) -> str:
    errors = row.get("errors") or {"?": float("nan")}
    name = max(errors, key=lambda n: math.inf if math.isnan(errors[n]) else errors[n])
    return f"{errors[name]:.1e} {name}"


def cell(row: dict[str, Any], ours: dict[str, Any] | None) -> str:
    if "ms" not in row:
        return "-"
    mark = "" if row["by"] == "graph" else "e"
    time_text = f"{row['ms']:.3f}" if row["ms"] >= 0.1 else f"{row['ms']:.4f}"
    ratio = f" x{row['ms'] / ours['ms']:.2f}" if ours and "ms" in ours else ""
    return f"{time_text}{mark}{ratio} ({worst(row)})"


def table(rows: list[dict[str, Any]], peers: Iterable[str]) -> str:
    """A line a case: ms of libkda, of each peer with its multiple of that, and errors."""
    columns = [OURS, *peers]
    by_case: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["who"]] = row
    lines = [["case, ms", *columns]]
    for name, found in by_case.items():
        ours = found.get(OURS)
        cells = [
            cell(found[w], None if w == OURS else ours) if w in found else "-" for w in columns
        ]
        lines.append([name, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    text += [f"{r['case']}, {r['who']}: {r['reason']}" for r in rows if "reason" in r]
    return "\n".join(text)


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    began, turn, writing = time.monotonic(), Lock(), Lock()
    calls = [(name, who) for name in given.case for who in (OURS, *given.peers)]
    rows: dict[tuple[str, str], dict[str, Any]] = {}

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    def seconds() -> float:
        return float(min(given.limit, given.total - (time.monotonic() - began)))

    def warm(call: tuple[str, str], share: int) -> None:
        more = ("--compile-only", str(share), str(given.warm))
        in_process(command(*call, *more), None, seconds)

    def run(call: tuple[str, str]) -> None:
        name, who = call
        say(f"{name}, {who}: begins" + ("" if who == OURS else "; compiles and tunes"))
        row = in_process(command(name, who, "--wait"), turn, seconds)
        rows[call] = {"case": name, "who": who, **row}
        say(f"{name}, {who}: {row.get('reason') or cell(row, None)}")
        with writing:  # anew after each, so that who stops this has what there is
            if given.json:
                Path(given.json).write_text(json.dumps(ordered(), indent=1) + "\n")

    def ordered() -> list[dict[str, Any]]:
        return [rows[call] for call in calls if call in rows]

    with ThreadPoolExecutor(max(1, given.jobs)) as pool:
        if given.warm:
            say("compiles all that will be tuned")
            theirs = [call for call in calls if call[1] != OURS]
            shares = [(call, share) for share in range(given.warm) for call in theirs]
            list(pool.map(lambda s: warm(*s), shares))
        list(pool.map(run, calls))
    return ordered()


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    if given.run:
        print(
            json.dumps(run_one(given.run[0], given.run[1], given.compile_only, given.wait)),
            flush=True,
        )
        return 0
    if given.list:
        for name, case in CASES.items():
            print(f"{name:16} {case[-1]}{'  (default)' if name in DEFAULT else ''}")
        return 0
    try:
        importlib.import_module("torch")
    except ImportError as error:
        print(f"{Path(__file__).name}: {error}; it needs PyTorch and a GPU", file=sys.stderr)
        return 1
    rows = measure(given)
    print(table(rows, given.peers))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
