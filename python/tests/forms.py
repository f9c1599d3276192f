"""The calls that several tests make: one for each member of the family and gate form."""

from __future__ import annotations

from typing import Any

import libkda
from naive import Case

BOUNDED: dict[str, Any] = {
    "gate": "bounded",
    "lower_bound": -5.0,
    "norm": "rsqrt",
    "sigmoid_beta": True,
}

FORMS: dict[str, Case] = {
    "log": Case(has_state=True),
    "bounded": Case(options=BOUNDED, has_state=True),
    "softplus": Case(
        options={"gate": "softplus", "norm": "normalize", "sigmoid_beta": True, "neg_eigval": True}
    ),
    "scaled": Case(options={"scale": 0.3, "chunk": 16, "reference": "first_row"}),
    "gdn": Case(op="gdn", options={"gate": "softplus", "norm": "rsqrt"}, has_state=True),
    "delta": Case(op="delta", options={"norm": "rsqrt"}),
    "linear": Case(op="linear", has_state=True),
}

FUNCTIONS: dict[str, Any] = {
    "kda": libkda.chunk_kda,
    "gdn": libkda.chunk_gdn,
    "delta": libkda.chunk_delta_rule,
    "linear": libkda.linear_attention,
}


def call(case: Case, tensors: dict[str, Any], **more: Any) -> Any:
    return FUNCTIONS[case.op](**tensors, **case.options, **more)
