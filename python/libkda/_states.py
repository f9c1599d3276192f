"""What holds the streaming states of a StreamingState: on the CPU an object of libkda's, on a GPU
the memory of a tensor."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from libkda._options import Options, StateLayout
from libkda._ran import raise_if_wrong

_ops = torch.ops.kda

# A CudaLayer as cuda_decode_layer takes it: its tensors, activation, eps.
LayerArguments = tuple[Any, ...]


class CpuStates:
    def __init__(
        self, slots: int, heads: int, key_dim: int, value_dim: int, max_draft: int, options: Options
    ) -> None:
        name: int = _ops.states_new(heads, key_dim, value_dim, slots, max_draft, *options)
        self._free = weakref.finalize(self, _ops.states_free, name)
        # The operators' name of these states; a tensor, so that they can say that they change it.
        self.handle = torch.tensor([name], dtype=torch.int64, device="cpu")

    def tokens(self, slot: int) -> int:
        return int(_ops.states_tokens(self.handle, slot))

    def draft_tokens(self, slot: int) -> int:
        return int(_ops.states_draft_tokens(self.handle, slot))

    def decode(
        self,
        ran: Tensor | None,
        tensors: tuple[Tensor | None, ...],
        slots: Tensor | None,
        has_initial_state: Tensor | None,
        draft: bool,
        checkpoints: list[int],
        layer: LayerArguments | None,
    ) -> Tensor:
        if layer is not None:
            raise RuntimeError(
                "layer: given with states on cpu; accepted: states on a CUDA device; on the CPU "
                "update_conv_pool on each of q, k and v, then decode without layer, then gated_norm"
            )
        o: Tensor = _ops.decode(
            self.handle, ran, *tensors, slots, has_initial_state, draft, checkpoints
        )
        return o

    def commit(self, counts: Tensor, slots: Tensor | None) -> None:
        _ops.states_commit(self.handle, slots, counts)

    def clear(self, slot: int) -> None:
        _ops.states_clear(self.handle, slot)

    def copy(self, source: int, target: int) -> None:
        _ops.states_copy(self.handle, source, target)

    def save(self, slot: int) -> Tensor:
        saved: Tensor = _ops.states_save(self.handle, slot)
        return saved

    def load(self, slot: int, saved: Tensor) -> None:
        _ops.states_load(self.handle, slot, saved)

    def plain(self, slots: Tensor | None, state_layout: StateLayout) -> Tensor:
        plain: Tensor = _ops.states_plain(self.handle, slots, state_layout)
        return plain

    def check(self) -> None:
        pass  # every call is checked before it runs


class CudaStates:
    def __init__(
        self,
        slots: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        max_draft: int,
        options: Options,
        device: torch.device,
    ) -> None:
        if (key_dim, value_dim) != (128, 128):
            raise RuntimeError(
                f"key_dim, value_dim: {key_dim}, {value_dim}; accepted: 128, 128 on {device}"
            )
        self._form = (heads, max_draft, *options)
        size: int = _ops.cuda_slot_bytes(*self._form)
        self.memory = torch.zeros(slots, size, dtype=torch.uint8, device=device)
        self.status = torch.zeros(1, dtype=torch.int32, device=device)

    def _slot(self, slot: int) -> Tensor:
        if not 0 <= slot < len(self.memory):
            raise RuntimeError(f"slot: {slot}; accepted: 0 to {len(self.memory) - 1}")
        return self.memory[slot]

    def tokens(self, slot: int) -> int:
        return int(self._slot(slot)[:8].view(torch.int64))

    def draft_tokens(self, slot: int) -> int:
        return int(self._slot(slot)[12:16].view(torch.int32))

    def decode(
        self,
        ran: Tensor | None,
        tensors: tuple[Tensor | None, ...],
        slots: Tensor | None,
        has_initial_state: Tensor | None,
        draft: bool,
        checkpoints: list[int],
        layer: LayerArguments | None,
    ) -> Tensor:
        told = (self.memory, self.status, ran)
        call = (*tensors, slots, has_initial_state, draft, checkpoints, *self._form)
        o: Tensor
        if layer is None:
            o = _ops.cuda_decode(*told, *call)
        else:
            o = _ops.cuda_decode_layer(*told, *layer, *call)
        return o

    def commit(self, counts: Tensor, slots: Tensor | None) -> None:
        _ops.cuda_commit(self.memory, self.status, slots, counts, *self._form)

    def clear(self, slot: int) -> None:
        self._slot(slot).zero_()

    def copy(self, source: int, target: int) -> None:
        self._slot(target).copy_(self._slot(source))

    def save(self, slot: int) -> Tensor:
        return self._slot(slot).clone()

    def load(self, slot: int, saved: Tensor) -> None:
        target = self._slot(slot)
        if saved.dtype != torch.uint8 or saved.shape != target.shape:
            raise RuntimeError(
                f"saved: {list(saved.shape)} {saved.dtype}; accepted: {list(target.shape)} "
                "torch.uint8, what save() gave"
            )
        target.copy_(saved)

    def plain(self, slots: Tensor | None, state_layout: StateLayout) -> Tensor:
        plain: Tensor = _ops.cuda_plain(self.memory, slots, state_layout, *self._form)
        return plain

    def check(self) -> None:
        raise_if_wrong(self.status)
