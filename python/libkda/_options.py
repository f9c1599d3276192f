"""Options of a call, as the operators take them."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
