"""Where a call's tensors may be, said before an operator is chosen by it."""

from __future__ import annotations

import torch
from torch import Tensor

# On a GPU these may stay on the CPU: then they are checked there, and copied.
_INDICES = ("cu_seqlens", "slots", "has_initial_state", "counts")


def check_devices(where: torch.device | None = None, /, **tensors: Tensor | None) -> None:
    """All where states are, or else the first tensor is; but for indices beside CUDA tensors."""
    if where is None:
        first = next(iter(tensors.values()))
        assert first is not None
        where = first.device
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        kind = tensor.device.type
        if kind not in ("cpu", "cuda", "meta"):
            raise RuntimeError(f"{name}: on {tensor.device}; accepted: a CPU or CUDA tensor")
        if tensor.device == where:
            continue
        if where.type != "cuda" or kind != "cpu" or name not in _INDICES:
            raise RuntimeError(f"{name}: on {tensor.device}; accepted: a tensor on {where}")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{name}: on {tensor.device} while a CUDA graph is captured; accepted: a tensor on "
                f"{where}, which the graph reads anew each time"
            )
