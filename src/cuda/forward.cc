// The door to the GPU: checks, then one launch.
#include "kda/cuda.hpp"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "checks.h"
#include "cuda/launch.h"
#include "plan.h"

namespace kda {
namespace {

using cuda::Element;
using cuda::ForwardParams;
using cuda::GateKind;
using cuda::Grid;
using cuda::NormKind;
using cuda::View;

constexpr double kLog2e = 1.4426950408889634;

struct Job {
  Plan plan;
  Grid grid;
  bool single = false;   // one window a chunk, of a gate whose bound fits
  bool general = false;  // which kernel
};

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error("device", std::string(what) + ": " + cudaGetErrorString(error),
              "a working CUDA device");
}

int attribute(int device, cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

void check_device(int device) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (device < 0 || device >= count) {
    throw Error("device", std::to_string(device), "0 to " + std::to_string(count - 1));
  }
  const int major = attribute(device, cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute(device, cudaDevAttrComputeCapabilityMinor);
  if (major != 9 || minor != 0) {
    throw Error("device",
                "compute capability " + std::to_string(major) + "." + std::to_string(minor),
                "9.0 (Hopper)");
  }
}

// make_plan reads cu_seqlens: it gets the host's copy, or a stand-in that says nothing.
Plan plan_of(const ForwardArgs& args, const CudaContext& context) {
  ForwardArgs host = args;
  if (host.options.precision == Precision::automatic && size_of(args.q.dtype) == 2) {
    host.options.precision = Precision::mixed;
  }
  std::vector<std::int64_t> stand_in;
  if (args.cu_seqlens && args.cu_seqlens.rank == 1 && args.cu_seqlens.shape[0] > 0) {
    host.cu_seqlens.stride[0] = args.cu_seqlens.stride[0];
    if (context.host_cu_seqlens) {
      host.cu_seqlens.data = context.host_cu_seqlens;
    } else {
      stand_in.assign(static_cast<std::size_t>(args.cu_seqlens.shape[0]), 0);
      host.cu_seqlens.data = stand_in.data();
    }
  }
  return make_plan(host);
}

void want(bool supported, const char* argument, const std::string& was, const char* accepted) {
  if (!supported) throw Error(argument, was, std::string(accepted) + " on CUDA");
}

void want_dtype(const Argument& a, DTypes types, const char* accepted) {
  if (!a.view) return;
  for (DType t : types) {
    if (a.view.dtype == t) return;
  }
  throw Error(a.name, std::string("dtype ") + name(a.view.dtype),
              std::string(accepted) + " on CUDA");
}

void check_supported(const ForwardArgs& args, const Plan& plan) {
  want(plan.op == Op::kda, "op", name(plan.op), "kda");
  want(plan.precision == Precision::mixed, "precision", name(plan.precision),
       "automatic with 16-bit q, or mixed");
  want(plan.K == cuda::kHead, "q", "K = " + std::to_string(plan.K), "K = 128");
  want(plan.V == cuda::kHead, "v", "V = " + std::to_string(plan.V), "V = 128");
  want(plan.chunk == cuda::kChunk, "chunk", std::to_string(plan.chunk), "32");
  want(plan.reference != Reference::midpoint, "reference", name(plan.reference),
       "shifted, first_row, pairwise");
  want(!plan.neg_eigval, "neg_eigval", "true", "false");
  want(!plan.bf16_state, "bf16_state", "true", "false");
  const Serving& serving = args.serving;
  want(!serving.states, "serving.states", "given", "absent");
  want(!serving.slots, "serving.slots", "given", "absent");
  want(!serving.has_initial_state, "serving.has_initial_state", "given", "absent");
  want(!serving.draft, "serving.draft", "true", "false");
  want(serving.checkpoint_count == 0, "serving.checkpoints", "given", "none");
  for (const Argument& a :
       {Argument{"q", args.q}, {"k", args.k}, {"v", args.v}, {"o", as_const(args.o)}}) {
    want_dtype(a, {DType::bf16}, "bf16");
  }
  want_dtype({"g", args.g}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"beta", args.beta}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"A_log", args.A_log}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"dt_bias", args.dt_bias}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"initial_state", args.initial_state.tensor}, {DType::f32}, "f32");
  want_dtype({"final_state", as_const(args.final_state.tensor)}, {DType::f32}, "f32");
  want(plan.T <= INT32_MAX && plan.B <= INT32_MAX, "q", "B, T beyond 2^31", "less");
  want(plan.N * plan.HV <= INT32_MAX, "v", "N HV beyond 2^31", "less");
}

Element element(DType t) {
  switch (t) {
    case DType::f32:
      return Element::f32;
    case DType::i32:
      return Element::i32;
    case DType::i64:
      return Element::i64;
    default:
      return Element::bf16;
  }
}

bool has_vectors(const ConstTensor& t) {
  bool whole = reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  for (int i = 0; i < 3; ++i) whole &= t.shape[i] <= 1 || t.stride[i] % 8 == 0;
  return whole && t.dtype == DType::bf16;
}

View view(const ConstTensor& t) {
  return {t.data, t.stride[0], t.stride[1], t.stride[2], element(t.dtype), has_vectors(t)};
}

template <class StateT>
cuda::StateView state_view(const StateT& s) {
  const auto& t = s.tensor;
  const void* data = t.data;
  return {const_cast<float*>(static_cast<const float*>(data)), t.stride[0], t.stride[1],
          t.stride[2], s.layout == StateLayout::value_first};
}

std::int64_t chunks_of(std::int64_t tokens) { return (tokens + cuda::kChunk - 1) / cuda::kChunk; }

