#!/usr/bin/env bash
# tools/neon.sh build|run PROGRAM ARGUMENTS
# build: the library and the tests of its kernels for 64-bit ARM, in build-neon. The packages of that
# architecture are unpacked there; nothing of this system changes but for tools/install.sh neon.
# run: a program of it under qemu.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/build-neon
root=$folder/root

# This system's own package sources, asked for another architecture.
unpack() {
  local apt=(apt-get -q -o "Dir::State=$folder/apt" -o Dir::State::status=/dev/null
             -o "Dir::Cache=$folder/apt" -o APT::Architecture=arm64 -o APT::Architectures=arm64
             -o APT::Sandbox::User=)
  local fmt
  mkdir -p "$folder/apt/lists/partial" "$folder/packages"
  "${apt[@]}" update
  fmt=$(dpkg-query -W -f '${Depends}' libfmt-dev | grep -o 'libfmt[0-9]*' | head -n 1)
  (cd "$folder/packages" &&
    "${apt[@]}" download libhwy1 libhwy-dev libgtest-dev librapidcheck-dev libfmt-dev "$fmt" \
      nlohmann-json3-dev)
  for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$root"; done
}

case "${1:-}" in
  build)
    tools/install.sh neon
    [ -d "$root/usr" ] || unpack
    KDA_ARM64_ROOT=$root cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux.cmake" \
      -DKDA_WITH_TBB=OFF -DKDA_WITH_CUDA=OFF -DKDA_BUILD_CLI=OFF \
      -DKDA_TEST_SOURCES='/(cpu|half|norm|pool|recurrent|streaming|conv)_?[a-z_]*_test\.cc$' >/dev/null
    KDA_ARM64_ROOT=$root cmake --build "$folder" -j "${JOBS:-$(nproc)}" --target kda_tests
    ;;
  run)
    shift
    exec qemu-aarch64-static -L /usr/aarch64-linux-gnu \
      -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" "$@"
    ;;
  *) sed -n '2,5s/^# //p' "$0" >&2; exit 2 ;;
esac
