#include "cuda/door.h"

#include "serving.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kda::cuda {

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
  int count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    throw Error("device", "no NVIDIA driver", "a working CUDA device");
  }
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (device < 0 || device >= count) {
    throw Error("device", std::to_string(device), "0 to " + std::to_string(count - 1));
  }
  const int major = attribute(device, cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute(device, cudaDevAttrComputeCapabilityMinor);
  if (major < 8) {
    throw Error("device",
                "compute capability " + std::to_string(major) + "." + std::to_string(minor),
                "8.0 and above");
  }
}

bool is_hopper(int device) {
  return attribute(device, cudaDevAttrComputeCapabilityMajor) == 9 &&
         attribute(device, cudaDevAttrComputeCapabilityMinor) == 0;
}

HostIndices::HostIndices(ConstTensor& view, const void* copy, std::int64_t filler) {
  if (!view || view.rank != 1 || view.shape[0] <= 0) return;
  if (copy) {
    view.data = copy;
    return;
  }
  memory_.assign(static_cast<std::size_t>(view.shape[0]), filler);
  view.data = memory_.data();
}

void check_host_sequences(const ForwardArgs& args, const CudaContext& context) {
  if (args.serving.checkpoint_count == 0 || !args.cu_seqlens || context.host_cu_seqlens) return;
  throw Error("host_cu_seqlens", "absent with checkpoints and cu_seqlens",
              "a copy of cu_seqlens in host memory, which checkpoints are checked against");
}

Plan plan_of(const ForwardArgs& args, const CudaContext& context,
             std::optional<std::int64_t> slots) {
  ForwardArgs host = args;
  if (host.options.precision == Precision::automatic && size_of(args.q.dtype) == 2) {
    host.options.precision = Precision::mixed;
  }
  check_host_sequences(args, context);
  const HostIndices sequences(host.cu_seqlens, context.host_cu_seqlens, 0);
  // make_plan knows plain states only.
  const HostIndices indices(host.serving.slots, slots ? nullptr : context.host_slots, -1);
  const Plan plan = make_plan(host);
  if (slots) {
    if (context.host_slots) host.serving.slots.data = context.host_slots;
    check_slots(host.serving.slots, plan.N, *slots);
  }
  return plan;
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

void check_common(const ForwardArgs& args, const Plan& plan, DTypes rows, const char* accepted) {
  want(plan.K == kHead, "q", "K = " + std::to_string(plan.K), "K = 128");
  want(plan.V == kHead, "v", "V = " + std::to_string(plan.V), "V = 128");
  for (const Argument& a :
       {Argument{"q", args.q}, {"k", args.k}, {"v", args.v}, {"o", as_const(args.o)}}) {
    want_dtype(a, rows, accepted);
  }
  want_dtype({"g", args.g}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"beta", args.beta}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"A_log", args.A_log}, {DType::bf16, DType::f32}, "bf16, f32");
  want_dtype({"dt_bias", args.dt_bias}, {DType::bf16, DType::f32}, "bf16, f32");
  check_states(args, plan);
  check_sizes(plan);
}

void check_states(const ForwardArgs& args, const Plan& plan) {
  const char* states = plan.bf16_state ? "f32, bf16" : "f32";
  for (const Argument& a :
       {Argument{"initial_state", args.initial_state.tensor},
        {"final_state", as_const(args.final_state.tensor)},
        {"checkpoint_states", as_const(args.serving.checkpoint_states.tensor)}}) {
    want_dtype(a, {DType::f32, plan.bf16_state ? DType::bf16 : DType::f32}, states);
  }
}

void check_sizes(const Plan& plan) {
  want(plan.T <= INT32_MAX && plan.B <= INT32_MAX, "q", "B, T beyond 2^31", "less");
  want(plan.N * plan.HV <= INT32_MAX, "v", "N HV beyond 2^31", "less");
}

void check_device_memory(const Workspace& workspace, std::size_t bytes) {
  const std::string accepted =
      std::to_string(bytes) + " bytes of device memory, 256-byte aligned, on CUDA";
  if (!workspace.data) throw Error("workspace", "absent", accepted);
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0) {
    throw Error("workspace", "not 256-byte aligned", accepted);
  }
}

void check_device_workspace(const ForwardArgs& args, std::size_t bytes) {
  if (bytes == 0) return;
  check_device_memory(args.workspace, bytes);
  check_workspace(args, bytes);
}

Element element(DType t) {
  switch (t) {
    case DType::f32:
      return Element::f32;
    case DType::f16:
      return Element::f16;
    case DType::i32:
      return Element::i32;
    case DType::i64:
      return Element::i64;
    default:
      return Element::bf16;
  }
}

bool has_whole(const ConstTensor& t, std::int64_t elements) {
  const auto bytes = static_cast<std::uintptr_t>(elements) * size_of(t.dtype);
  bool whole = reinterpret_cast<std::uintptr_t>(t.data) % bytes == 0;
  for (int i = 0; i + 1 < t.rank; ++i) whole &= t.shape[i] <= 1 || t.stride[i] % elements == 0;
  return whole;
}

bool has_vectors(const ConstTensor& t) {
  return has_whole(t, static_cast<std::int64_t>(16 / size_of(t.dtype)));
}

View view(const ConstTensor& t) {
  return {t.data, t.stride[0], t.stride[1], t.stride[2], element(t.dtype), has_vectors(t)};
}

StateView state_view(const ConstTensor& t, StateLayout layout) {
  return {const_cast<void*>(t.data),          t.stride[0],      t.stride[1],    t.stride[2],
          layout == StateLayout::value_first, element(t.dtype), has_whole(t, 4)};
}

int step_of(const Plan& plan) { return std::min(plan.chunk, kChunk); }

bool is_one_window(const Plan& plan) {
  return plan.gate == Gate::bounded && !plan.cuts && plan.key_window == step_of(plan) &&
         plan.reference == Reference::shifted;
}

float shift_of(const Plan& plan, bool single) {
  if (!single) return static_cast<float>(plan.shift);
  return static_cast<float>(std::round(-plan.lower_bound * kLog2eExact * step_of(plan) / 2));
}

float cut_bits_of(const Plan& plan) {
  return plan.cuts ? static_cast<float>(plan.cut_bits) : HUGE_VALF;
}

GateKind gate_kind(Gate gate) {
  return gate == Gate::bounded    ? GateKind::bounded
         : gate == Gate::softplus ? GateKind::softplus
                                  : GateKind::log;
}

NormKind norm_kind(Norm norm) {
  return norm == Norm::rsqrt       ? NormKind::rsqrt
         : norm == Norm::normalize ? NormKind::normalize
                                   : NormKind::none;
}

std::int64_t slot_count(const ForwardArgs& args, const Plan& plan) {
  if (args.initial_state) return args.initial_state.tensor.shape[0];
  if (args.final_state) return args.final_state.tensor.shape[0];
  return plan.N;
}

DeviceScope::DeviceScope(int device) {
  check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (device != before_) check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace kda::cuda