Job job_of(const ForwardArgs& args, const CudaContext& context) {
  check_device(context.device);
  Job job;
  job.plan = plan_of(args, context);
  const Plan& plan = job.plan;
  check_supported(args, plan);
  job.single = plan.gate == Gate::bounded && !plan.cuts && plan.key_window == plan.chunk &&
               plan.reference == Reference::shifted && plan.norm != Norm::none;
  job.general = !job.single;
  for (const ConstTensor& t : {args.q, args.k, args.v, args.g}) job.general |= !has_vectors(t);
  const std::int64_t tokens =
      args.cu_seqlens ? (plan.T + plan.N - 1) / std::max<std::int64_t>(plan.N, 1) : plan.T;
  job.grid = cuda::choose_grid(plan.N * plan.HV, chunks_of(tokens),
                               attribute(context.device, cudaDevAttrMultiProcessorCount));
  return job;
}

ForwardParams params_of(const ForwardArgs& args, const CudaContext& context, const Job& job) {
  const Plan& plan = job.plan;
  ForwardParams p{};
  p.q = view(args.q);
  p.k = view(args.k);
  p.v = view(args.v);
  p.g = view(args.g);
  p.beta = view(args.beta);
  p.o = view(as_const(args.o));
  p.A_log = args.A_log.data;
  p.A_log_element = element(args.A_log.dtype);
  p.dt_bias = args.dt_bias.data;
  p.dt_bias_element = element(args.dt_bias.dtype);
  p.bias_head = args.dt_bias.stride[0];
  p.initial = state_view(args.initial_state);
  p.final = state_view(args.final_state);
  p.cu_seqlens = args.cu_seqlens.data;
  p.cu_element = element(args.cu_seqlens.dtype);
  p.B = static_cast<int>(plan.B);
  p.T = static_cast<int>(plan.T);
  p.N = static_cast<int>(plan.N);
  p.HV = static_cast<int>(plan.HV);
  p.group = static_cast<int>(plan.HV / plan.H);
  p.gate = plan.gate == Gate::bounded    ? GateKind::bounded
           : plan.gate == Gate::softplus ? GateKind::softplus
                                         : GateKind::log;
  p.norm = plan.norm == Norm::rsqrt       ? NormKind::rsqrt
           : plan.norm == Norm::normalize ? NormKind::normalize
                                          : NormKind::none;
  p.sigmoid_beta = plan.sigmoid_beta;
  p.lower_bound = static_cast<float>(plan.lower_bound * kLog2e);
  p.scale = static_cast<float>(plan.scale);
  p.single = job.single;
  // With one window a chunk all sums start at the chunk's, not at its first token: one more gate.
  p.shift = job.single ? static_cast<float>(std::round(-plan.lower_bound * kLog2e * plan.chunk / 2))
                       : static_cast<float>(plan.shift);
  p.cut_bits = plan.cuts ? static_cast<float>(plan.cut_bits) : HUGE_VALF;
  p.window = plan.key_window;

  char* memory = static_cast<char*>(args.workspace.data);
  p.lanes = job.grid.lanes;
  p.slots = job.grid.slots;
  p.halves = job.grid.halves;
  p.filled = reinterpret_cast<std::uint32_t*>(memory);
  p.taken = p.filled + static_cast<std::ptrdiff_t>(p.lanes) * p.slots;
  p.ring = memory + cuda::counter_bytes(job.grid);
  p.status = context.status;
  return p;
}

void check_device_workspace(const ForwardArgs& args, std::size_t bytes) {
  if (bytes == 0) return;
  const Workspace& w = args.workspace;
  const std::string accepted =
      std::to_string(bytes) + " bytes of device memory, 256-byte aligned, on CUDA";
  if (!w.data) throw Error("workspace", "absent", accepted);
  if (reinterpret_cast<std::uintptr_t>(w.data) % 256 != 0) {
    throw Error("workspace", "not 256-byte aligned", accepted);
  }
  check_workspace(args, bytes);
}

std::size_t bytes_of(const Job& job) { return cuda::ring_bytes(job.grid); }

Ran ran(const ForwardArgs& args, const CudaContext& context, const Job& job) {
  const Plan& plan = job.plan;
  Ran r;
  r.backend = "cuda";
  r.precision = plan.precision;
  r.reference = plan.reference;
  r.chunk = plan.chunk;
  r.key_window = plan.key_window;
  r.shift = plan.shift;
  r.cuts = plan.cuts;
  if (!args.cu_seqlens) {
    r.chunks = plan.N * plan.HV * chunks_of(plan.T);
  } else if (context.host_cu_seqlens) {
    ForwardArgs host = args;
    host.cu_seqlens.data = context.host_cu_seqlens;
    for (std::int64_t n = 0; n < plan.N; ++n) {
      r.chunks += plan.HV * chunks_of(stretch(host, plan, n).length);
    }
  }
  return r;
}

// The caller's current device comes back.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

Ran forward(const ForwardArgs& args, const CudaContext& context) {
  const Job job = job_of(args, context);
  check_device_workspace(args, bytes_of(job));
  const DeviceScope scope(context.device);
  const int error =
      cuda::launch_forward(params_of(args, context, job), job.grid, job.general, context.stream);
  check_cuda(static_cast<cudaError_t>(error), "launch of forward");
  return ran(args, context, job);
}

std::string why_not(const ForwardArgs& args, const CudaContext& context) {
  try {
    const Job job = job_of(args, context);
    check_device_workspace(args, bytes_of(job));
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::size_t workspace_bytes(const ForwardArgs& args, const CudaContext& context) {
  return bytes_of(job_of(args, context));
}

}  // namespace kda
