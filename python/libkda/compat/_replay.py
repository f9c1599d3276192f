"""attn-gym's replay states: a plain state at the last multiple of 64 tokens, and the tokens since.

A call computes the open 64 tokens anew from the plain state, so its outputs have the bits of one
uncut call, as far as the pool is float32. libkda.StreamingState has these bits too, and keeps what
it has computed: a step costs it a fraction of this.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from libkda import _ops
from libkda.compat import refuse

CHUNK = 64


class ReplayState(NamedTuple):
    """The tokens [slots, 64, ...] of each slot since its plain state, and how many they are."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    beta: Tensor
    count: Tensor  # type: ignore[assignment]  # as attn-gym calls it, though tuples have a count()


Tokens = tuple[Tensor, ...]  # q, k, v, gate, beta


def _check(tokens: Tokens, pool: Tensor, slots: Tensor, replay: ReplayState) -> None:
    for name, cache, x in zip(ReplayState._fields, replay[:5], tokens, strict=False):
        shape = (pool.shape[0], CHUNK, *x.shape[2:])
        if tuple(cache.shape) != shape:
            refuse("replay_state", f"{name} of shape {list(cache.shape)}", f"{list(shape)}")
    if replay.count.numel() != pool.shape[0]:
        refuse("replay_state", f"count of {replay.count.numel()} numbers", f"{pool.shape[0]}")
    if slots.device.type == "cpu" and slots.numel() and int(slots.max()) >= pool.shape[0]:
        refuse("state_indices", int(slots.max()), f"below {pool.shape[0]}")


def _wide(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *(1,) * (like.dim() - 1))


def _kept(cache: Tensor, x: Tensor) -> Tensor:
    """x as the cache stores it: outputs hang on that alone, whichever call they come from."""
    return x.to(cache.dtype)


def _chunks(tokens: Tokens, states: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    o, final = _ops.chunk_kda(
        *tokens,
        initial_state=states,
        output_final_state=True,
        state_layout="value_first",
        cu_seqlens=cu_seqlens,
    )
    assert final is not None
    return o, final


def _step(
    tokens: Tokens, pool: Tensor, slots: Tensor, starts: Tensor | None, replay: ReplayState
) -> Tensor:
    """One token of each sequence. Nothing is read back from a GPU: a CUDA graph may hold it."""
    count = replay.count.view(-1)
    active = (slots > 0) & (slots < pool.shape[0])
    at = torch.where(active, slots, 0).long()  # padding writes slot 0 back, as it was
    old = pool[at].float()
    state, open_tokens = old, torch.where(active, count[at], 0).long()
    if starts is not None:
        state = torch.where(_wide(starts | ~active, old), old, 0)
        open_tokens = torch.where(starts, open_tokens, 0)
    sequence = torch.arange(len(at), device=at.device)
    behind = torch.arange(CHUNK, device=at.device) > open_tokens[:, None]
    rows = []
    for cache, x in zip(replay[:5], tokens, strict=False):
        token = torch.where(_wide(active, x[:, 0]), _kept(cache, x[:, 0]), cache[at, open_tokens])
        cache[at, open_tokens] = token
        row = cache[at]  # behind the token may lie anything, and Inf would make NaN before it
        rows.append(row.masked_fill(behind.view(*behind.shape, *(1,) * (row.dim() - 2)), 0))
    o, final = _chunks(tuple(rows), state, None)
    full = active & (open_tokens == CHUNK - 1)
    pool[at] = torch.where(_wide(full, old), final, state).to(pool.dtype)
    after = torch.where(full, 0, open_tokens + 1).to(count.dtype)
    count[at] = torch.where(active, after, count[at])
    last = o[sequence, open_tokens]
    return torch.where(_wide(active, last), last, 0)[:, None]


def _pieces(
    tokens: Tokens,
    pool: Tensor,
    slots: Tensor,
    starts: Tensor | None,
    replay: ReplayState,
    bounds: list[int],
) -> Tensor:
    """Any number of tokens: whole chunks of 64 first, and from their states what is left."""
    count = replay.count.view(-1)
    o = tokens[2].new_zeros((1, *tokens[2].shape[1:]))
    live = [(n, slot) for n, slot in enumerate(slots.tolist()) if 0 < slot < pool.shape[0]]
    fresh = [False] * len(slots) if starts is None else [not s for s in starts.tolist()]
    for n, slot in live:
        if fresh[n]:
            pool[slot], count[slot] = 0, 0
    began = count.tolist()
    given = [
        [
            torch.cat([cache[slot, : began[slot]], _kept(cache, x[0, bounds[n] : bounds[n + 1]])])
            for cache, x in zip(replay[:5], tokens, strict=False)
        ]
        for n, slot in live
    ]
    outputs: list[list[Tensor]] = [[] for _ in live]
    for whole in (True, False):
        parts = []
        for i, token in enumerate(given):
            cut = len(token[0]) // CHUNK * CHUNK
            part = [x[:cut] if whole else x[cut:] for x in token]
            if len(part[0]):
                parts.append((i, part))
        if not parts:
            continue
        at = torch.tensor([live[i][1] for i, _ in parts], device=pool.device)
        packed = tuple(torch.cat(x)[None] for x in zip(*(p for _, p in parts), strict=True))
        lengths = [len(part[0]) for _, part in parts]
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
        out, final = _chunks(packed, pool[at].float(), cu_seqlens)
        if whole:
            pool[at] = final.to(pool.dtype)
        for (i, _), piece in zip(parts, out[0].split(lengths), strict=True):
            outputs[i].append(piece)
    for (n, slot), token, pieces in zip(live, given, outputs, strict=True):
        if pieces:
            o[0, bounds[n] : bounds[n + 1]] = torch.cat(pieces)[began[slot] :]
        tail = len(token[0]) % CHUNK
        count[slot] = tail
        for cache, x in zip(replay[:5], token, strict=False):
            cache[slot, :tail] = x[len(x) - tail :]
    return o


def advance(
    tokens: Tokens,
    pool: Tensor,
    slots: Tensor,
    has_initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    replay_state: tuple[Tensor, ...],
) -> Tensor:
    """Outputs of the tokens; pool and replay_state move on in place."""
    replay = ReplayState(*replay_state)
    _check(tokens, pool, slots, replay)
    starts = None if has_initial_state is None else has_initial_state.bool()
    batch, length = tokens[0].shape[:2]
    with torch.no_grad():
        if cu_seqlens is None and length == 1:
            return _step(tokens, pool, slots, starts, replay)
        bounds = (
            [n * length for n in range(batch + 1)] if cu_seqlens is None else cu_seqlens.tolist()
        )
        packed = tuple(x.flatten(0, 1)[None] for x in tokens)
        o = _pieces(packed, pool, slots, starts, replay, bounds)
        return o.view(tokens[2].shape)
