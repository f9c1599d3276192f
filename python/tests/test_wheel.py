"""The wheel: what pip installs runs where nothing else of this folder is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import libkda._library

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LIBKDA_TORCH")}
    return subprocess.run(
        command, cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=240
    )


@pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None, reason="no scikit-build-core"
)
def test_an_installed_wheel_computes(tmp_path: Path) -> None:
    installed = tmp_path / "site"
    pip = run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"),
        *("--no-index", "--target", str(installed), "-C", f"build-dir={tmp_path / 'build'}"),
        str(ROOT),
        cwd=tmp_path,
        KDA_TORCH_LIBRARY=libkda._library.path,
    )
    assert pip.returncode == 0, pip.stdout + pip.stderr
    assert (installed / "libkda" / "py.typed").is_file()
    for command in (
        ["-m", "libkda"],
        ["-c", "import libkda; assert libkda.__file__.startswith(" + repr(str(installed)) + ")"],
    ):
        used = run(sys.executable, *command, cwd=tmp_path, PYTHONPATH=str(installed))
        assert used.returncode == 0, used.stdout + used.stderr
