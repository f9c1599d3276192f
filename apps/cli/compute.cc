#include "compute.h"

#include <chrono>
#include <new>

#include "kda/error.hpp"
#include "progress.h"

namespace kda::cli {
namespace {

constexpr std::align_val_t kAlignment{64};

void allocate_outputs(Answer& answer, StateLayout layout, DType o, DType final_state) {
  ForwardArgs& args = answer.args;
  if (args.q.rank != 4 || args.v.rank != 4) return;  // the library says what is wrong
  const std::int64_t K = args.q.shape[3], HV = args.v.shape[2], V = args.v.shape[3];
  const std::int64_t N = args.cu_seqlens ? args.cu_seqlens.shape[0] - 1 : args.q.shape[0];
  void* const none = nullptr;
  args.o = allocate("o", contiguous(none, o, {args.v.shape[0], args.v.shape[1], HV, V}), answer.o);
  args.final_state.layout = layout;
  if (N < 0) return;
  const bool key_first = layout == StateLayout::key_first;
  const Tensor state = contiguous(none, final_state, {N, HV, key_first ? K : V, key_first ? V : K});
  args.final_state.tensor = allocate("ht", state, answer.final_state);
}

}  // namespace

// Sizes whose bytes do not fit are left to the library to refuse.
Tensor allocate(const char* name, Tensor t, std::shared_ptr<void>& memory) {
  std::size_t bytes = size_of(t.dtype);
  for (int i = 0; i < t.rank; ++i) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(t.shape[i]), &bytes)) return {};
  }
  void* data = ::operator new(bytes + 1, kAlignment, std::nothrow);
  if (data == nullptr) {
    throw Error(name, std::to_string(bytes) + " bytes, more than this machine has free",
                "smaller shapes");
  }
  memory = {data, [](void* p) { ::operator delete(p, kAlignment); }};
  t.data = data;
  return t;
}

bool is_exact64(const ForwardArgs& args) {
  const Precision precision = args.options.precision;
  return precision == Precision::exact64 ||
         (precision == Precision::automatic && args.q.dtype == DType::f64);
}

Answer compute(const Case& c, const CpuContext& context, DType o, DType final_state) {
  Answer answer;
  answer.args = c.args;
  allocate_outputs(answer, c.state_layout, o, final_state);
  answer.plan = make_plan(answer.args);
  const Progress progress(c.name.empty() ? "computing" : "computing " + c.name);
  const auto start = std::chrono::steady_clock::now();
  answer.ran = forward(answer.args, context);
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return answer;
}

reference::Result oracle(const Answer& answer) {
  const Progress progress("computing the fp64 oracle");
  return reference::recurrence(answer.args, answer.plan);
}

std::string kernel_name(const Ran& ran) { return std::string(ran.backend) + "/" + name(ran.isa); }

}  // namespace kda::cli
