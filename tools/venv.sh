#!/usr/bin/env bash
# tools/venv.sh DIR: a Python environment with numpy and safetensors in DIR, for the test that
# exchanges files with Python. Exits 0 without one, and says so: that test then skips.
set -uo pipefail

dir=$1
ready() { "$dir/bin/python3" -c 'import numpy, safetensors' 2>/dev/null; }
ready && exit 0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if python3 -m venv --clear "$dir" >"$log" 2>&1 &&
   "$dir/bin/python3" -m pip install -q --retries 1 'numpy<3' 'safetensors<1' >>"$log" 2>&1 && ready
then
  echo "venv: numpy and safetensors for the exchange test in $dir"
else
  echo "venv: no Python with numpy and safetensors (the test against Python will skip):"
  tail -n 3 "$log" | sed 's/^/  /'
fi
