"""FLA's own layer and model on libkda.compat.fla.patch(), where FLA and its parts are installed."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from libkda.compat import fla
from libkda.layer import KDAConfig, build_kda
from libkda.model import HybridConfig, HybridModel
from naive import error

try:
    kda: Any = importlib.import_module("fla.layers.kda")
    models: Any = importlib.import_module("fla.models.kda")
except ImportError as missing:
    pytest.skip(f"flash-linear-attention does not import: {missing}", allow_module_level=True)


@pytest.fixture(autouse=True)
def _patched() -> None:
    fla.patch()
    fla.patch()  # twice does no harm


@pytest.mark.parametrize("bound", [None, -5.0])
def test_the_layer_is_ours_with_its_parameters(bound: float | None) -> None:
    torch.manual_seed(0)
    theirs = kda.KimiDeltaAttention(
        hidden_size=32,
        head_dim=16,
        num_heads=2,
        num_v_heads=4,
        lower_bound=bound,
        safe_gate=bound is not None,
        layer_idx=0,
    )
    config = KDAConfig(
        hidden_size=32,
        num_heads=2,
        head_dim=16,
        num_v_heads=4,
        gate_lower_bound=bound,
        output_gate_bias=True,
        backend="recurrent",
    )
    ours = build_kda(config)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 50, 32)
    y, _, _ = theirs(x)
    assert error(y, ours.double()(x.double())) <= 1e-5
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in theirs.parameters())


def test_a_model_generates_what_it_says_in_parallel() -> None:
    torch.manual_seed(0)
    config = models.KDAConfig(
        hidden_size=32,
        head_dim=16,
        num_heads=2,
        num_hidden_layers=2,
        vocab_size=40,
        fuse_norm=False,
        fuse_swiglu=False,
        fuse_cross_entropy=False,
    )
    model = models.KDAForCausalLM(config).eval()
    tokens = torch.randint(40, (2, 70))
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :66], use_cache=True)
        steps, cache = [first.logits], first.past_key_values
        for t in range(66, 70):
            out = model(tokens[:, t : t + 1], past_key_values=cache, use_cache=True)
            steps.append(out.logits)
            cache = out.past_key_values
    assert error(torch.cat(steps, 1), whole.double()) <= 1e-5


def test_our_model_takes_the_parameters_of_theirs() -> None:
    torch.manual_seed(0)
    config = models.KDAConfig(
        hidden_size=32,
        head_dim=16,
        num_heads=2,
        num_hidden_layers=2,
        vocab_size=40,
        fuse_norm=False,
        fuse_swiglu=False,
        fuse_cross_entropy=False,
    )
    theirs = models.KDAForCausalLM(config).eval()
    ours = HybridModel(
        HybridConfig(
            vocab_size=40,
            hidden_size=32,
            num_heads=2,
            head_dim=16,
            kda_layers=2,
            global_layers=False,
            mlp_size=theirs.model.layers[0].mlp.gate_proj.out_features,
            gate_lower_bound=None,
            eps=config.norm_eps,
            output_gate_bias=True,
        )
    )
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(40, (2, 50))
    with torch.no_grad():
        assert error(ours(tokens), theirs(tokens).logits.double()) <= 1e-5
