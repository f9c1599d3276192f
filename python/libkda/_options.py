"""Options of a call: as the operators take them, and as each function takes them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypedDict

Op = Literal["kda", "gdn", "delta", "linear"]
Gate = Literal["log", "softplus", "bounded"]
Norm = Literal["none", "rsqrt", "normalize"]
Precision = Literal["automatic", "exact64", "fp32", "mixed"]
Reference = Literal["shifted", "first_row", "midpoint", "pairwise"]
StateLayout = Literal["key_first", "value_first"]
Activation = Literal["none", "silu"]


class Options(NamedTuple):
    """kda::Options of include/kda/args.hpp; the order is that of the operators' schemas."""

    op: Op = "kda"
    gate: Gate = "log"
    norm: Norm = "none"
    sigmoid_beta: bool = False
    neg_eigval: bool = False
    lower_bound: float | None = None
    scale: float | None = None
    precision: Precision = "automatic"
    bf16_state: bool = False
    chunk: int = 32
    key_window: int | None = None
    reference: Reference = "shifted"


class LinearOptions(TypedDict, total=False):
    """What all functions take; chunk_kda says what each means, Options its default."""

    norm: Norm
    scale: float | None
    precision: Precision
    bf16_state: bool
    chunk: int


class DeltaOptions(LinearOptions, total=False):
    """chunk_delta_rule's."""

    sigmoid_beta: bool
    neg_eigval: bool


class RecurrentOptions(TypedDict, total=False):
    """recurrent_kda's."""

    gate: Gate
    lower_bound: float | None
    norm: Norm
    sigmoid_beta: bool
    neg_eigval: bool
    scale: float | None
    precision: Precision
    bf16_state: bool


class GatedOptions(RecurrentOptions, total=False):
    """chunk_kda's and chunk_gdn's."""

    chunk: int
    key_window: int | None
    reference: Reference


class StateOptions(GatedOptions, total=False):
    """StreamingState's."""

    op: Op


def options_of(function: str, op: Op, kind: Any, given: Any) -> Options:
    """The options `given` to a function that takes those of the TypedDict `kind`."""
    for name in given:
        if name not in kind.__optional_keys__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return Options(**{"op": op, **given})
