#!/usr/bin/env bash
# tools/install.sh build|test|docs|check|all|neon [--print]
# Installs the Debian packages that the named step needs and this system lacks. Without root and
# without sudo it says exactly what to type, and exits 1. --print only lists the packages.
set -euo pipefail

build=(g++ cmake ninja-build libhwy-dev libtbb-dev libfmt-dev nlohmann-json3-dev libcli11-dev
       libgtest-dev librapidcheck-dev libbenchmark-dev
       libjs-chart.js)
# python3 and pip for the test against Python's safetensors; a browser for the report's
test=(python3-venv chromium pkg-config)
docs=(doxygen python3-sphinx python3-breathe python3-myst-parser furo)
check=(clang-19 clang-format-19 libclang-rt-19-dev llvm-19)
all=(clang-tidy-19)
neon=(g++-aarch64-linux-gnu qemu-user-static)

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  test) wanted=("${build[@]}" "${test[@]}") ;;
  check) wanted=("${build[@]}" "${test[@]}" "${check[@]}") ;;
  docs) wanted=("${docs[@]}") ;;
  all) wanted=("${build[@]}" "${test[@]}" "${check[@]}" "${all[@]}" "${neon[@]}") ;;
  neon) wanted=("${build[@]}" "${neon[@]}") ;;
  *) sed -n '2,4s/^# //p' "$0" >&2; exit 2 ;;
esac
if [ "${2:-}" = --print ]; then
  printf '%s\n' "${wanted[@]}"
  exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install: no apt on this system; CMake will say if one of these is missing: ${wanted[*]}"
  exit 0
fi
if [ -n "${CMAKE_PREFIX_PATH:-}" ]; then
  echo "install: CMAKE_PREFIX_PATH is set, so the packages are taken from there; nothing installed"
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

type_this="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  # A terminal may ask for the password; a script may not.
  if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    as_root=(sudo)
  else
    echo "These packages are missing, and installing them takes root. As root, type:" >&2
    echo "  $type_this" >&2
    exit 1
  fi
fi

echo "install: ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
# Package lists may be absent or too old: then one update, and once more.
if ! "${install[@]}" >/dev/null 2>&1; then
  "${apt[@]}" update
  if ! "${install[@]}"; then
    echo "apt-get could not install them. Try as root: $type_this" >&2
    exit 1
  fi
fi
