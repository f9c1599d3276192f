"""The hybrid model: in parallel and token by token, generation, causality, learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import libkda
from libkda.layer import FusedKDAChunkwise, KDAState
from libkda.model import GlobalAttention, HybridConfig, HybridModel
from naive import error

CONFIG = HybridConfig(vocab_size=19, hidden_size=32, num_heads=2, head_dim=16, blocks=2)


def model(config: HybridConfig = CONFIG, dtype: torch.dtype = torch.float64) -> HybridModel:
    torch.manual_seed(0)
    return HybridModel(config).to(dtype)


def some_tokens(T: int = 45, B: int = 2) -> torch.Tensor:
    return torch.randint(19, (B, T), generator=torch.Generator().manual_seed(2))


def test_layers() -> None:
    kinds = [type(layer.self_attn) for layer in model().model.layers]
    assert kinds == ([FusedKDAChunkwise] * 3 + [GlobalAttention]) * 2


@pytest.mark.parametrize(
    ("dtype", "bound"),
    # What is not ours sums in another order for another T: a few roundings through eight layers.
    [(torch.float64, 1e-12), (torch.float32, 1e-5)],
)
def test_token_by_token(dtype: torch.dtype, bound: float) -> None:
    hybrid, tokens = model(dtype=dtype), some_tokens()
    with torch.no_grad():
        whole = hybrid(tokens)
        state = hybrid.new_state(2)
        steps = [hybrid(tokens[:, :20], state)]
        steps += [hybrid(tokens[:, t : t + 1], state) for t in range(20, 45)]
    assert error(torch.cat(steps, 1), whole.double()) <= bound


def test_given_the_same_inputs_the_operators_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the attention of each KDA layer was given in parallel, token by token."""
    hybrid, tokens = model(dtype=torch.float32), some_tokens()
    seen: list[Any] = []
    attend: Any = FusedKDAChunkwise._attend

    def watch(self: FusedKDAChunkwise, *arguments: Any) -> torch.Tensor:
        o = attend(self, *arguments)
        seen.append((self, arguments[:5], o))
        return o  # type: ignore[no-any-return]

    monkeypatch.setattr(FusedKDAChunkwise, "_attend", watch)
    with torch.no_grad():
        hybrid(tokens)
        assert len(seen) == 6
        for layer, given, o in list(seen):
            state: KDAState = layer.new_state(2)
            assert isinstance(state.recurrent, libkda.StreamingState)
            steps = [
                attend(layer, *(x[:, t : t + 1] for x in given), state, None) for t in range(45)
            ]
            assert torch.equal(torch.cat(steps, 1), o)


def test_generation_is_the_parallel_models_choice() -> None:
    hybrid, prompt = model(), some_tokens(7)
    made = hybrid.generate(prompt, 40)
    whole = torch.cat([prompt, made], 1)
    with torch.no_grad():
        assert torch.equal(hybrid(whole)[:, 6:-1].argmax(-1), made)
    assert hybrid.generate(prompt, 0).shape == (2, 0)
    one, two = (
        hybrid.generate(prompt, 9, temperature=1.0, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(one, two) and not torch.equal(one, made[:, :9])
    with pytest.raises(ValueError, match=r"tokens: .+; accepted: "):
        hybrid.generate(prompt[:, :0], 1)


def test_earlier_logits_do_not_see_later_tokens() -> None:
    hybrid, tokens = model(dtype=torch.float32), some_tokens()
    changed = tokens.clone()
    changed[:, 30:] = (changed[:, 30:] + 1) % 19
    with torch.no_grad():
        assert torch.equal(hybrid(tokens)[:, :30], hybrid(changed)[:, :30])


def test_backends_agree() -> None:
    fused, tokens = model(), some_tokens(20)
    for backend in ("chunkwise", "recurrent"):
        other = HybridModel(replace(CONFIG, backend=backend)).double()
        other.load_state_dict(fused.state_dict())
        assert error(other(tokens), fused(tokens).detach()) <= 1e-11


def test_it_learns() -> None:
    hybrid = model(replace(CONFIG, blocks=1), torch.float32)
    optimizer = torch.optim.AdamW(hybrid.parameters(), lr=3e-3)
    tokens = some_tokens(30, 4)
    losses = []
    for _ in range(30):
        logits = hybrid(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.7 and losses[-1] < 0.5 * losses[0]  # chance: log 19 = 2.9
