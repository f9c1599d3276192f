"""Serving: the prompts of three requests in one call, then token by token, in slots of one pool.

python examples/python/decode.py
"""

import torch

import libkda

HEADS, DIM, STEPS = 4, 64, 40
OPTIONS = {"gate": "bounded", "lower_bound": -5.0, "norm": "rsqrt", "sigmoid_beta": True}

torch.manual_seed(0)
prompts, slots = [70, 1, 33], torch.tensor([6, 0, 3])
# q, k, v, raw gates and logits of beta, as a model's projections would give them.
shape = (3, max(prompts) + STEPS, HEADS, DIM)
tensors = [torch.randn(shape, dtype=torch.bfloat16) for _ in range(4)]
tensors.append(torch.randn(shape[:3], dtype=torch.bfloat16))
state = libkda.StreamingState(8, HEADS, DIM, DIM, precision="mixed", **OPTIONS)

# The prompts one behind the other; each leaves its state in its slot.
packed = [torch.cat([x[n, :tokens] for n, tokens in enumerate(prompts)]) for x in tensors]
cu_seqlens = torch.tensor([0, *prompts]).cumsum(0)
o = libkda.decode(state, *(x[None] for x in packed), cu_seqlens=cu_seqlens, slots=slots)
outputs = [[part] for part in o[0].split(prompts)]

# Then one token of each request, in a batch.
for step in range(STEPS):
    at = torch.tensor(prompts) + step
    tokens = [x[torch.arange(3), at][:, None] for x in tensors]
    for out, row in zip(outputs, libkda.decode(state, *tokens, slots=slots)):
        out.append(row)

whole, _ = libkda.chunk_kda(*tensors, **OPTIONS)
for n, out in enumerate(outputs):
    same = torch.equal(torch.cat(out), whole[n, : prompts[n] + STEPS])
    print(f"request {n}, {len(out)} calls:", "the bits of one call" if same else "OTHER BITS")
    assert same
