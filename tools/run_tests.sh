#!/usr/bin/env bash
# tools/run_tests.sh BUILD_DIR [--every N] [--filter PATTERN]
# Runs kda_tests of a build folder in parallel shards: all tests, every N-th, or those that a
# GoogleTest filter names; with all of them also those of python/, for which tools/torch.sh prepares.
# Shows what failed, names what skipped and why, and ends with one line:
# N passed, N failed[, N skipped]. Exits 1 if a test failed or none passed.
# KDA_TEST_WRAPPER: a command in front of kda_tests, e.g. an emulator.
# A test that crashes or hangs counts as failed, and so do those its shard could not run any more.
set -uo pipefail

usage() {
  sed -n '2,7s/^# //p' "$0" >&2
  exit 2
}
[ $# -gt 0 ] || usage
build=$1
shift
every=1 filter='*'
while [ $# -gt 0 ]; do
  case "$1" in
    --every) every=$2 ;;
    --filter) filter=$2 ;;
    *) usage ;;
  esac
  shift 2
done

jobs=${JOBS:-$(nproc)}
shards=$((jobs * 8))  # many small ones: no core waits long for the last
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

shard() {  # INDEX
  local log=$logs/$1 status=0
  GTEST_TOTAL_SHARDS=$((shards * every)) GTEST_SHARD_INDEX=$(($1 * every)) \
    timeout 1200 ${KDA_TEST_WRAPPER:-} "$build/kda_tests" --gtest_filter="$filter" --gtest_color=no \
    >"$log.out" 2>&1 || status=$?
  awk -v name="shard $1" -v exit_status="$status" -v tally="$log.tally" -f tools/tally.awk "$log.out"
}
# The tests of python/, counted like a shard.
python_tests() {
  local log=$logs/python status=0 counts
  LIBKDA_TORCH=$(realpath "$build/libkda_torch.so") timeout 300 "$build/venv-torch/bin/python3" \
    -m pytest -q -rs --tb=short -p no:cacheprovider >"$log.log" 2>&1 || status=$?
  counts=$(tail -n 1 "$log.log" | awk '{
    for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) p = $(i - 1)
      if ($i ~ /^(failed|error)/) f += $(i - 1)
      if ($i ~ /^skipped/) s = $(i - 1)
    }
    print p + 0, f + 0, s + 0 }')
  read -r passed failed skipped <<<"$counts"
  if [ "$status" -ne 0 ]; then
    cat "$log.log"
    [ "$failed" -gt 0 ] || failed=1  # it ended before it could count
  fi
  # As the shards' programs say it.
  sed -n 's/^SKIPPED \[[0-9]*\] /python\/tests: Skipped\n/p' "$log.log" >"$log.out"
  echo "python: $passed passed, $failed failed, $skipped skipped"
  echo "$passed $failed $skipped" >"$log.tally"
}

task() { if [ "$1" = python ]; then python_tests; else shard "$1"; fi; }
export -f shard python_tests task
export build every filter shards logs

if [ ! -x "$build/kda_tests" ]; then
  echo "$build/kda_tests is not there: build first" >&2
  echo "0 passed, 1 failed"
  exit 1
fi
tasks=()
if [ "$every" -eq 1 ] && [ "$filter" = '*' ]; then
  if [ -e "$build/libkda_torch.so" ] && [ -x "$build/venv-torch/bin/python3" ]; then
    tasks=(python)  # the longest, so it goes first
  else
    printf '%s\n' 'python/tests: Skipped' 'no Python with PyTorch (tools/torch.sh)' >"$logs/python.out"
    echo "0 0 1" >"$logs/python.tally"
  fi
fi
mapfile -t -O "${#tasks[@]}" tasks < <(seq 0 $((shards - 1)))
printf '%s\n' "${tasks[@]}" | xargs -P "$jobs" -I{} bash -c 'task {}'

read -r passed failed skipped < <(cat "$logs"/*.tally |
  awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
# A shard whose tally is missing never came to an end.
for ((i = 0; i < shards; ++i)); do
  [ -s "$logs/$i.tally" ] || failed=$((failed + 1))
done

if [ "$skipped" -gt 0 ]; then
  echo "Skipped, and why:"
  cat "$logs"/*.out | awk '/: Skipped$/ { getline; print "  " $0 }' | sort | uniq -c
fi
line="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
