#include "cuda/streaming.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/door.h"
#include "cuda/job.h"
#include "cuda/launch.h"
#include "cuda/step.h"
#include "serving.h"

namespace kda {
namespace cuda {
namespace {

using stream::Layout;
using stream::Phase;

// Up to so many tokens a sequence one launch takes them all; else whole chunks go through the
// forward kernel.
constexpr std::int64_t kShort = kChunk;

// Whether a chunk may hold several windows; else it is one, of a gate whose bound fits.
bool has_windows(const Plan& plan) { return !is_one_window(plan); }

Plan plan_of_states(const CudaStreamingStates& s) {
  const auto least = [](const char* argument, std::int64_t value, std::int64_t wanted) {
    if (value >= wanted) return;
    throw Error(argument, std::to_string(value), std::to_string(wanted) + " or more");
  };
  least("states.HV", s.HV, 1);
  least("states.slots", s.slots, 0);
  least("states.max_draft", s.max_draft, 0);
  want(s.HV <= 65535, "states.HV", std::to_string(s.HV), "at most 65535");
  Plan plan = make_state_plan(s.options);
  plan.HV = s.HV;
  plan.K = plan.V = kHead;
  want(plan.op != Op::linear, "op", name(plan.op), "kda, gdn, delta");
  want(plan.precision == Precision::mixed, "precision", name(plan.precision), "mixed");
  want(plan.chunk == kChunk, "chunk", std::to_string(plan.chunk), "32");
  want(plan.reference != Reference::midpoint, "reference", name(plan.reference),
       "shifted, first_row, pairwise");
  want(plan.op == Op::kda || has_windows(plan), "gate", name(plan.gate),
       "log, softplus, or a key_window below 32 with streaming states of this op");
  return plan;
}

std::int64_t head_bytes(const CudaStreamingStates& s, const Plan& plan) {
  return Layout::bytes(has_windows(plan)) + std::int64_t{s.max_draft} * Layout::kDraftBytes;
}

void check_memory(const CudaStreamingStates& s) {
  const std::size_t wanted = slot_bytes(s) * static_cast<std::size_t>(s.slots);
  const std::string accepted = std::to_string(wanted) + " bytes of device memory, 256-byte aligned";
  if (!s.data) throw Error("states.data", "null", accepted);
  if (reinterpret_cast<std::uintptr_t>(s.data) % 256 != 0) {
    throw Error("states.data", "not 256-byte aligned", accepted);
  }
  if (s.bytes < wanted) throw Error("states.bytes", std::to_string(s.bytes), accepted);
}

struct Streaming {
  Job job;
  ForwardArgs args;                      // without what only streaming has
  std::vector<Stop> stops;               // checkpoints, rows are slots
  std::int64_t most = 0;                 // tokens of the longest sequence, at most
  std::size_t begins = 0, stops_at = 0;  // bytes into the workspace
  std::size_t bytes = 0;                 // of workspace
  bool draft = false, whole = false;
};

// The longest sequence, as far as the host knows.
std::int64_t most_tokens(const ForwardArgs& args, const CudaContext& context, const Plan& plan) {
  if (!args.cu_seqlens || !context.host_cu_seqlens) return plan.T;
  ForwardArgs host = args;
  host.cu_seqlens.data = context.host_cu_seqlens;
  std::int64_t most = 0;
  for (std::int64_t n = 0; n < plan.N; ++n) most = std::max(most, stretch(host, plan, n).length);
  return most;
}

std::vector<Stop> stops_of(const ForwardArgs& args, const CudaContext& context, const Plan& plan) {
  check_absent({"checkpoint_states", as_const(args.serving.checkpoint_states.tensor)},
               "checkpoints of streaming states go to their slots");
  if (args.serving.checkpoint_count == 0) return {};
  if (args.serving.draft) {
    throw Error("checkpoints", "given with draft", "none: a draft leaves the states alone");
  }
  ForwardArgs host = args;
  if (args.cu_seqlens) host.cu_seqlens.data = context.host_cu_seqlens;
  const HostIndices indices(host.serving.slots, context.host_slots, -1);
  check_checkpoint_list(host, plan, /*streaming=*/true, context.states->slots);
  return ordered_stops(args.serving, /*by_slot=*/true);
}

Streaming streaming_of(const ForwardArgs& args, const CudaContext& context) {
  const CudaStreamingStates& states = *context.states;
  const Plan made = plan_of_states(states);
  check_memory(states);
  const Serving& serving = args.serving;
  check_absent({"initial_state", args.initial_state.tensor}, "context.states are the states");
  check_absent({"final_state", as_const(args.final_state.tensor)}, "context.states are the states");
  check_host_sequences(args, context);
  Streaming s;
  s.args = args;
  s.args.serving.draft = false;
  s.args.serving.checkpoint_count = 0;
  s.args.serving.checkpoint_states = {};
  s.draft = serving.draft;
  s.job = job_of(s.args, context, states.slots);
  const Plan& plan = s.job.plan;
  check_form(plan, made, "context.states");
  want(plan.norm != Norm::none || has_windows(made), "norm", name(plan.norm),
       "rsqrt, normalize with streaming states of one window a chunk");
  s.most = most_tokens(args, context, plan);
  if (context.layer) {
    want(!has_windows(made), "layer", "given with chunks of several windows",
         "a bounded gate whose bound fits one window");
    check_layer(args, context, plan, s.most);
  }
  const bool known = !args.cu_seqlens || context.host_cu_seqlens;
  if (s.draft && known && s.most > states.max_draft) {
    throw Error("draft", std::to_string(s.most) + " tokens",
                "at most max_draft = " + std::to_string(states.max_draft));
  }
  if (s.draft)
    check_absent({"has_initial_state", serving.has_initial_state},
                 "a draft leaves the states alone");
  s.stops = stops_of(args, context, plan);
  const auto heads = static_cast<std::size_t>(plan.N * plan.HV);
  s.whole = !s.draft && s.most <= kShort;
  s.begins = bytes_of(s.job);
  if (s.draft) {
    s.bytes = heads * static_cast<std::size_t>(Layout::bytes(has_windows(made)));
  } else if (!s.whole) {
    s.bytes = s.begins + static_cast<std::size_t>(plan.N) * sizeof(int);
  }
  s.stops_at = s.bytes;
  s.bytes += s.stops.size() * sizeof(Stop);
  return s;
}

// What every kernel on streaming states needs of them.
void fill_states(const CudaStreamingStates& states, const CudaContext& context, const Plan& plan,
                 stream::Params& p) {
  p.states = static_cast<char*>(states.data);
  p.slot_bytes = static_cast<std::int64_t>(slot_bytes(states));
  p.head_bytes = head_bytes(states, plan);
  p.windows = has_windows(plan);
  p.max_draft = states.max_draft;
  p.call.HV = static_cast<int>(states.HV);
  p.call.slot_count = states.slots;
  p.call.lower_bound = static_cast<float>(plan.lower_bound * kLog2eExact);
  p.call.shift = shift_of(plan, !p.windows);
  p.call.cut_bits = cut_bits_of(plan);
  p.call.window = plan.key_window;
  p.call.bf16_state = plan.bf16_state;
  p.call.status = context.status;
}

// The states that the chunks of a call go through.
StateView chunk_states(const stream::Params& p) {
  return {p.states + Layout::kState,
          p.slot_bytes / 4,
          p.head_bytes / 4,
          kHead,
          true,
          Element::f32,
          true};
}

// Open chunks to their ends, whole chunks by the forward kernel, then the rest. checkpoint(phase):
// of the checkpoints. Returns a cudaError_t, as it does.
template <class Checkpoint>
int launch_long(stream::Params p, const Streaming& s, const CudaContext& context, const Stop* stops,
                Checkpoint checkpoint) {
  p.phase = Phase::to_boundary;
  int error = checkpoint(p);
  if (error == 0) error = launch_append(p, false, context.stream);
  if (error != 0) return error;
  ForwardParams chunks = p.call;
  chunks.initial = chunks.final = chunks.kept = chunk_states(p);
  chunks.has_initial = nullptr;
  chunks.stops = stops;
  chunks.stop_count = static_cast<int>(s.stops.size());
  error = launch_chunks(chunks, context, s.job, s.job.grid);
  if (error != 0) return error;
  p.phase = Phase::rest;
  error = launch_append(p, false, context.stream);
  return error != 0 ? error : checkpoint(p);
}

int launch(const Streaming& s, const CudaContext& context) {
  const CudaStreamingStates& states = *context.states;
  stream::Params p{};
  p.call = params_of(s.args, context, s.job);
  fill_states(states, context, s.job.plan, p);
  char* memory = static_cast<char*>(s.args.workspace.data);
  p.scratch = memory;
  Stop* const stops = s.stops.empty() ? nullptr : reinterpret_cast<Stop*>(memory + s.stops_at);
  // A phase for the checkpoints: before the states move away from what they start with, or behind
  // the chunks that have left S in their slots.
  const auto checkpoint = [&](stream::Params q) -> int {
    if (s.stops.empty()) return 0;
    q.stops = stops;
    q.stop_count = static_cast<int>(s.stops.size());
    return launch_append(q, false, context.stream);
  };
  int error = put_stops(s.stops, stops, context.stream);
  if (error != 0) return error;
  if (!s.draft && !s.whole) {
    p.call.begins = reinterpret_cast<int*>(memory + s.begins);
    return launch_long(p, s, context, stops, checkpoint);
  }
  p.phase = s.draft ? Phase::draft : Phase::whole;
  error = checkpoint(p);
  if (error != 0) return error;
  const bool single = s.whole && s.most <= 1;
  // Packed sequences may all be empty, and begin anew all the same.
  const bool step = single && (s.args.cu_seqlens || s.job.plan.T == 1);
  if (step && !p.windows && fits_step(s.args, states)) {
    return launch_step(step_params(s.args, context, s.job.plan, p), context.layer, context.stream);
  }
  return launch_append(p, single, context.stream);
}

// A call on states alone.
stream::Params state_params(const CudaStreamingStates& states, const ConstTensor& slots,
                            std::int64_t N, const CudaContext& context) {
  check_device(context.device);
  const Plan plan = plan_of_states(states);
  check_memory(states);
  if (slots) {
    const Argument argument = {"slots", slots};
    check_view(argument, {{"N", N}}, kIndexTypes, "serving");
    check_input_memory(argument);
  } else if (N > states.slots) {
    throw Error("slots", "absent with " + std::to_string(N) + " sequences",
                "at most " + std::to_string(states.slots) + " sequences, or the slot of each");
  }
  want(N * states.HV <= INT32_MAX, "slots", "N HV beyond 2^31", "less");
  stream::Params p{};
  fill_states(states, context, plan, p);
  p.call.N = static_cast<int>(N);
  p.call.slots = slots.data;
  p.call.slots_element = element(slots.dtype);
  return p;
}

}  // namespace

Ran forward_streaming(const ForwardArgs& args, const CudaContext& context) {
  const Streaming s = streaming_of(args, context);
  check_device_workspace(args, s.bytes);
  const DeviceScope scope(context.device);
  check_cuda(static_cast<cudaError_t>(launch(s, context)), "launch of forward");
  return ran_of(s.args, context, s.job);
}

std::size_t streaming_workspace_bytes(const ForwardArgs& args, const CudaContext& context) {
  return streaming_of(args, context).bytes;
}

}  // namespace cuda

std::size_t slot_bytes(const CudaStreamingStates& states) {
  const Plan plan = cuda::plan_of_states(states);
  return static_cast<std::size_t>(cuda::head_bytes(states, plan) * states.HV);
}

void commit(const CudaStreamingStates& states, const ConstTensor& slots, const ConstTensor& counts,
            const CudaContext& context) {
  const Argument argument = {"counts", counts};
  check_view(argument, {{"N", 0, true}}, kIndexTypes, "commit");
  check_input_memory(argument);
  cuda::stream::Params p = cuda::state_params(states, slots, counts.shape[0], context);
  p.counts = counts.data;
  p.counts_element = cuda::element(counts.dtype);
  p.phase = cuda::stream::Phase::commit;
  const cuda::DeviceScope scope(context.device);
  cuda::check_cuda(static_cast<cudaError_t>(cuda::launch_append(p, false, context.stream)),
                   "launch of commit");
}

void plain_states(const CudaStreamingStates& states, const ConstTensor& slots, const State& out,
                  const CudaContext& context) {
  const std::int64_t N = slots ? slots.shape[0] : out.tensor.shape[0];
  cuda::stream::Params p = cuda::state_params(states, slots, N, context);
  Plan plan = cuda::plan_of_states(states);
  plan.N = N;
  check_state_output("out", out, plan, N);
  cuda::want_dtype({"out", as_const(out.tensor)},
                   {DType::f32, plan.bf16_state ? DType::bf16 : DType::f32},
                   plan.bf16_state ? "f32, bf16" : "f32");
  p.call.final = cuda::state_view(as_const(out.tensor), out.layout);
  const cuda::DeviceScope scope(context.device);
  cuda::check_cuda(static_cast<cudaError_t>(cuda::launch_plain(p, context.stream)),
                   "launch of plain_states");
}

}  // namespace kda
