#!/bin/sh
# cmake/nvcc.sh LOG COMMAND ...: runs nvcc; what it says goes to LOG (tools/registers.sh reads that),
# and to the terminal unless it is ptxas's count of registers.
log=$1
shift
"$@" >"$log" 2>&1
code=$?
grep -v -e '^ptxas info *: \(0 bytes\|Compiling\|Function properties\|Used\|Compile time\|[0-9]* bytes\)' \
  -e '^ *[0-9]* bytes stack frame' -e '^$' "$log" >&2
exit $code
