"""What a call ran."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from libkda._options import Precision, Reference

_BACKENDS = ("cpu", "cuda")
_ISAS = ("best", "sse4", "avx2", "avx512", "avx512_bf16", "neon")
# The order of bindings/torch/ran.cc.
_NUMBERS = (
    "backend",
    "isa",
    "precision",
    "reference",
    "chunk",
    "key_window",
    "shift",
    "cuts",
    "threads",
    "chunks",
    "windows",
    "one_token_windows",
)

# Bits of status: kda/cuda.hpp.
_WRONG = {
    1: ("cu_seqlens", "bounds out of order or beyond the tokens", "0, rising, at most T"),
    2: ("slots", "one that these states do not have", "below the number of slots"),
    4: (
        "counts",
        "more tokens than there are or fit",
        "at most max_draft and the drafts that wait",
    ),
}


def raise_if_wrong(status: Tensor) -> None:
    """Waits for the device, and clears what it says."""
    bits = int(status)
    status.zero_()
    for bit, (argument, was, accepted) in _WRONG.items():
        if bits & bit:
            raise RuntimeError(f"{argument}: {was}; accepted: {accepted}")


class Ran:
    """What a call ran: kda::Ran of include/kda/kda.hpp. Give an empty one, and read it after.

    >>> ran = libkda.Ran()
    >>> o, _ = libkda.chunk_kda(q, k, v, g, beta, ran=ran)
    >>> ran.backend, ran.precision, ran.chunk, ran.windows
    ('cpu', 'fp32', 32, 16)

    On a GPU isa is "best"; threads and windows, and with cu_seqlens there chunks, are 0. check()
    tells what of the indices that lie there was wrong.
    """

    def __init__(self) -> None:
        self.numbers = torch.zeros(len(_NUMBERS), dtype=torch.int64, device="cpu")
        self.status: Tensor | None = None

    def check(self) -> None:
        """Waits for a GPU, and raises where cu_seqlens or slots that lie there were wrong."""
        if self.status is not None:
            raise_if_wrong(self.status)

    def _get(self, name: str) -> int:
        return int(self.numbers[_NUMBERS.index(name)])

    @property
    def backend(self) -> str:
        """ "cpu" or "cuda"."""
        return _BACKENDS[self._get("backend")]

    @property
    def isa(self) -> str:
        """The CPU's instruction set: "sse4", "avx2", "avx512", "avx512_bf16", "neon"."""
        return _ISAS[self._get("isa")]

    @property
    def precision(self) -> str:
        """What "automatic" came to."""
        return str(get_args(Precision)[self._get("precision")])

    @property
    def reference(self) -> str:
        """Where a window's decays are measured from."""
        return str(get_args(Reference)[self._get("reference")])

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return self._get("chunk")

    @property
    def key_window(self) -> int:
        """The most tokens that a window holds."""
        return self._get("key_window")

    @property
    def shift(self) -> int:
        """m of (11) in docs/math.md, bits."""
        return self._get("shift")

    @property
    def cuts(self) -> bool:
        """Windows may end early: the gate has no bound that fits."""
        return bool(self._get("cuts"))

    @property
    def threads(self) -> int:
        """Tasks at a time."""
        return self._get("threads")

    @property
    def chunks(self) -> int:
        """Of all sequences and value heads."""
        return self._get("chunks")

    @property
    def windows(self) -> int:
        """Of all chunks."""
        return self._get("windows")

    @property
    def one_token_windows(self) -> int:
        """Of these, windows of one token."""
        return self._get("one_token_windows")

    def __repr__(self) -> str:
        return f"Ran({', '.join(f'{name}={getattr(self, name)!r}' for name in _NUMBERS)})"


def told_by(ran: Ran | None, where: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """What an operator that changes something writes into: ran's numbers, and its status."""
    if ran is None:
        return None, None
    ran.status = torch.zeros(1, dtype=torch.int32, device=where)
    return ran.numbers, ran.status
