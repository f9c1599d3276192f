// Every allocation of every public call fails once: the call is an Error then, has written nothing,
// leaked nothing, and the next one is as good as ever.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "case_families.h"
#include "cpu_backward.h"
#include "cpu_run.h"
#include "kda/conv.hpp"
#include "kda/kda.h"
#include "norm_run.h"
#include "serving_run.h"

#if KDA_IS_SANITIZED

TEST(AllocationFailure, Any) { GTEST_SKIP() << "a sanitizer has operator new for itself"; }

#else

namespace kda::test {
namespace {

// Allocations of this process until one fails; below 0: none does.
std::atomic<long> left{-1};
// Allocations that have not been freed.
std::atomic<long> alive{0};

void* allocate_or_fail(std::size_t bytes, std::size_t alignment) {
  if (left.load(std::memory_order_relaxed) >= 0 && left.fetch_sub(1) == 0) throw std::bad_alloc();
  void* memory =
      alignment > alignof(std::max_align_t)
          ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
          : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  ++alive;
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) --alive;
  std::free(memory);
}

}  // namespace
}  // namespace kda::test

// Not inlined: a compiler that sees malloc behind new warns of every free behind delete.
#define KDA_APART __attribute__((noinline))

KDA_APART void* operator new(std::size_t bytes) { return kda::test::allocate_or_fail(bytes, 1); }
KDA_APART void* operator new[](std::size_t bytes) { return kda::test::allocate_or_fail(bytes, 1); }
KDA_APART void* operator new(std::size_t bytes, std::align_val_t a) {
  return kda::test::allocate_or_fail(bytes, static_cast<std::size_t>(a));
}
KDA_APART void* operator new[](std::size_t bytes, std::align_val_t a) {
  return kda::test::allocate_or_fail(bytes, static_cast<std::size_t>(a));
}
KDA_APART void operator delete(void* p) noexcept { kda::test::release(p); }
KDA_APART void operator delete[](void* p) noexcept { kda::test::release(p); }
KDA_APART void operator delete(void* p, std::size_t) noexcept { kda::test::release(p); }
KDA_APART void operator delete[](void* p, std::size_t) noexcept { kda::test::release(p); }
KDA_APART void operator delete(void* p, std::align_val_t) noexcept { kda::test::release(p); }
KDA_APART void operator delete[](void* p, std::align_val_t) noexcept { kda::test::release(p); }
KDA_APART void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  kda::test::release(p);
}
KDA_APART void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  kda::test::release(p);
}

