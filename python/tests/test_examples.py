"""The examples run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import libkda

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "decode.py")
    assert capsys.readouterr().out.count("the bits of one call") == 3


def test_python_m_libkda(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("libkda", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    starts = [f"libkda {libkda.__version__}; operators: ", "torch ", "CUDA: "]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=False))
    assert lines[3].endswith(": the same bits")


@pytest.mark.parametrize("backend", ["fused", "chunkwise", "recurrent"])
def test_train(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "50" if backend == "fused" else "2"
    run(monkeypatch, "train.py", "--backend", backend, "--steps", steps)
    if backend == "fused":
        last = capsys.readouterr().out.splitlines()[-1]
        assert float(last.split()[3].rstrip(",")) < 2.6, last  # chance: log 16 = 2.77
