#!/usr/bin/env bash
# tools/house.sh: the rules of HACKING.md that a machine can check. Prints each breach; exits 1 if
# there is one.
set -uo pipefail
cd "$(dirname "$0")/.."

breaches=0
breach() {
  echo "house: $*"
  breaches=$((breaches + 1))
}

mapfile -t sources < <(git ls-files --cached --others --exclude-standard \
  '*.c' '*.cc' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh' '*.py')

for file in "${sources[@]}"; do
  [ -f "$file" ] || continue
  lines=$(wc -l <"$file")
  [ "$lines" -le 600 ] || breach "$file has $lines lines; at most 600"
done

# `make docs` refuses a page that no list of pages names.
for page in docs/*.md; do
  name=$(basename "$page" .md)
  [ "$name" = index ] || grep -qx "$name" docs/index.md || breach "$page is not in docs/index.md"
done

# includes WHAT FOLDER WHY: no file under FOLDER includes a header that matches WHAT.
forbid() {
  local hits
  hits=$(grep -rnE "#include [<\"]($1)" "$2" 2>/dev/null) || return 0
  breach "$3"$'\n'"$hits"
}
forbid 'cpu/|cuda/|hwy/' src/reference 'the oracle shares nothing with the kernels it judges'
forbid 'reference/' src/cpu 'a kernel must not use the oracle'
forbid 'nlohmann|fmt/|CLI/' include 'public headers need only the standard library'

# The core never prints, exits or looks at the environment.
hits=$(grep -nE '\b(std::cout|std::cerr|printf|puts|exit|abort|getenv)\s*(\(|<<)' \
  src/*.cc src/*.h src/c_api/* src/cpu/* src/reference/* 2>/dev/null)
[ -z "$hits" ] || breach "the library core never prints, exits or reads the environment"$'\n'"$hits"

[ "$breaches" -eq 0 ]
