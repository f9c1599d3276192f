"""Does an earlier output change, by one bit, with a later token? For any function of a sequence.

    report = audit(lambda x: layer(x), x)           # x [B, T, ...]
    assert_causal(layer, x)                         # the same as a test

docs/causality.md says what such a leak does. Where shapes depend on nothing but T, and the function
is deterministic, a change that is found is real; one that is not found may need other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Leak:
    """Changing token `later` of the inputs (None: those behind a cut, together) changed `what` at
    the token `earlier`."""

    what: str  # "output 0", "gradient of input 2"
    earlier: int
    later: int | None
    change: float  # the largest absolute one up to `earlier`


@dataclass
class Report:
    """What was tried, and the first leak of each cut that has one."""

    cuts: int
    tokens: int
    leaks: list[Leak] = field(default_factory=list)

    @property
    def is_causal(self) -> bool:
        return not self.leaks

    def __str__(self) -> str:
        if self.is_causal:
            return f"{self.cuts} cuts of {self.tokens} tokens: no earlier bit changed"
        worst = max(self.leaks, key=lambda leak: leak.change)
        lines = [f"{len(self.leaks)} of {self.cuts} cuts of {self.tokens} tokens leak"]
        for name, leak in (("first", self.leaks[0]), ("largest", worst)):
            lines.append(
                f"{name}: {leak.what} at token {leak.earlier} changes by up to {leak.change:.3g} "
                + ("with later ones" if leak.later is None else f"with token {leak.later}")
            )
        return "\n".join(lines)


def audit(
    function: Callable[..., Any],
    *inputs: Tensor,
    dim: int = 1,
    cuts: Iterable[int] | None = None,
    draws: int = 2,
    gradients: bool = False,
    seed: int = 0,
) -> Report:
    """Changes all tokens behind each cut, and looks for changes before it.

    Args:
        function: takes the inputs, gives a tensor or a tuple of tensors with tokens along `dim`
            (others and None are not looked at). It must give the same for the same inputs.
        inputs: floating tensors, all with T tokens along `dim`.
        cuts: how many tokens stay; default: every 1 to T - 1.
        draws: other tokens to try a cut, of growing size.
        gradients: also those of the outputs before the cut, with respect to the inputs there.
    """
    tokens = inputs[0].shape[dim]
    if any(x.shape[dim] != tokens or not x.is_floating_point() for x in inputs):
        raise ValueError(f"inputs: not all floating with {tokens} tokens; accepted: such ones")
    all_cuts = list(range(1, tokens) if cuts is None else cuts)
    generator = torch.Generator().manual_seed(seed)
    plain = tuple(x.detach() for x in inputs)
    once, again = (_run(function, plain, tokens, dim, None) for _ in range(2))
    if not _same(once, again):
        raise ValueError("function: gives other bits when called again; accepted: one that repeats")

    def changed(first: int, last: int, size: float) -> Outputs:
        """The inputs with other tokens from first to last."""
        made = []
        for x in plain:
            y = x.clone()
            part = y.narrow(dim, first, last - first)
            other = torch.randn(part.shape, generator=generator, dtype=torch.float64) * size
            part.copy_(-other.abs() if (x <= 0).all() else other)  # a gate stays one
            made.append(y)
        return tuple(made)

    report = Report(len(all_cuts), tokens)
    for cut in all_cuts:
        before = _run(function, plain, tokens, dim, cut if gradients else None)
        for draw in range(draws):
            size = 4.0**draw
            behind = changed(cut, tokens, size)
            together = _compare(function, before, behind, cut, dim, gradients)
            if together is None:
                continue
            # Which single token is to blame? Else they are together.
            for later in range(cut, tokens):
                one = changed(later, later + 1, size)
                leak = _compare(function, before, one, cut, dim, gradients, later)
                if leak:
                    break
            else:
                leak = together
            report.leaks.append(leak)
            break
    return report


def assert_causal(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> None:
    """audit() for tests: an AssertionError with the report if there is a leak."""
    report = audit(function, *inputs, **options)
    if not report.is_causal:
        raise AssertionError(str(report))


def _run(
    function: Callable[..., Any], inputs: Outputs, tokens: int, dim: int, loss_until: int | None
) -> dict[str, Tensor]:
    """The outputs with tokens, and the gradients of a loss on the first loss_until of them."""
    leaves = tuple(x.clone().requires_grad_(loss_until is not None) for x in inputs)
    with torch.set_grad_enabled(loss_until is not None):
        given = function(*leaves)
    outputs = given if isinstance(given, (tuple, list)) else (given,)
    seen = {
        f"output {n}": y
        for n, y in enumerate(outputs)
        if isinstance(y, Tensor) and y.dim() > dim and y.shape[dim] == tokens
    }
    if not seen:
        raise ValueError(f"function: no output has {tokens} tokens in dim {dim}; accepted: one has")
    if loss_until is not None:
        parts = [y.narrow(dim, 0, loss_until).double().square().sum() for y in seen.values()]
        found = torch.autograd.grad(torch.stack(parts).sum(), leaves, allow_unused=True)
        for n, gradient in enumerate(found):
            if gradient is not None:
                seen[f"gradient of input {n}"] = gradient
    return {name: x.detach() for name, x in seen.items()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def _compare(
    function: Callable[..., Any],
    before: dict[str, Tensor],
    inputs: Outputs,
    cut: int,
    dim: int,
    gradients: bool,
    later: int | None = None,
) -> Leak | None:
    """The first change before the cut, or None."""
    after = _run(function, inputs, inputs[0].shape[dim], dim, cut if gradients else None)
    for name, x in before.items():
        one, other = x.narrow(dim, 0, cut), after[name].narrow(dim, 0, cut)
        differs = (one != other) & ~(one.isnan() & other.isnan())
        if differs.any():
            where = differs.movedim(dim, 0).flatten(1).any(1)
            change = float((one.double() - other.double()).abs().max())
            return Leak(name, int(where.nonzero()[0]), later, change)
    return None
