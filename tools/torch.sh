#!/usr/bin/env bash
# tools/torch.sh BUILD_DIR: a Python environment with torch in BUILD_DIR/venv-torch, and PyTorch's
# operators, BUILD_DIR/libkda_torch.so, built for it. Exits 0 where pip cannot install torch, and says
# so: the tests of python/ then skip.
set -uo pipefail
cd "$(dirname "$0")/.."

build=$1
venv=$build/venv-torch
ready() { "$venv/bin/python3" -c 'import torch, numpy, pytest, ruff, mypy' 2>/dev/null; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! ready; then
  if python3 -m venv --clear "$venv" >"$log" 2>&1 &&
     timeout 240 "$venv/bin/python3" -m pip install -q --retries 1 'torch==2.13.0' 'numpy<3' \
       'pytest<10' 'ruff<1' 'mypy<3' 'scikit-build-core<2' >>"$log" 2>&1 && ready
  then
    echo "torch: PyTorch for the tests of python/ in $venv"
  else
    echo "torch: no Python with PyTorch (the tests of python/ will skip):"
    tail -n 3 "$log" | sed 's/^/  /'
    exit 0
  fi
fi
cmake -S . -B "$build" -DKDA_BUILD_TORCH=ON -DKDA_TORCH_PYTHON="$PWD/$venv/bin/python3" >/dev/null &&
  cmake --build "$build" --target kda_torch -j "${JOBS:-$(nproc)}"
