"""A whole checkpoint with the names of Kimi-Linear's, and one with those of FLA's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from libkda.kimi import KimiConfig, KimiLinear, load
from libkda.model import HybridConfig, HybridModel
from naive import attention, error

CONFIG: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 19,
    "hidden_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 20,
    "hidden_act": "silu",
    "kv_lora_rank": 10,
    "q_lora_rank": None,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "mla_use_nope": True,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3, 5],
        "full_attn_layers": [4],
        "num_heads": 2,
        "head_dim": 8,
        "short_conv_kernel_size": 4,
    },
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 7,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.446,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0,
}

KDA = {
    "q_proj.weight": (16, 24),
    "k_proj.weight": (16, 24),
    "v_proj.weight": (16, 24),
    "q_conv1d.weight": (16, 1, 4),
    "k_conv1d.weight": (16, 1, 4),
    "v_conv1d.weight": (16, 1, 4),
    "A_log": (1, 1, 5, 1),  # for more heads than there are
    "dt_bias": (16,),
    "f_a_proj.weight": (8, 24),
    "f_b_proj.weight": (16, 8),
    "b_proj.weight": (2, 24),
    "g_a_proj.weight": (8, 24),
    "g_b_proj.weight": (16, 8),
    "o_norm.weight": (8,),
    "o_proj.weight": (24, 16),
}
LATENT = {
    "q_proj.weight": (30, 24),
    "kv_a_proj_with_mqa.weight": (14, 24),
    "kv_a_layernorm.weight": (10,),
    "kv_b_proj.weight": (33, 10),
    "o_proj.weight": (24, 15),
}


def swiglu(size: int) -> dict[str, tuple[int, ...]]:
    shapes: Any = {"gate_proj": (size, 24), "up_proj": (size, 24), "down_proj": (24, size)}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def checkpoint() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (19, 24),
        "model.norm.weight": (24,),
        "lm_head.weight": (19, 24),
    }
    for n in range(5):
        layer = f"model.layers.{n}."
        parts = {f"self_attn.{k}": x for k, x in (LATENT if n == 3 else KDA).items()}
        parts |= {f"{k}.weight": (24,) for k in ("input_layernorm", "post_attention_layernorm")}
        if n == 0:
            parts |= {f"mlp.{k}": x for k, x in swiglu(20).items()}
        else:
            moe = "block_sparse_moe."
            parts |= {moe + "gate.weight": (6, 24), moe + "gate.e_score_correction_bias": (6,)}
            parts |= {f"{moe}shared_experts.{k}": x for k, x in swiglu(7).items()}
            for expert in range(6):
                for w, expert_shape in {"w1": (7, 24), "w2": (24, 7), "w3": (7, 24)}.items():
                    parts[f"{moe}experts.{expert}.{w}.weight"] = expert_shape
        shapes |= {layer + name: shape for name, shape in parts.items()}
    generator = torch.Generator().manual_seed(4)
    made = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=generator)
        made[name] = x * shape[-1] ** -0.5 if x.dim() == 2 else 1 + x / 3
    return made


def naive(w: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The model from the parameters, token by token where tokens do not meet."""

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name]

    def mlp(x: Tensor, gate: str, up: str, down: str) -> Tensor:
        return (F.silu(x @ w[gate].T) * (x @ w[up].T)) @ w[down].T

    def kda(x: Tensor, at: str) -> Tensor:
        T = len(x)

        def heads(y: Tensor) -> Tensor:
            return y.view(1, T, 2, 8)

        mixed: list[Any] = []
        for name in "qkv":
            y = F.pad((x @ w[f"{at}{name}_proj.weight"].T).T, (3, 0))
            mixed.append(heads(F.silu(F.conv1d(y, w[f"{at}{name}_conv1d.weight"], groups=16)).T))
        q, k, v = mixed
        o, _ = attention(
            q,
            k,
            v,
            heads(x @ w[at + "f_a_proj.weight"].T @ w[at + "f_b_proj.weight"].T),
            (x @ w[at + "b_proj.weight"].T)[None],
            A_log=w[at + "A_log"].flatten()[:2],
            dt_bias=w[at + "dt_bias"].view(2, 8),
            gate="softplus",
            norm="rsqrt",
            sigmoid_beta=True,
        )
        gate = heads(x @ w[at + "g_a_proj.weight"].T @ w[at + "g_b_proj.weight"].T)
        o = norm(o, at + "o_norm.weight") * gate.sigmoid()
        return o.reshape(T, 16) @ w[at + "o_proj.weight"].T

    def latent(x: Tensor, at: str) -> Tensor:
        down = x @ w[at + "kv_a_proj_with_mqa.weight"].T
        made = norm(down[:, :10], at + "kv_a_layernorm.weight") @ w[at + "kv_b_proj.weight"].T
        rows = []
        for t in range(len(x)):
            q = (w[at + "q_proj.weight"] @ x[t]).view(3, 10)
            out = []
            for h in range(3):
                k = torch.cat([made[: t + 1, 11 * h : 11 * h + 6], down[: t + 1, 10:]], 1)
                weights = torch.softmax(k @ q[h] / 10**0.5, 0)
                out.append(weights @ made[: t + 1, 11 * h + 6 : 11 * h + 11])
            rows.append(torch.cat(out))
        return torch.stack(rows) @ w[at + "o_proj.weight"].T

    def mixture(x: Tensor, at: str) -> Tensor:
        names = [f"{at}shared_experts.{k}_proj.weight" for k in ("gate", "up", "down")]
        rows = []
        for row in x:
            scores = torch.sigmoid(w[at + "gate.weight"] @ row)
            order = (scores + w[at + "gate.e_score_correction_bias"]).argsort(descending=True)[:2]
            y = mlp(row, *names)
            for e in order.tolist():
                expert = [f"{at}experts.{e}.{k}.weight" for k in ("w1", "w3", "w2")]
                y = y + 2.446 * scores[e] / scores[order].sum() * mlp(row, *expert)
            rows.append(y)
        return torch.stack(rows)

    x = w["model.embed_tokens.weight"][tokens]
    for n in range(5):
        at = f"model.layers.{n}."
        attend = latent if n == 3 else kda
        x = x + attend(norm(x, at + "input_layernorm.weight"), at + "self_attn.")
        y = norm(x, at + "post_attention_layernorm.weight")
        names = [f"{at}mlp.{k}_proj.weight" for k in ("gate", "up", "down")]
        x = x + (mixture(y, at + "block_sparse_moe.") if n else mlp(y, *names))
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


