"""The recurrence of docs/math.md, token by token, in plain torch: what the tests compare with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


def gates(
    g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, gate: str, bound: float | None
) -> Tensor:
    """Log decays [B, T, HV, K] from what a call is given."""
    if gate == "log":
        return g
    heads = g.shape[2]
    A = torch.zeros(heads, dtype=g.dtype) if A_log is None else A_log
    A = A.exp().view(heads, *(1,) * (g.dim() - 3))
    x = g if dt_bias is None else g + dt_bias
    if gate == "softplus":
        return -A * torch.nn.functional.softplus(x)
    assert bound is not None
    return bound * torch.sigmoid(A * x)


def unit(x: Tensor, norm: str) -> Tensor:
    if norm == "rsqrt":
        size = x.square().sum(-1, keepdim=True)
        return x * (size + 1e-6).rsqrt()
    if norm == "normalize":
        size = x.norm(dim=-1, keepdim=True)
        return torch.div(x, size.clamp_min(1e-6))
    return x


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    gate: str = "log",
    lower_bound: float | None = None,
    norm: str = "none",
    sigmoid_beta: bool = False,
    neg_eigval: bool = False,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    corrects: bool = True,
) -> tuple[Tensor, Tensor]:
    """Equations (1)-(5). Everything in float64 gives the truth."""
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    q, k = (unit(x, norm).repeat_interleave(HV // H, 2) for x in (q, k))
    if g is not None:
        g = gates(g, A_log, dt_bias, gate, lower_bound)
        g = g if g.dim() == 4 else g[..., None]
    if beta is not None and sigmoid_beta:
        beta = torch.sigmoid(beta) * (2 if neg_eigval else 1)
    scale = K**-0.5 if scale is None else scale
    S = q.new_zeros(B, HV, K, V) if initial_state is None else initial_state
    o = []
    for t in range(T):
        if g is not None:
            S = S * g[:, t].exp()[..., None]
        z = v[:, t]
        if corrects:
            z = z - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        if beta is not None:
            z = z * beta[:, t][..., None]
        S = S + k[:, t][..., None] * z[..., None, :]
        o.append(scale * torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return (torch.stack(o, 1) if o else torch.zeros_like(v)), S


@dataclass(frozen=True)
class Case:
    """Sizes and options of a call; make() draws its tensors."""

    op: str = "kda"
    B: int = 2
    T: int = 45
    H: int = 2
    HV: int = 4
    K: int = 16
    V: int = 24
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    dtype: torch.dtype = torch.float64
    has_state: bool = False

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)

    def make(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        B, T, H, HV, K, V = self.B, self.T, self.H, self.HV, self.K, self.V
        t = {"q": normal(B, T, H, K), "k": normal(B, T, H, K), "v": normal(B, T, HV, V)}
        if self.options.get("norm", "none") == "none":
            t["k"] = unit(t["k"], "rsqrt")
        per_channel = (K,) if self.op == "kda" else ()
        if self.op in ("kda", "gdn"):
            raw = self.options.get("gate", "log") != "log"
            t["g"] = normal(B, T, HV, *per_channel)
            if raw:
                t["A_log"], t["dt_bias"] = 0.3 * normal(HV), normal(HV, *per_channel)
            else:
                t["g"] = -0.5 * t["g"].abs()
        if self.op != "linear":
            logits = normal(B, T, HV)
            t["beta"] = logits if self.options.get("sigmoid_beta") else logits.sigmoid()
        if self.has_state:
            t["initial_state"] = normal(B, HV, K, V)
        return {name: x.to(self.dtype) for name, x in t.items()}


def truth(case: Case, tensors: dict[str, Any]) -> tuple[Tensor, Tensor]:
    options = {
        name: value
        for name, value in case.options.items()
        if name not in ("chunk", "key_window", "reference", "precision", "bf16_state")
    }
    exact = {name: x.double() for name, x in tensors.items()}
    return attention(**exact, **options, corrects=case.op != "linear")


def error(got: Tensor, true: Tensor) -> float:
    """Relative L2."""
    got, true = got.detach().double(), true.detach()
    return float((got - true).norm() / true.norm())
