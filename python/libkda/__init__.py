"""libkda: Kimi Delta Attention and its family, with one answer to the bit.

>>> import torch, libkda
>>> q, k, v = (torch.randn(1, 100, 4, 64) for _ in range(3))
>>> g, beta = -torch.rand(1, 100, 4, 64), torch.rand(1, 100, 4)
>>> o, state = libkda.chunk_kda(q, k, v, g, beta, norm="rsqrt", output_final_state=True)
"""

from libkda._library import __version__
from libkda._ops import (
    causal_conv1d,
    chunk_delta_rule,
    chunk_gdn,
    chunk_kda,
    gated_norm,
    linear_attention,
    recurrent_kda,
)
from libkda._options import Options
from libkda._ran import Ran
from libkda._streaming import (
    CudaConvolution,
    CudaLayer,
    StreamingState,
    decode,
    update_conv_pool,
    update_pool,
)

__all__ = [
    "CudaConvolution",
    "CudaLayer",
    "Options",
    "Ran",
    "StreamingState",
    "__version__",
    "causal_conv1d",
    "chunk_delta_rule",
    "chunk_gdn",
    "chunk_kda",
    "decode",
    "gated_norm",
    "linear_attention",
    "recurrent_kda",
    "update_conv_pool",
    "update_pool",
]
