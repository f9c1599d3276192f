"""python -m libkda: where the operators come from, and that they work here."""

import torch

import libkda
from libkda._library import path


def cuda() -> str:
    """Whether the operators have CUDA kernels, and for which device."""
    options = libkda.Options(gate="bounded", lower_bound=-5.0, precision="mixed")
    try:
        torch.ops.kda.cuda_slot_bytes(1, 0, *options)
    except RuntimeError:
        return "none in this build"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "built in; no device"


def main() -> None:
    q, k, v = (torch.randn(1, 100, 2, 64) for _ in range(3))
    g, beta = -torch.rand(1, 100, 2, 64), torch.rand(1, 100, 2)
    whole, _ = libkda.chunk_kda(q, k, v, g, beta, norm="rsqrt")
    state = libkda.StreamingState(1, 2, 64, 64, precision="fp32", norm="rsqrt")
    steps = [
        libkda.decode(state, *(x[:, t : t + 1] for x in (q, k, v, g, beta))) for t in range(100)
    ]
    same = torch.equal(torch.cat(steps, 1), whole)
    print(f"libkda {libkda.__version__}; operators: {path}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("CUDA:", cuda())
    print("100 tokens in one call and one at a time:", "the same bits" if same else "OTHER BITS")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