namespace kda::test {
namespace {

struct Call {
  std::function<void()> run;           // throws Error where memory is short
  std::function<bool()> is_as_before;  // nothing was written since the last look
};

// How many allocations the call makes, each of which has failed once.
int fail_each(const Call& call) {
  cpu_isas();  // found out once, and kept
  for (int n = 0; n < 1000; ++n) {
    const long before = alive;
    left = n;
    try {
      call.run();
      const bool all_succeeded = left.exchange(-1) >= 0;
      if (all_succeeded) return n;
      ADD_FAILURE() << "allocation " << n << " failed, and nobody was told";
      return -1;
    } catch (const Error& error) {
      left = -1;
      EXPECT_NE(std::string(error.what()).find("memory"), std::string::npos) << error.what();
      EXPECT_TRUE(call.is_as_before()) << "allocation " << n;
    } catch (const std::bad_alloc&) {
      left = -1;
      ADD_FAILURE() << "allocation " << n << ": a bad_alloc came through";
    }
    EXPECT_EQ(alive, before) << "allocation " << n << ": leaked";
  }
  ADD_FAILURE() << "more allocations than anybody expects";
  return -1;
}

Case packed() {
  Case c = {.name = "packed", .H = 2, .HV = 4, .K = 8, .V = 6, .lens = {{3, 0, 40, 7}}};
  c.T = token_count(c);
  c.options = detail::kKdaBounded;
  c.initial_state = StateSpec{};
  return c;
}

const CpuContext kOneThread = {.threads = 1};  // so that allocations come in one order

TEST(AllocationFailure, Forward) {
  Bundle b = make(packed());
  b.poison_outputs();
  const auto call = [&] { forward(b.args(), kOneThread); };
  EXPECT_GT(fail_each({call, [&] { return b.untouched(); }}), 1);
  b.poison_outputs();
  EXPECT_GT(fail_each({[&] { recurrent(b.args(), kOneThread); }, [&] { return b.untouched(); }}),
            1);
}

TEST(AllocationFailure, ForwardWithCheckpoints) {
  Case c = packed();
  Bundle b = make(c);
  const Checkpoint checkpoints[] = {{.sequence = 2, .offset = 33}, {.sequence = 0, .offset = 1}};
  ForwardArgs args = b.args();
  args.serving.checkpoints = checkpoints;
  args.serving.checkpoint_count = 2;
  args.serving.checkpoint_states.tensor = b.output(DType::f32, {2, c.HV, c.K, c.V}, Strides::dense);
  b.poison_outputs();
  EXPECT_GT(fail_each({[&] { forward(args, kOneThread); }, [&] { return b.untouched(); }}), 1);
}

TEST(AllocationFailure, Backward) {
  const Case c = packed();
  BackwardCase wanted{.forward = c};
  wanted.checkpoints = random_checkpoints(c, 2);
  BackwardBundle b = make_backward(wanted);
  b.inputs.poison_outputs();
  const auto call = [&] { backward(b.args(), kOneThread); };
  EXPECT_GT(fail_each({call, [&] { return b.inputs.untouched(); }}), 1);
}

TEST(AllocationFailure, SizesAndReasons) {
  const Bundle b = make(packed());
  fail_each({[&] { workspace_bytes(b.args()); }, [] { return true; }});
  // A reason is asked for, and lack of memory is one.
  for (long n = 0; n < 20; ++n) {
    left = n;
    const std::string reason = why_not(b.args(), kOneThread);
    left = -1;
    EXPECT_TRUE(reason.empty() || reason.find("memory") != std::string::npos) << reason;
  }
}

TEST(AllocationFailure, Streaming) {
  Case c = packed();
  c.lens.reset();
  c.T = 40;
  c.options.precision = Precision::fp32;
  fail_each({[&] { streaming(c, 2, 4); }, [] { return true; }});
  Bundle b = make(c);
  StreamingStates states = streaming(c, 2, 4), before = streaming(c, 2, 4);
  append(states, b.args(), 0, 37, kOneThread);
  append(before, b.args(), 0, 37, kOneThread);
  const auto bytes = [](const StreamingStates& s) {
    const auto* data = static_cast<const char*>(s.slot_data(0));
    return std::vector<char>(data, data + s.slot_bytes());
  };
  const std::vector<char> start = bytes(states);
  const auto as_before = [&] { return bytes(states) == start; };
  b.poison_outputs();
  EXPECT_GT(fail_each({[&] { append(states, b.args(), 37, 39, kOneThread); }, as_before}), 0);
  // The same bytes as without any failure.
  append(before, b.args(), 37, 39, kOneThread);
  EXPECT_EQ(bytes(states), bytes(before));

  append(states, b.args(), 39, 40, kOneThread, /*draft=*/true);
  const std::vector<std::int64_t> slots = {0}, counts = {1};
  const std::vector<char> drafted = bytes(states);
  const auto commit_all = [&] { commit(states, indices(slots), indices(counts), kOneThread); };
  fail_each({commit_all, [&] { return bytes(states) == drafted; }});
  std::vector<float> plain(static_cast<std::size_t>(c.HV * c.K * c.V), -1);
  State out;
  out.tensor = contiguous(static_cast<void*>(plain.data()), DType::f32, {1, c.HV, c.K, c.V});
  fail_each(
      {[&] { plain_states(states, indices(slots), out, kOneThread); },
       [&] { return std::all_of(plain.begin(), plain.end(), [](float x) { return x == -1; }); }});
}

TEST(AllocationFailure, Convolution) {
  constexpr std::int64_t kT = 20, kC = 5, kW = 4;
  std::vector<float> x(kT * kC, 1), w(kC * kW, 1), y(kT * kC), dx(y.size()), dw(w.size());
  const auto view = [](std::vector<float>& v, std::initializer_list<std::int64_t> shape) {
    return contiguous(static_cast<void*>(v.data()), DType::f32, shape);
  };
  const auto fill = [](std::vector<float>& v) { std::fill(v.begin(), v.end(), -7.0f); };
  const auto is_filled = [](const std::vector<float>& v) {
    return std::all_of(v.begin(), v.end(), [](float e) { return e == -7; });
  };
  fill(y), fill(dx), fill(dw);
  ConvArgs a;
  a.x = view(x, {1, kT, kC}), a.weight = view(w, {kC, kW}), a.y = view(y, {1, kT, kC});
  fail_each({[&] { causal_conv1d(a, kOneThread); }, [&] { return is_filled(y); }});
  ConvBackwardArgs d;
  d.x = a.x, d.weight = a.weight, d.d_y = view(x, {1, kT, kC});
  d.dx = view(dx, {1, kT, kC}), d.dweight = view(dw, {kC, kW});
  fail_each({[&] { causal_conv1d_backward(d, kOneThread); },
             [&] { return is_filled(dx) && is_filled(dw); }});
}

TEST(AllocationFailure, Norms) {
  const NormBundle b = make_norm({});
  const auto as_before = [&] { return b.memory.untouched(); };
  fail_each({[&] { l2_norm(b.l2(Norm::rsqrt), kOneThread); }, as_before});
  const NormBundle other = make_norm({});
  fail_each({[&] { gated_norm_backward(other.gated_backward(), kOneThread); },
             [&] { return other.memory.untouched(); }});
}

// Across the C ABI it is a code and a message.
TEST(AllocationFailure, ComesAsACodeInC) {
  std::vector<float> ones(64, 1), o(8 * 4, -7);
  kda_forward_args args;
  KDA_INIT(args);
  args.q = args.k = kda_dense4(ones.data(), KDA_F32, 1, 8, 1, 4);
  args.v = kda_dense4(ones.data(), KDA_F32, 1, 8, 1, 4);
  args.g = kda_dense4(ones.data(), KDA_F32, 1, 8, 1, 4);
  args.beta = kda_dense3(ones.data(), KDA_F32, 1, 8, 1);
  args.o = kda_dense4(o.data(), KDA_F32, 1, 8, 1, 4);
  char text[200];
  for (long n = 0; n < 100; ++n) {
    kda_error error;
    KDA_INIT(error);
    error.message = text, error.capacity = sizeof text;
    left = n;
    const int code = kda_forward(&args, nullptr, nullptr, &error);
    const bool all_succeeded = left.exchange(-1) >= 0;
    if (code == KDA_OK) {
      if (all_succeeded) return;
      continue;
    }
    EXPECT_NE(std::string(text).find("memory"), std::string::npos) << text;
    EXPECT_EQ(o[0], -7);
  }
  FAIL() << "never succeeded";
}

}  // namespace
}  // namespace kda::test

#endif
