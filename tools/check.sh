#!/usr/bin/env bash
# tools/check.sh sample|all
# What takes longer than `make test`; HACKING.md says what the sample holds. Every step runs, also
# after a failure. Ends with one line: N passed, N failed[, N skipped].
set -uo pipefail
cd "$(dirname "$0")/.."

mode=${1:-sample}
case "$mode" in
  sample) every=5 fuzz_seconds=30 ;;
  all) every=1 fuzz_seconds=300 ;;
  *) sed -n '2,4s/^# //p' "$0" >&2; exit 2 ;;
esac

jobs=${JOBS:-$(nproc)}
passed=0 failed=0 skipped=0
failures=()

# A step is one check: passed or failed by its exit status.
step() {
  local name=$1 start=$SECONDS
  shift
  echo "--- $name"
  if "$@"; then
    passed=$((passed + 1))
    echo "--- $name: passed in $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    failures+=("$name")
    echo "--- $name: FAILED after $((SECONDS - start)) s"
  fi
}

# A suite counts its tests.
suite() {
  local name=$1 start=$SECONDS log last
  shift
  echo "--- $name"
  log=$(mktemp)
  tools/run_tests.sh "$@" 2>&1 | tee "$log"
  last=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
  rm -f "$log"
  if [[ "$last" =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    [ "${BASH_REMATCH[2]}" -eq 0 ] || failures+=("$name")
  else
    failed=$((failed + 1))
    failures+=("$name")
  fi
  echo "--- $name: ${last:-no result} in $((SECONDS - start)) s"
}

sources() { git ls-files '*.c' '*.cc' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh'; }
format() { sources | xargs -r clang-format-19 --dry-run --Werror; }
build() { cmake --preset "$1" >/dev/null && cmake --build --preset "$1" -j "$jobs"; }
tidy() { sources | grep '\.cc$' | grep -vE '^(fuzz|bindings)/' | xargs -P "$jobs" -n 1 clang-tidy-19 -p build-asan --quiet; }

python_rules() {
  build/venv-torch/bin/ruff format --check python examples bench &&
    build/venv-torch/bin/ruff check python examples bench &&
    build/venv-torch/bin/mypy --cache-dir build/mypy python/libkda python/tests bench/*.py
}

# FLA's own layer and model on libkda, and others' reference functions beside it: here they may not
# skip.
fla_layer() {
  LIBKDA_TORCH=$PWD/build/libkda_torch.so build/venv-torch/bin/python3 -m pytest -q -rs \
    -p no:cacheprovider python/tests/test_{fla_layer,compat_originals}.py | tee build/fla.log &&
    ! grep -q skipped build/fla.log
}

# The wheel runs where it is installed, and an isolated build says what to type.
wheel() {
  local python=$PWD/build/venv-torch/bin/python3 to log=build/wheel.log
  to=$(mktemp -d)
  "$python" -m pip install -q --no-build-isolation --no-deps --target "$to" . &&
    (cd "$to" && PYTHONPATH=$to "$python" -m libkda) &&
    ! "$python" -m pip wheel -q --no-deps -w "$to" . >"$log" 2>&1 &&
    grep 'pip install --no-build-isolation' "$log"
  local status=$?
  rm -rf "$to"
  return "$status"
}

fuzz() {
  local program=$1 name seconds=$2 corpus
  name=$(basename "$program")
  corpus=$(mktemp -d)
  mkdir -p build-fuzz/artifacts
  [ ! -d "fuzz/corpus/$name" ] || cp -r "fuzz/corpus/$name/." "$corpus"
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/artifacts/$name-" "$corpus" 2>&1 | tail -n 25
  local status=${PIPESTATUS[0]}
  rm -rf "$corpus"
  return "$status"
}

export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-19)
export ASAN_SYMBOLIZER_PATH

step "format" format
step "house rules" tools/house.sh
if [ -f build/CMakeCache.txt ]; then  # of make test
  step "registers of kernels" tools/registers.sh build
fi
if [ -x build/venv-torch/bin/mypy ]; then  # of make test
  step "ruff and mypy" python_rules
fi

step "build with ASan and UBSan" build asan
suite "tests under ASan and UBSan, every $every." build-asan --every "$every"

step "build for fuzzing" build fuzz
for program in build-fuzz/*_fuzz; do
  if [ -x "$program" ]; then
    step "fuzz $(basename "$program") for $fuzz_seconds s" fuzz "$program" "$fuzz_seconds"
  fi
done

if [ "$mode" = all ]; then
  step "build with TSan" build tsan
  suite "tests under TSan" build-tsan
  step "build with assertions" build dev
  suite "tests with assertions" build-dev
  step "clang-tidy" tidy
  step "build for NEON" tools/neon.sh build
  export KDA_TEST_WRAPPER="tools/neon.sh run"
  suite "tests of the kernels on NEON, emulated" build-neon
  if [ -x build/venv-torch/bin/mypy ]; then
    step "wheel" wheel
    step "FLA and attn-gym" fla_layer
  fi
fi

[ "$failed" -eq 0 ] || printf 'Failed: %s\n' "${failures[@]}"
line="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ]
