// Streaming states on the device, and the forms whose chunks hold several windows.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda_run.h"
#include "forms.h"
#include "serving_run.h"

namespace kda::test {

// Of 150 tokens each has chunks with windows that open inside.
inline std::vector<Form> window_forms() {
  const auto form = [](Gate gate, auto change) {
    Options o = kBoundedForm;
    o.gate = gate;
    if (gate != Gate::bounded) o.lower_bound = {};
    change(o);
    return o;
  };
  const auto same = [](Options&) {};
  return {
      {"softplus", form(Gate::softplus, same), Gates::constant},
      {"softplus_spikes", form(Gate::softplus, [](Options& o) { o.norm = Norm::normalize; }),
       Gates::spikes},
      {"softplus_first_row",
       form(Gate::softplus,
            [](Options& o) {
              o.reference = Reference::first_row;
              o.bf16_state = true;
            }),
       Gates::constant},
      {"log_spikes", form(Gate::log, same), Gates::spikes},
      {"log_infinite", form(Gate::log, [](Options& o) { o.norm = Norm::none; }), Gates::infinite},
      {"log_zero", form(Gate::log, [](Options& o) { o.key_window = 8; }), Gates::zero},
      {"strong_bound", form(Gate::bounded, [](Options& o) { o.lower_bound = -16; }), Gates::strong},
      {"first_row", form(Gate::bounded, [](Options& o) { o.reference = Reference::first_row; }),
       Gates::strong},
      {"window_of_16", form(Gate::bounded, [](Options& o) { o.key_window = 16; }), Gates::burst},
      {"gdn", form(Gate::softplus, [](Options& o) { o.op = Op::gdn; }), Gates::constant},
      {"gdn_spikes", form(Gate::log, [](Options& o) { o.op = Op::gdn; }), Gates::spikes},
      {"delta",
       form(Gate::log,
            [](Options& o) {
              o.op = Op::delta;
              o.key_window = 8;
            }),
       Gates::mild},
      {"pairwise", form(Gate::bounded, [](Options& o) { o.reference = Reference::pairwise; }),
       Gates::strong},
  };
}

// Streaming states on the device, and a workspace that any call on them may use.
class DeviceStates {
 public:
  DeviceStates(const Case& c, std::int64_t slots, int max_draft = 0) {
    states.HV = c.HV;
    states.slots = slots;
    states.max_draft = max_draft;
    states.options = c.options;
    states.bytes = slot_bytes(states) * static_cast<std::size_t>(slots);
    states.data = memory_.allocate(states.bytes, 0);
    states.data =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(states.data) + 255) / 256 * 256);
    context.states = &states;
    context.status = static_cast<std::uint32_t*>(memory_.allocate(4, 0));
  }
  DeviceStates(const DeviceStates&) = delete;
  DeviceStates& operator=(const DeviceStates&) = delete;

  char* slot(std::int64_t i) const {
    return static_cast<char*>(states.data) + slot_bytes(states) * static_cast<std::size_t>(i);
  }

  void copy(std::int64_t from, std::int64_t to) const {
    check_cuda(cudaMemcpy(slot(to), slot(from), slot_bytes(states), cudaMemcpyDeviceToDevice),
               "copy: ");
  }

  std::int64_t tokens(std::int64_t i) const {
    std::int64_t n = 0;
    check_cuda(cudaMemcpy(&n, slot(i), 8, cudaMemcpyDeviceToHost), "tokens: ");
    return n;
  }

  std::int32_t drafts(std::int64_t i) const {
    std::int32_t n = 0;
    check_cuda(cudaMemcpy(&n, slot(i) + 12, 4, cudaMemcpyDeviceToHost), "drafts: ");
    return n;
  }

  ConstTensor indices_on_device(const std::vector<std::int64_t>& x) {
    ConstTensor t = indices(x);
    t.data = memory_.copy_of(x.data(), x.size() * 8);
    return t;
  }

  Ran call(ForwardArgs args, const CudaContext& with) {
    const std::size_t bytes = workspace_bytes(args, with);
    if (bytes > workspace_bytes_) {
      workspace_ = memory_.allocate(bytes, 0xA5);
      workspace_bytes_ = bytes;
    }
    if (bytes > 0) args.workspace = {workspace_, workspace_bytes_};
    return forward(args, with);
  }

  // Tokens [begin, end) of sequences on the device into slots.
  Ran append(const ForwardArgs& whole, std::int64_t begin, std::int64_t end,
             const std::vector<std::int64_t>& slots = {}, bool draft = false) {
    ForwardArgs args = piece(whole, begin, end);
    if (!slots.empty()) args.serving.slots = indices_on_device(slots);
    args.serving.draft = draft;
    return call(args, context);
  }

  // Tokens [begin, end) into one slot, with checkpoints on the way.
  Ran append_with(const ForwardArgs& whole, std::int64_t begin, std::int64_t end, std::int64_t slot,
                  const std::vector<Checkpoint>& checkpoints) {
    ForwardArgs args = piece(whole, begin, end);
    args.serving.slots = indices_on_device({slot});
    args.serving.checkpoints = checkpoints.data();
    args.serving.checkpoint_count = checkpoints.size();
    return call(args, context);
  }

  std::vector<double> plain(std::int64_t slot) {
    const std::int64_t HV = states.HV;
    std::vector<float> host(static_cast<std::size_t>(HV) * 128 * 128);
    State out;
    out.tensor = contiguous(memory_.allocate(host.size() * 4, 0xFF), DType::f32, {1, HV, 128, 128});
    plain_states(states, indices_on_device({slot}), out, context);
    check_cuda(cudaMemcpy(host.data(), out.tensor.data, host.size() * 4, cudaMemcpyDeviceToHost),
               "plain: ");
    return {host.begin(), host.end()};
  }

  std::uint32_t status() const {
    std::uint32_t word = 0;
    check_cuda(cudaMemcpy(&word, context.status, 4, cudaMemcpyDeviceToHost), "status: ");
    return word;
  }

  CudaStreamingStates states;
  CudaContext context;

 private:
  DeviceMemory memory_;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace kda::test
