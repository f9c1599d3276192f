#!/usr/bin/env bash
# tools/dist.sh BUILD_DIR
# Makes BUILD_DIR/dist/kda-VERSION-SYSTEM.tar.gz from a finished build: the program, libkda.so, the
# static library, headers, and the shared libraries of Highway and oneTBB beside them, found from
# where the tree lies. It needs the C and C++ runtime of this system or a newer one, nothing else.
set -euo pipefail
build=$1

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=kda-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
tree=$build/dist/$name
rm -rf "$tree"
cmake --install "$build" --prefix "$tree" --strip >/dev/null
cmake --install "$build" --prefix "$tree" --strip --component bundle >/dev/null

# Licences of what is bundled, where the system's packages have them.
for package in libhwy1 libhwy1t64 libtbb12; do
  licence=/usr/share/doc/$package/copyright
  [ ! -f "$licence" ] || install -D -m 644 "$licence" "$tree/share/doc/kda/$package.copyright"
done
install -D -m 644 LICENSE "$tree/share/doc/kda/LICENSE"

# Nothing may come from outside but the C and C++ runtime.
outside=$(env -i ldd "$tree/bin/kda" "$tree"/lib*/libkda.so | grep '=>' | grep -v "$tree/" |
  grep -vE '^\s*(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt)\.so' || true)
if [ -n "$outside" ]; then
  printf 'dist: the tree needs libraries from outside:\n%s\n' "$outside" >&2
  exit 1
fi
env -i "$tree/bin/kda" info >/dev/null
tar -C "$build/dist" --owner=0 --group=0 -czf "$tree.tar.gz" "$name"
echo "$tree.tar.gz"
