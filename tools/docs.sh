#!/usr/bin/env bash
# tools/docs.sh BUILD_DIR
# Makes BUILD_DIR/docs/html from docs/*.md and the comments of include/kda, with Doxygen and Sphinx.
# Any warning is an error, so every page is read again (-E): an unchanged one would be silent.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1/docs"
out=$(cd "$1/docs" && pwd)

# read NAME FILE...: Doxygen's XML of these headers in $out/NAME.
read_headers() {
  local name=$1
  shift
  rm -rf "${out:?}/$name"
  { cat docs/api/Doxyfile && echo "INPUT = $*" && echo "OUTPUT_DIRECTORY = $out/$name"; } |
    doxygen -
}
mkdir -p "$out"
read_headers c include/kda/*.h
read_headers cpp include/kda/*.hpp

KDA_VERSION=$(sed -n 's/^project(kda VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt) \
  KDA_DOXYGEN=$out sphinx-build -q -E -W --keep-going -d "$out/doctrees" docs "$out/html"
echo "$out/html/index.html"
