#!/usr/bin/env bash
# tools/run_tests.sh BUILD_DIR [ctest options]
# Runs the tests of a build folder, names what skipped and why, and ends with one line:
# N passed, N failed[, N skipped]. Exits 1 if a test failed or none ran.
set -uo pipefail

build=$1
shift
report=$(mktemp)
trap 'rm -f "$report"' EXIT

ctest --test-dir "$build" -j "${JOBS:-$(nproc)}" --output-on-failure --no-tests=error \
  --output-junit "$report" "$@"
status=$?

attribute() { sed -n "s/^\s*$1=\"\([0-9]*\)\".*/\1/p" "$report" | head -n 1; }
total=$(attribute tests)
failed=$(attribute failures)
skipped=$(($(attribute skipped) + $(attribute disabled)))
: "${total:=0}" "${failed:=0}"
passed=$((total - failed - skipped))
# ctest itself may fail: no tests, a binary that cannot list its tests.
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1

if [ "$skipped" -gt 0 ]; then
  echo "Skipped, and why:"
  # GoogleTest prints the reason below "FILE:LINE: Skipped".
  awk '/^[^ ].*: Skipped$/ { getline; print "  " $0 }' "$report" | sort | uniq -c
fi
line="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
