"""Loads libkda_torch.so, which registers the operators torch.ops.kda.*.

The file lies beside this one in an installed package. LIBKDA_TORCH names another, e.g. the one in a
build folder: LIBKDA_TORCH=build/libkda_torch.so. It has to be of the same version as the Python
files: an operator of another might take other arguments, or mean other things by them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("libkda needs PyTorch: pip install 'torch>=2.10'") from error

__version__ = "0.1.0"

# As in bindings/torch/operators.h: raised where a schema, or what it means, changes.
OPERATORS = 3

_INSTALL = "pip install --no-build-isolation ."


def check(path: Path, named: bool) -> None:
    """An ImportError if `path`, which is loaded, is not of the version of these files."""
    library = ctypes.CDLL(str(path))
    try:
        library.kda_torch_version.restype = ctypes.c_char_p
        was = library.kda_torch_version().decode(), library.kda_torch_operators()
    except AttributeError:
        has = "operators from before versions were compared"
    else:
        if was == (__version__, OPERATORS):
            return
        has = f"the operators of libkda {was[0]}, revision {was[1]}"
    advice = (
        "LIBKDA_TORCH names it: unset that, or build it anew from the source of these files"
        if named
        else f"install both anew from one source: {_INSTALL} (without KDA_TORCH_LIBRARY, which "
        "packs a file that is built already)"
    )
    raise ImportError(
        f"libkda: {path} has {has}; the Python files in {Path(__file__).parent} are of libkda "
        f"{__version__}, revision {OPERATORS}; {advice}"
    )


def load(path: Path, named: bool) -> str:
    """Registers the operators in `path`, which LIBKDA_TORCH named or not."""
    if not path.is_file():
        raise ImportError(
            f"libkda: {path} is not there; install with {_INSTALL}, or "
            "set LIBKDA_TORCH to the libkda_torch.so of a build folder"
        )
    path = path.resolve()
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        raise ImportError(
            f"libkda: {path} does not load into torch {torch.__version__}; accepted: torch >= 2.10 "
            f"and one libkda in a process: {error}"
        ) from error
    check(path, named)
    return str(path)


_NAMED = os.environ.get("LIBKDA_TORCH")
path: str = load(
    Path(_NAMED) if _NAMED else Path(__file__).with_name("libkda_torch.so"), bool(_NAMED)
)
