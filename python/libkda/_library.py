"""Loads libkda_torch.so, which registers the operators torch.ops.kda.*.

The file lies beside this one in an installed package. LIBKDA_TORCH names another, e.g. the one in a
build folder: LIBKDA_TORCH=build/libkda_torch.so.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch


def _load() -> str:
    named = os.environ.get("LIBKDA_TORCH")
    path = Path(named) if named else Path(__file__).with_name("libkda_torch.so")
    if not path.is_file():
        raise ImportError(
            f"libkda: {path} is not there; install with pip install --no-build-isolation ., or "
            "set LIBKDA_TORCH to the libkda_torch.so of a build folder"
        )
    torch.ops.load_library(str(path.resolve()))
    return str(path.resolve())


path: str = _load()
