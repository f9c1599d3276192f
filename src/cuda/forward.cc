// The chunked forward on the GPU: checks, which kernel, then its launches, again where checkpoints
// lie inside chunks.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/door.h"
#include "cuda/job.h"
#include "cuda/launch.h"
#include "cuda/streaming.h"

namespace kda {
namespace cuda {
namespace {

// What the kernels of sm90/ have, on top of what all have.
bool is_fast(const ForwardArgs& args, const Plan& plan) {
  const auto all = [](std::initializer_list<ConstTensor> tensors, DTypes types) {
    for (const ConstTensor& t : tensors) {
      if (t && std::find(types.begin(), types.end(), t.dtype) == types.end()) return false;
    }
    return true;
  };
  return plan.op == Op::kda && plan.K == kHead && plan.V == kHead && plan.chunk == kChunk &&
         !plan.neg_eigval && all({args.q, args.k, args.v, as_const(args.o)}, {DType::bf16}) &&
         all({args.g, args.beta, args.A_log, args.dt_bias}, {DType::bf16, DType::f32});
}

void check_supported(const ForwardArgs& args, const Plan& plan) {
  want(plan.precision == Precision::mixed, "precision", name(plan.precision),
       "automatic with 16-bit q, or mixed");
  want(plan.chunk >= 16, "chunk", std::to_string(plan.chunk), "16, 32, 64");
  want(plan.key_window <= kChunk, "key_window", std::to_string(plan.key_window), "8, 16, 32");
  want(plan.reference != Reference::midpoint, "reference", name(plan.reference),
       "shifted, first_row, pairwise");
  const Serving& serving = args.serving;
  want(!serving.states, "serving.states", "given", "absent");
  want(!serving.draft, "serving.draft", "true", "false");
  want(plan.K <= kMostChannels, "q", "K = " + std::to_string(plan.K), "K up to 256");
  want(plan.V <= kMostChannels, "v", "V = " + std::to_string(plan.V), "V up to 256");
  for (const Argument& a : {Argument{"o", as_const(args.o)},
                            {"g", args.g},
                            {"beta", args.beta},
                            {"A_log", args.A_log},
                            {"dt_bias", args.dt_bias}}) {
    want_dtype(a, {DType::bf16, DType::f16, DType::f32}, "bf16, f16, f32");
  }
  check_states(args, plan);
  check_sizes(plan);
  want(plan.T <= INT32_MAX - kChunk, "q", "T beyond 2^31", "less");
}

// Streaming states and what goes with them are those of the fast path's heads.
void check_streaming(const ForwardArgs& args, const Plan& plan) {
  want(plan.chunk == kChunk, "chunk", std::to_string(plan.chunk), "32 with streaming states");
  want(!plan.neg_eigval, "neg_eigval", "true", "false with streaming states");
  check_common(args, plan, {DType::bf16}, "bf16");
}

int shared_bytes(int device) { return attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin); }

// Which kernel.
bool takes_portable(const ForwardArgs& args, const CudaContext& context, const Plan& plan) {
  if (context.path == CudaPath::automatic && is_hopper(context.device) && is_fast(args, plan)) {
    return false;
  }
  want(portable_fits(plan.K, shared_bytes(context.device)), "q", "K = " + std::to_string(plan.K),
       "K up to 128 with this device's shared memory");
  return true;
}

std::int64_t chunks_of(std::int64_t tokens, const Plan& plan) {
  return (tokens + plan.chunk - 1) / plan.chunk;
}

}  // namespace

std::vector<Stop> ordered_stops(const Serving& serving, bool by_slot) {
  std::vector<Stop> stops;
  for (std::size_t i = 0; i < serving.checkpoint_count; ++i) {
    const Checkpoint& c = serving.checkpoints[i];
    stops.push_back({static_cast<int>(c.sequence), static_cast<int>(c.offset),
                     by_slot ? static_cast<int>(c.slot) : static_cast<int>(i)});
  }
  std::sort(stops.begin(), stops.end(), [](const Stop& a, const Stop& b) {
    return std::tie(a.sequence, a.offset, a.row) < std::tie(b.sequence, b.offset, b.row);
  });
  return stops;
}

Job job_of(const ForwardArgs& args, const CudaContext& context, std::optional<std::int64_t> slots) {
  Job job;
  job.plan = plan_of(args, context, slots);
  const Plan& plan = job.plan;
  check_supported(args, plan);
  if (slots) check_streaming(args, plan);
  job.portable = takes_portable(args, context, plan);
  job.single = is_one_window(plan) && plan.norm != Norm::none;
  job.general = !job.single;
  for (const ConstTensor& t : {args.q, args.k, args.v, args.g}) {
    job.general |= t.dtype != DType::bf16 || !has_vectors(t);
  }
  const std::int64_t tokens =
      args.cu_seqlens ? (plan.T + plan.N - 1) / std::max<std::int64_t>(plan.N, 1) : plan.T;
  const int multiprocessors = attribute(context.device, cudaDevAttrMultiProcessorCount);
  job.grid = choose_grid(plan.N * plan.HV, chunks_of(tokens, plan), job.general, multiprocessors);
  job.stops = ordered_stops(args.serving, /*by_slot=*/false);
  for (const Stop& stop : job.stops) {
    if (stop.offset % plan.chunk != 0) job.resumed.push_back(stop);
  }
  const auto ends = static_cast<std::int64_t>(job.resumed.size());
  job.resumed_grid = choose_grid(ends * plan.HV, 1, job.general, multiprocessors);
  return job;
}

std::size_t bytes_of(const Job& job) {
  const std::size_t lists = (job.stops.size() + job.resumed.size()) * sizeof(Stop);
  if (job.portable) return lists;
  std::size_t most = Handover(job.grid, job.plan.N).bytes;
  if (!job.resumed.empty()) {
    const auto ends = static_cast<std::int64_t>(job.resumed.size());
    most = std::max(most, Handover(job.resumed_grid, ends).bytes);
  }
  return most + lists;
}

namespace {

// The part of the workspace that a pass hands images over in; the list of stops lies behind.
void use_handover(const Grid& grid, char* memory, ForwardParams& p) {
  p.lanes = grid.lanes;
  p.slots_a_lane = grid.slots;
  p.halves = grid.halves;
  Handover(grid, p.N).place(memory, p);
}

}  // namespace

ForwardParams params_of(const ForwardArgs& args, const CudaContext& context, const Job& job) {
  const Plan& plan = job.plan;
  ForwardParams p{};
  fill_common(args, context, plan, p);
  const State& kept = args.serving.checkpoint_states;
  p.kept = state_view(as_const(kept.tensor), kept.layout);
  p.single = job.single;
  p.shift = shift_of(plan, job.single);
  p.gates = plan.op == Op::kda   ? GateShape::channel
            : plan.op == Op::gdn ? GateShape::head
                                 : GateShape::none;
  p.corrects = plan.op != Op::linear;
  p.precise = plan.neg_eigval;
  for (View* rows : {&p.q, &p.k, &p.g}) rows->vectors &= plan.K % 8 == 0;
  for (View* rows : {&p.v, &p.o}) rows->vectors &= plan.V % 8 == 0;
  p.cut_bits = cut_bits_of(plan);
  p.window = plan.key_window;
  if (!job.portable) use_handover(job.grid, static_cast<char*>(args.workspace.data), p);
  return p;
}

int launch_chunks(const ForwardParams& p, const CudaContext& context, const Job& job,
                  const Grid& grid) {
  return job.portable
             ? launch_portable(p, shared_bytes(context.device), job.general, context.stream)
             : launch_forward(p, grid, job.general, context.stream);
}

namespace {

// All launches; a cudaError_t.
int launch(const ForwardArgs& args, const CudaContext& context, const Job& job) {
  ForwardParams p = params_of(args, context, job);
  const std::size_t lists = (job.stops.size() + job.resumed.size()) * sizeof(Stop);
  char* memory = static_cast<char*>(args.workspace.data);
  Stop* const stops = reinterpret_cast<Stop*>(memory + bytes_of(job) - lists);
  int error = put_stops(job.stops, stops, context.stream);
  if (error == 0) error = put_stops(job.resumed, stops + job.stops.size(), context.stream);
  if (error != 0) return error;
  p.stops = stops;
  p.stop_count = static_cast<int>(job.stops.size());
  error = launch_chunks(p, context, job, job.grid);
  if (error != 0 || job.resumed.empty()) return error;
  // From the states of chunk boundaries, which the first pass kept, to the offsets asked for.
  p.stops = stops + job.stops.size();
  p.stop_count = p.N = static_cast<int>(job.resumed.size());
  p.resumed = true;
  p.initial = p.final = p.kept;
  p.o.data = nullptr;
  if (!job.portable) use_handover(job.resumed_grid, memory, p);
  return launch_chunks(p, context, job, job.resumed_grid);
}

}  // namespace

Ran ran_of(const ForwardArgs& args, const CudaContext& context, const Job& job) {
  const Plan& plan = job.plan;
  Ran r;
  r.backend = "cuda";
  r.kernel = job.portable ? "portable" : "sm90";
  r.precision = plan.precision;
  r.reference = plan.reference;
  r.chunk = plan.chunk;
  r.key_window = plan.key_window;
  r.shift = plan.shift;
  r.cuts = plan.cuts;
  if (!args.cu_seqlens) {
    r.chunks = plan.N * plan.HV * chunks_of(plan.T, plan);
  } else if (context.host_cu_seqlens) {
    ForwardArgs host = args;
    host.cu_seqlens.data = context.host_cu_seqlens;
    for (std::int64_t n = 0; n < plan.N; ++n) {
      r.chunks += plan.HV * chunks_of(stretch(host, plan, n).length, plan);
    }
  }
  return r;
}

}  // namespace cuda

Ran forward(const ForwardArgs& args, const CudaContext& context) {
  cuda::check_device(context.device);
  if (context.states) return cuda::forward_streaming(args, context);
  cuda::want(!context.layer, "layer", "given without states", "absent without context.states");
  const cuda::Job job = cuda::job_of(args, context);
  cuda::check_device_workspace(args, cuda::bytes_of(job));
  const cuda::DeviceScope scope(context.device);
  cuda::check_cuda(static_cast<cudaError_t>(cuda::launch(args, context, job)), "launch of forward");
  return cuda::ran_of(args, context, job);
}

std::string why_not(const ForwardArgs& args, const CudaContext& context) {
  try {
    cuda::check_device_workspace(args, workspace_bytes(args, context));
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::size_t workspace_bytes(const ForwardArgs& args, const CudaContext& context) {
  cuda::check_device(context.device);
  if (context.states) return cuda::streaming_workspace_bytes(args, context);
  cuda::want(!context.layer, "layer", "given without states", "absent without context.states");
  return cuda::bytes_of(cuda::job_of(args, context));
}

}  // namespace kda
