// What every call on the GPU does at the door: the device, the checks, views for kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "cuda/params.h"
#include "kda/cuda.hpp"
#include "plan.h"

namespace kda::cuda {

inline constexpr double kLog2eExact = 1.4426950408889634;

void check_cuda(cudaError_t error, const char* what);
int attribute(int device, cudaDeviceAttr which);

// A device that there is, of compute capability 8.0 or above.
void check_device(int device);

// Whether it runs the kernels of sm90/.
bool is_hopper(int device);

// A vector of indices for the host to look at: the caller's copy, or `filler` in every place.
class HostIndices {
 public:
  HostIndices(ConstTensor& view, const void* copy, std::int64_t filler);

 private:
  std::vector<std::int64_t> memory_;
};

// Checkpoints are checked against the lengths of sequences.
void check_host_sequences(const ForwardArgs& args, const CudaContext& context);

// make_plan reads cu_seqlens and slots: it gets the host's copies, or stand-ins that say nothing.
// slots: that streaming states have.
Plan plan_of(const ForwardArgs& args, const CudaContext& context,
             std::optional<std::int64_t> slots = {});

void want(bool supported, const char* argument, const std::string& was, const char* accepted);
void want_dtype(const Argument& a, DTypes types, const char* accepted);

// What the kernels for heads of 128 take: op, dtypes, sizes.
// `rows`: of q, k, v, o.
void check_common(const ForwardArgs& args, const Plan& plan, DTypes rows, const char* accepted);

// What every kernel takes: states, sizes.
void check_states(const ForwardArgs& args, const Plan& plan);
void check_sizes(const Plan& plan);

// That a workspace of the call is there and aligned.
void check_device_memory(const Workspace& workspace, std::size_t bytes);
void check_device_workspace(const ForwardArgs& args, std::size_t bytes);

Element element(DType t);
// Every row starts at a multiple of so many elements; has_vectors: of 16 bytes.
bool has_whole(const ConstTensor& t, std::int64_t elements);
bool has_vectors(const ConstTensor& t);
View view(const ConstTensor& t);
StateView state_view(const ConstTensor& t, StateLayout layout);

// The tokens that a kernel takes at once.
int step_of(const Plan& plan);

// Whether a chunk, or a step of one, is one window of a gate whose bound fits.
bool is_one_window(const Plan& plan);

// m of (11) in bits. single: of a chunk that is one window, where sums start before its first
// token, one more gate: half their range.
float shift_of(const Plan& plan, bool single);
float cut_bits_of(const Plan& plan);
GateKind gate_kind(Gate gate);
NormKind norm_kind(Norm norm);

// The slots that the call's states have.
std::int64_t slot_count(const ForwardArgs& args, const Plan& plan);

// The caller's current device comes back.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

// The fields that every kernel's parameters share.
template <class Params>
void fill_common(const ForwardArgs& args, const CudaContext& context, const Plan& plan, Params& p) {
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
  p.dt_bias_vectors = has_whole(args.dt_bias, 4);
  p.initial = state_view(args.initial_state.tensor, args.initial_state.layout);
  p.final = state_view(as_const(args.final_state.tensor), args.final_state.layout);
  p.cu_seqlens = args.cu_seqlens.data;
  p.cu_element = element(args.cu_seqlens.dtype);
  p.slots = args.serving.slots.data;
  p.slots_element = element(args.serving.slots.dtype);
  p.has_initial = static_cast<const std::uint8_t*>(args.serving.has_initial_state.data);
  p.slot_count = slot_count(args, plan);
  p.B = static_cast<int>(plan.B);
  p.T = static_cast<int>(plan.T);
  p.N = static_cast<int>(plan.N);
  p.HV = static_cast<int>(plan.HV);
  p.group = static_cast<int>(plan.HV / plan.H);
  p.K = static_cast<int>(plan.K);
  p.V = static_cast<int>(plan.V);
  p.chunk = plan.chunk;
  p.gate = gate_kind(plan.gate);
  p.norm = norm_kind(plan.norm);
  p.sigmoid_beta = plan.sigmoid_beta;
  p.beta_factor = plan.neg_eigval ? 2.f : 1.f;
  p.bf16_state = plan.bf16_state;
  p.lower_bound = static_cast<float>(plan.lower_bound * kLog2eExact);
  p.scale = static_cast<float>(plan.scale);
  p.status = context.status;
}

}  // namespace kda::cuda
