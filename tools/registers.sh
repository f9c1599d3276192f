#!/usr/bin/env bash
# tools/registers.sh BUILD [--update]: registers and bytes spilled (stores and loads) of every kernel
# of forward and decode that BUILD has compiled, against the table src/cuda/registers.txt; --update
# writes the table. Says so and does nothing where the build has no CUDA or another nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?a build folder}
table=src/cuda/registers.txt

logs=()
for kernel in src/cuda/*.cu src/cuda/{sm90,portable}/*.cu; do
  folder=$(basename "$(dirname "$kernel")")
  log=$build/src/cuda/${folder}_$(basename "$kernel" .cu).o.log
  [ -f "$log" ] && logs+=("$log")
done
if [ ${#logs[@]} = 0 ]; then
  echo "registers: skipped, $build has no CUDA kernels"
  exit 0
fi
nvcc=$(grep -h '^CUDAToolkit_NVCC_EXECUTABLE:' "$build/CMakeCache.txt" | cut -d= -f2)
release=$("$nvcc" --version | grep -o 'release.*')

measured=$(cat "${logs[@]}" | awk '
    /Compiling entry function/ {
      split($0, part, "\047"); kernel = part[2]; arch = part[4]; seen = 0
    }
    /bytes stack frame/ && kernel && !seen { spills = $5 + $9; seen = 1 }
    /Used [0-9]+ registers/ && kernel {
      match($0, /Used [0-9]+/)
      printf "%s %s %s %s\n", kernel, arch, substr($0, RSTART + 5, RLENGTH - 5), spills
      kernel = ""
    }' | grep -v _GLOBAL__N | c++filt -p | sort -u | awk '
    { spills = $NF; registers = $(NF - 1); arch = $(NF - 2)
      NF -= 3; sub(/^void /, ""); sub(/^kda::cuda::/, "")
      printf "%-64s %-8s %4d %6d\n", $0, arch, registers, spills }')
head=$(printf '%s\n%-64s %-8s %4s %6s' "# nvcc $release" '# kernel' arch reg. spills)

if [ "${2:-}" = --update ]; then
  printf '%s\n%s\n' "$head" "$measured" >"$table"
  exit 0
fi
if [ "$(head -n 1 "$table")" != "# nvcc $release" ]; then
  echo "registers: skipped, $table is of$(head -n 1 "$table" | cut -c 7-), this is $release"
  exit 0
fi
if ! diff -u "$table" <(printf '%s\n%s\n' "$head" "$measured"); then
  echo "registers: kernels use others than $table says; if that is meant: $0 $build --update" >&2
  exit 1
fi
echo "registers: $(echo "$measured" | wc -l) kernels as in $table"
