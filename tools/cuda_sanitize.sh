#!/usr/bin/env bash
# tools/cuda_sanitize.sh KDA_TESTS [LOGS]: compute-sanitizer's memcheck, racecheck, synccheck and
# initcheck over a selection of the GPU's tests that has each kernel, on a machine with a GPU; where
# KDA_TESTS was built does not matter. Prints one line a tool, and the kinds of what it reports; all
# that it said goes to the folder LOGS (default: a new one). FILTER=... takes other tests, TOOLS="..."
# some tools. Exits 1 if a tool reports anything or a test fails, 2 where nothing ran.
set -uo pipefail

tests=${1:?the test binary}
logs=${2:-$(mktemp -d)}
mkdir -p "$logs"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$sanitizer" ]; then
  echo "cuda_sanitize: no compute-sanitizer; it comes with the CUDA toolkit" >&2
  exit 2
fi

selection=(
  'Cases/CudaAccuracy.*/tail_bounded_65'           # sm90, a bound that fits one window
  'Cases/CudaAccuracy.*/tail_log_63'               # sm90, other gates
  'Cases/CudaAccuracy.*/packed_several'
  'ManyHeads/CudaPortableBits.*/bounded'           # sm90, end keys packed
  'ManyHeads/CudaPortableBits.*/bounded_packed'    # sm90, heads that two consumers share
  'Forms/CudaPool.Checkpoints*/bounded'            # sm90, slots and checkpoints
  'Cases/CudaPortableBits.*/tail_bounded_3'        # portable
  'Forms/CudaStreaming.OnePieceIsOneCall/bounded'  # streaming steps, then the forward kernel
  'Forms/CudaStreaming.TokenByToken/bounded'       # the kernel for one token
  'All/CudaLayerStep.HasTheBitsOfSeparateCalls/bf16'  # and with what stands around it in a layer
  'All/CudaLayerStep.HasTheBitsOfSeparateCalls/many_fp32'
  'CudaLayerStepRange.*'
  'Forms/CudaStreamingGates.Only*/softplus_spikes'  # windows that open inside chunks, alone
  'Forms/CudaCheckpoints.OfPackedSequences/window_of_8'
  'Layouts/CudaRecurrentState.StepsInPlace/*_f32'
  'All/CudaConvBits.HoweverTheSequenceIsCut/w4_bf16_c24'
  'All/CudaConvGradients.HoweverTheSequenceIsCut/w4_bf16_c24'
  'CudaNorm.MatchesTheOracle'
  'CudaNormBackward.MatchesTheOracle'
  'All/CudaMma.WgmmaHasTheBitsOfMmaSync/bf16_N32'
)
filter=${FILTER:-$(IFS=:; echo "${selection[*]}")}

status=0
for tool in ${TOOLS:-memcheck racecheck synccheck initcheck}; do
  log=$logs/$tool.log start=$SECONDS
  "$sanitizer" --tool "$tool" "$tests" --gtest_filter="$filter" >"$log" 2>&1
  code=$?
  summary=$(sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: //p' "$log" | head -n 1)
  passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) tests?.*/\1/p' "$log")
  skipped=$(sed -nE 's/^\[  SKIPPED \] ([0-9]+) tests?.*/, \1 skipped/p' "$log")
  echo "$tool: ${summary:-no summary, exit code $code}; ${passed:-0} tests passed$skipped," \
    "$((SECONDS - start)) s; $log"
  # What was reported, without addresses, and how often.
  sed -nE '/^=+ (Error|Warning|Invalid|Uninitialized|Barrier|Divergent)/{s/^=+ //; s/0x[0-9a-f]+/0x/g; s/\([0-9]+,[0-9]+,[0-9]+\)/(x,y,z)/g; p}' \
    "$log" | sort | uniq -c | sort -rn | head -n 20
  if [ "${passed:-0}" = 0 ] || [ -z "$summary" ]; then
    status=2
  elif [ "$code" != 0 ] || ! [[ $summary =~ ^0\  ]]; then
    [ $status = 2 ] || status=1
  fi
done
exit $status
