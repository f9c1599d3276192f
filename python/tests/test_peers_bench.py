"""bench/peers.py, as far as it goes without a GPU: arguments, the table, peers that are missing."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "bench/peers.py"
spec = importlib.util.spec_from_file_location("peers", PATH)
assert spec is not None and spec.loader is not None
peers: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peers)

MEASURED = {"ms": 0.25, "by": "graph", "errors": {"o": 2.9e-3, "state": 4e-4}}


def test_help_has_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        peers.parse(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    examples = re.findall(r"python3 bench/peers.py(.*)", text)
    assert len(examples) == 3
    for example in examples:
        assert peers.parse(example.split()).case
    assert "--compile-only" not in text  # between its own processes


def test_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    given = peers.parse([])
    assert given.case == list(peers.DEFAULT) and given.peers == ["fla", "attn_gym"]
    assert peers.parse(["--case", "all"]).case == list(peers.CASES)
    assert peers.parse(["--peers", ""]).peers == []
    for arguments in (["--case", "prefill_h33"], ["--peers", "fla,flashkda"]):
        with pytest.raises(SystemExit) as end:
            peers.parse(arguments)
        assert end.value.code == 2
        assert "; accepted: " in capsys.readouterr().err


def test_list_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(peers.CASES)
    assert sum("(default)" in line for line in lines) == len(peers.DEFAULT)


def test_the_table_has_multiples_and_reasons() -> None:
    rows = [
        {"case": "a", "who": "libkda", **MEASURED},
        {"case": "a", "who": "fla", **MEASURED, "ms": 0.5},
        {"case": "a", "who": "attn_gym", **MEASURED, "ms": 0.05, "by": "events (no)"},
        {"case": "b", "who": "libkda", "reason": "Error: no gradients"},
        {"case": "b", "who": "fla", **MEASURED, "ms": 4.0},
    ]
    lines = peers.table(rows, ["fla", "attn_gym"]).splitlines()
    assert lines[0].split("  ")[0] == "case, ms"
    assert lines[1].split() == [
        *("a", "0.250", "(2.9e-03", "o)", "0.500", "x2.00", "(2.9e-03", "o)"),
        *("0.0500e", "x0.20", "(2.9e-03", "o)"),
    ]
    assert lines[2].split() == ["b", "-", "4.000", "(2.9e-03", "o)", "-"]  # no multiple of nothing
    assert lines[3:] == ["b, libkda: Error: no gradients"]


def test_a_process_that_fails_or_hangs_is_a_reason() -> None:
    def run(code: str, limit: float = 30) -> Any:
        return peers.in_process([sys.executable, "-c", code], None, lambda: limit)

    assert run("print('noise'); print('{\"ms\": 1}')") == {"ms": 1}
    assert run("import time; time.sleep(60)", 0.5) == {"reason": "not done after 0.5 s"}
    assert run("import time; time.sleep(60)", -1) == {"reason": "no time was left"}
    assert re.match(
        r"ended with 3: bad luck",
        run("import sys; print('bad luck', file=sys.stderr); sys.exit(3)")["reason"],
    )
    assert run("import json; print(json.dumps({'told': input()}))") == {"told": ""}
    assert run("import os; os.abort()")["reason"].startswith("ended with -6")


def test_what_is_not_installed_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "fla.ops.kda", None)
    monkeypatch.setitem(sys.modules, "peer_calls", type(sys)("peer_calls"))
    assert peers.run_one("norm_h32", "fla", None)["reason"].startswith("not installed: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_every_row_says_so(tmp_path: Path) -> None:
    kept = tmp_path / "rows.json"
    run = subprocess.run(
        [sys.executable, str(PATH), "--case", "norm_h32", "--peers", "", "--json", str(kept)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("norm_h32, libkda: no CUDA device\n")
    assert "norm_h32, libkda: no CUDA device" in run.stderr  # told as it goes, too
    assert [row["reason"] for row in json.loads(kept.read_text())] == ["no CUDA device"]
