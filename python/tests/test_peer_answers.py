"""libkda.compat beside the recorded answers of FLA's and FlashKDA's kernels (KDA_SHARED_DIR or
../shared, with peer_vectors/), on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from libkda.compat import fla, flash_kda
from naive import error

SHARED = Path(os.environ.get("KDA_SHARED_DIR") or Path(__file__).resolve().parents[3] / "shared")
FILES = sorted(SHARED.glob("peer_vectors/*.safetensors"))
if not FILES:
    pytest.skip(f"no peer_vectors in {SHARED}", allow_module_level=True)
safetensors: Any = pytest.importorskip("safetensors")

MIXED = 5e-3  # what libkda promises for 16-bit inputs; float32 ones do better
DEVICES = pytest.mark.parametrize(
    "device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
)


def cases() -> dict[str, tuple[Path, dict[str, Any]]]:
    found = {}
    for file in FILES:
        with safetensors.safe_open(file, "pt") as opened:
            for name, options in json.loads(opened.metadata()["cases"]).items():
                found[name] = (file, options)
    return found


CASES = cases()
OF_FLA = [n for n, (_, o) in CASES.items() if o["op"] == "kda" and "fla_err" in o]
OF_FLASH_KDA = [n for n, (_, o) in CASES.items() if "flashkda_err" in o]


def read(name: str, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options and tensors of a case."""
    file, options = CASES[name]
    with safetensors.safe_open(file, "pt") as opened:
        names = [n for n in opened.keys() if n.startswith(f"{name}/")]  # noqa: SIM118
        return options, {n.split("/")[1]: opened.get_tensor(n).to(device) for n in names}


def compare(x: dict[str, Any], whose: str, o: Tensor, state: Tensor, known: list[float]) -> None:
    """Ours are near the truth, and as far from theirs as both errors together allow."""
    for got, name, their_error in ((o, "o", known[0]), (state, "ht", known[1])):
        assert error(got, x[f"true.{name}"].double()) <= MIXED, name
        apart = error(got, x[f"{whose}.{name}"].double())
        # Their own error is relative to the truth, not to their answer: one in a hundred more.
        assert apart <= 1.01 * (MIXED + their_error), name


@DEVICES
@pytest.mark.parametrize("name", OF_FLA)
def test_fla(name: str, device: str) -> None:
    options, x = read(name, device)
    raw = options["gate"] != "log"
    lengths = options["lens"]
    inputs: dict[str, Any] = {n: x[n] for n in ("q", "k", "v", "g", "beta")}
    more: dict[str, Any] = {
        "scale": options["scale"],
        "initial_state": x["h0"],
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": options["l2norm"],
        "use_gate_in_kernel": raw,
        "use_beta_sigmoid_in_kernel": options["sigmoid_beta"],
        "lower_bound": options["lower_bound"],
        "cu_seqlens": None if lengths is None else torch.tensor([0, *lengths]).cumsum(0),
        "A_log": x.get("A_log"),
        "dt_bias": x["dt_bias"].flatten() if "dt_bias" in x else None,
    }
    if device == "cuda" and x["q"].dtype == torch.float32:
        with pytest.raises(RuntimeError, match=r"precision: fp32; accepted: .+ on CUDA"):
            fla.chunk_kda(**inputs, **more)
        return
    o, state = fla.chunk_kda(**inputs, **more)
    assert state is not None
    compare(x, "fla", o, state, options["fla_err"])


@DEVICES
@pytest.mark.parametrize("name", OF_FLASH_KDA)
def test_flash_kda(name: str, device: str) -> None:
    options, x = read(name, device)
    out, final = torch.empty_like(x["v"]), torch.empty_like(x["h0"].mT)
    names = ("q", "k", "v", "g", "beta", "A_log", "dt_bias")
    given: dict[str, Any] = {n: x[n] for n in names}
    given |= {n: options[n] for n in ("scale", "lower_bound")}
    flash_kda.fwd(
        **given,
        out=out,
        initial_state=x["h0"].mT.contiguous(),
        final_state=final,
    )
    compare(x, "flashkda", out, final.mT, options["flashkda_err"])
