#!/usr/bin/env bash
# tools/torch.sh BUILD_DIR: a Python environment with torch in BUILD_DIR/venv-torch, and PyTorch's
# operators, BUILD_DIR/libkda_torch.so, built for it. Exits 0 where pip cannot install torch, and says
# so: the tests of python/ then skip. Likewise FLA and attn-gym, for the tests beside their own code.
set -uo pipefail
cd "$(dirname "$0")/.."

build=$1
venv=$build/venv-torch
ready() { "$venv/bin/python3" -c 'import torch, numpy, pytest, ruff, mypy, safetensors' 2>/dev/null; }
has() { "$venv/bin/python3" -c "import importlib.util as u; exit(u.find_spec('$1') is None)"; }
install() { timeout "$1" "$venv/bin/python3" -m pip install -q --retries 1 "${@:2}" >>"$log" 2>&1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! ready; then
  if python3 -m venv --clear "$venv" >"$log" 2>&1 &&
     install 240 'torch==2.13.0' 'numpy<3' 'pytest<10' 'ruff<1' 'mypy<3' 'safetensors<1' \
       'scikit-build-core<2' && ready
  then
    echo "torch: PyTorch for the tests of python/ in $venv"
  else
    echo "torch: no Python with PyTorch (the tests of python/ will skip):"
    tail -n 3 "$log" | sed 's/^/  /'
    exit 0
  fi
fi
if ! has fla && ! install 120 'fla-core==0.6.0' 'flash-linear-attention==0.6.0' 'triton<4' \
  'transformers<6'
then
  echo "torch: no flash-linear-attention (the tests of its layer will skip):"
  tail -n 3 "$log" | sed 's/^/  /'
fi
if ! has attn_gym && ! install 60 --no-deps 'attn-gym==0.0.17'; then
  echo "torch: no attn-gym (the tests beside its reference functions will skip):"
  tail -n 3 "$log" | sed 's/^/  /'
fi
cmake -S . -B "$build" -DKDA_BUILD_TORCH=ON -DKDA_TORCH_PYTHON="$PWD/$venv/bin/python3" >/dev/null &&
  cmake --build "$build" --target kda_torch -j "${JOBS:-$(nproc)}"
