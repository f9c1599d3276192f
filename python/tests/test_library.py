"""libkda_torch.so and the Python files are of one version, or the import says what is wrong."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import libkda
from libkda import _library

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = 'const char* kda_torch_version(void) { return "%s"; }\n'
REVISION = "int kda_torch_operators(void) { return %d; }\n"
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def made(folder: Path, source: str) -> Path:
    """A shared library of this source."""
    assert COMPILER is not None
    text, library = folder / "fake.c", folder / "libkda_torch.so"
    text.write_text(source)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, text], check=True, timeout=60)
    return library


def names() -> list[str]:
    return sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("kda::"))


def schemas() -> str:
    return "\n".join(str(torch._C._get_schema(name, "")) for name in names())


def test_versions_are_one() -> None:
    loaded = ctypes.CDLL(_library.path)
    loaded.kda_torch_version.restype = ctypes.c_char_p
    assert loaded.kda_torch_version().decode() == libkda.__version__
    assert loaded.kda_torch_operators() == _library.OPERATORS
    for file, pattern in (
        ("pyproject.toml", r'(?m)^version = "(.+)"$'),
        ("CMakeLists.txt", r"project\(kda VERSION (\S+) "),
    ):
        found = re.search(pattern, (ROOT / file).read_text())
        assert found is not None and found[1] == libkda.__version__, file


def test_the_revision_is_raised_with_the_schemas() -> None:
    digest = hashlib.sha256(schemas().encode()).hexdigest()[:16]
    assert (_library.OPERATORS, digest) == (3, "9e35de7c3b465bcf"), (
        "the operators' schemas changed: raise OPERATORS in python/libkda/_library.py and "
        "kOperators in bindings/torch/operators.h, and note both here"
    )


def test_arguments_have_names_of_their_own() -> None:
    # torch takes a schema where two have one, but torch.compile passes arguments by name.
    for name in names():
        given = [argument.name for argument in torch._C._get_schema(name, "").arguments]
        assert len(set(given)) == len(given), name


@needs_compiler
@pytest.mark.parametrize(
    ("source", "has"),
    [
        (VERSIONS % "0.0.9" + REVISION % _library.OPERATORS, "libkda 0.0.9, revision"),
        (VERSIONS % libkda.__version__ + REVISION % 0, rf"libkda {libkda.__version__}, revision 0"),
        ("", "operators from before versions were compared"),
    ],
)
@pytest.mark.parametrize(
    ("named", "advice"), [(True, "LIBKDA_TORCH names it: unset"), (False, "pip install")]
)
def test_another_version_is_refused(
    tmp_path: Path, source: str, has: str, named: bool, advice: str
) -> None:
    library = made(tmp_path, source + "int kda_fake;\n")
    ours = rf"are of libkda {libkda.__version__}, revision {_library.OPERATORS}"
    with pytest.raises(ImportError, match=rf"{library} has .*{has}.*{ours}.*{advice}"):
        _library.check(library, named)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "libkda_torch.so"
    with pytest.raises(ImportError, match=r"is not there; install with"):
        _library.load(text, named=True)
    text.write_text("no library")
    with pytest.raises(
        ImportError, match=rf"does not load into torch {re.escape(torch.__version__)}"
    ):
        _library.load(text, named=True)


@needs_compiler
def test_an_import_says_so(tmp_path: Path) -> None:
    library = made(tmp_path, VERSIONS % "0.0.9" + REVISION % 7)
    environment = {**os.environ, "LIBKDA_TORCH": str(library), "PYTHONPATH": str(ROOT / "python")}
    run = subprocess.run(
        [sys.executable, "-c", "import libkda"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode != 0
    assert "has the operators of libkda 0.0.9, revision 7" in run.stderr.splitlines()[-1]