TOKENS = torch.randint(19, (2, 40), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
@pytest.mark.parametrize("backend", ["fused", "recurrent"])
def test_a_folder(backend: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    stored = checkpoint()
    for n in range(2):  # in two files
        part = {name: x for i, (name, x) in enumerate(stored.items()) if i % 2 == n}
        safetensors.save_file(part, tmp_path / f"model-{n + 1}-of-2.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = load(tmp_path, backend=backend)
    assert {name: x.numel() for name, x in model.state_dict().items()} == {
        name: 2 if name.endswith("A_log") else x.numel() for name, x in stored.items()
    }
    model.double()
    exact = {name: x.double() for name, x in stored.items()}
    logits = model(TOKENS)
    for row, tokens in zip(logits, TOKENS, strict=True):
        assert error(row, naive(exact, tokens)) <= 1e-11
    state = model.new_state(2)
    steps = [model(TOKENS[:, :30], state)]
    steps += [model(TOKENS[:, t : t + 1], state) for t in range(30, 40)]
    assert error(torch.cat(steps, 1), logits) <= 1e-11
    assert model.generate(TOKENS[:, :5], 3).shape == (2, 3)


def test_what_is_stored_in_16_bits() -> None:
    model = KimiLinear(KimiConfig.of(CONFIG)).bfloat16()
    model.load_state_dict({name: x.bfloat16() for name, x in checkpoint().items()}, assign=True)
    dtypes = {x.dtype for name, x in model.state_dict().items() if name.endswith("_log")}
    assert dtypes == {torch.float32}
    assert model(TOKENS).isfinite().all()


def test_refusals() -> None:
    for name, was in (("q_lora_rank", 8), ("num_expert_group", 2), ("hidden_act", "gelu")):
        with pytest.raises(ValueError, match=rf"{name}: .+; accepted: "):
            KimiConfig.of({**CONFIG, name: was})
    twice = {**CONFIG["linear_attn_config"], "full_attn_layers": [3, 4]}
    with pytest.raises(ValueError, match=r"linear_attn_config: .+; accepted: each of 1 to 5"):
        KimiConfig.of({**CONFIG, "linear_attn_config": twice})
    stored = checkpoint()
    stored["model.layers.1.self_attn.k_proj.bias"] = torch.zeros(16)
    del stored["model.layers.2.block_sparse_moe.experts.4.w2.weight"]
    with pytest.raises(RuntimeError) as refusal:
        KimiLinear(KimiConfig.of(CONFIG)).load_state_dict(stored)
    assert "model.layers.1.self_attn.k_proj.bias" in str(refusal.value)
    assert "model.layers.2.block_sparse_moe.experts.4.w2.weight" in str(refusal.value)


def test_names_of_flas_model() -> None:
    """Those that fla.models.kda 0.6 gives its parameters; test_fla_layer.py takes its own."""
    config = HybridConfig(
        vocab_size=19,
        hidden_size=24,
        num_heads=2,
        head_dim=8,
        kda_layers=2,
        global_layers=False,
        output_gate_bias=True,
        gate_lower_bound=None,
    )
    one, other = HybridModel(config), HybridModel(config)
    theirs = {
        "model.embed_tokens": "model.embeddings",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "mlp_norm",
        "self_attn": "attn",
        "f_a_proj": "f_proj.0",
        "f_b_proj": "f_proj.1",
        "g_a_proj": "g_proj.0",
        "g_b_proj": "g_proj.1",
    }
    stored = {}
    for name, x in one.state_dict().items():
        for part, replacement in theirs.items():
            name = name.replace(part, replacement)
        stored[name] = x
    assert "model.layers.1.attn.g_proj.1.bias" in stored
    other.load_state_dict(stored)
    with torch.no_grad():
        assert torch.equal(one(TOKENS), other(TOKENS))
