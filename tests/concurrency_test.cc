// Calls at the same time, on slots of one pool, in a forked process: the same bits as one by one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "case_families.h"
#include "cpu_backward.h"
#include "cpu_run.h"
#include "serving_run.h"

namespace kda::test {
namespace {

constexpr int kThreads = 4;

Case case_of(int i) {
  Case c = {.name = "concurrent", .seed = 700 + static_cast<std::uint64_t>(i), .B = 1};
  c.T = 50 + 7 * i;
  c.H = c.HV = 2;
  c.K = 16 + static_cast<std::int64_t>(i), c.V = 20;
  c.options = detail::kKdaBounded;
  c.options.precision = i % 2 ? Precision::exact64 : Precision::fp32;
  c.initial_state = StateSpec{};
  c.output_dtype = DType::f64;
  return c;
}

// Runs body(i) for i < kThreads on a thread each, all let go at once.
template <class Body>
void at_once(const Body& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      body(i);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Concurrency, CallsAtTheSameTimeHaveTheirOwnBits) {
  std::vector<BackwardBundle> bundles;
  std::vector<std::vector<double>> outputs;
  std::vector<reference::Gradients> gradients;
  for (int i = 0; i < kThreads; ++i) {
    bundles.push_back(make_backward({.forward = case_of(i)}));
    outputs.push_back(run_cpu(bundles[i].inputs).o);
    gradients.push_back(cpu_gradients(bundles[i]));
    bundles[i].inputs.poison_outputs();
  }
  at_once([&](int i) {
    for (int round = 0; round < 5; ++round) {
      forward(bundles[i].inputs.args(), {.threads = 2});
      backward(bundles[i].args(), {.threads = 2});
    }
  });
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(difference(values(bundles[i].inputs.o), outputs[i]), "") << i;
    const reference::Gradients now = gradients_of(bundles[i]);
    const NamedGradients ours = by_name(now), alone = by_name(gradients[i]);
    for (std::size_t g = 0; g < ours.size(); ++g) {
      EXPECT_EQ(difference(*ours[g].second, *alone[g].second), "") << i << ours[g].first;
    }
  }
}

TEST(Concurrency, InputsAreShared) {
  const Case c = case_of(0);
  Bundle b = make(c);
  const std::vector<double> alone = run_cpu(b).o;
  const auto count = static_cast<std::size_t>(c.T * c.HV * c.V);
  std::vector<std::vector<double>> outputs(kThreads, std::vector<double>(count));
  at_once([&](int i) {
    ForwardArgs args = b.args();
    args.final_state = {};
    args.o = contiguous(static_cast<void*>(outputs[i].data()), DType::f64, {1, c.T, c.HV, c.V});
    forward(args, {.threads = 2});
  });
  for (const auto& o : outputs) EXPECT_EQ(difference(o, alone), "");
}

TEST(Concurrency, SlotsOfOnePoolAreApart) {
  Case c = case_of(0);
  c.initial_state.reset();
  Bundle b = make(c);
  const std::vector<double> alone = run_cpu(b).o;
  StreamingStates states = streaming(c, kThreads, 4);
  const auto count = static_cast<std::size_t>(c.T * c.HV * c.V);
  std::vector<std::vector<double>> outputs(kThreads, std::vector<double>(count));
  at_once([&](int i) {
    const std::vector<std::int64_t> slot = {i};
    ForwardArgs whole = b.args();
    whole.o = contiguous(static_cast<void*>(outputs[i].data()), DType::f64, {1, c.T, c.HV, c.V});
    for (std::int64_t t = 0; t < c.T; t += 1 + i) {
      append(states, whole, t, std::min(t + 1 + i, c.T), {.threads = 1}, false, indices(slot));
    }
  });
  for (const auto& o : outputs) EXPECT_EQ(difference(o, alone), "");
}

// A caller's own threads, which may also run bodies one after another.
TEST(Concurrency, TheCallersThreads) {
  const Case c = case_of(1);
  Bundle b = make(c);
  const std::vector<double> alone = run_cpu(b).o;
  const ParallelFor threads = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    std::vector<std::thread> pool;
    for (std::int64_t i = 0; i < n; ++i) pool.emplace_back([&, i] { body(i); });
    for (std::thread& t : pool) t.join();
  };
  const ParallelFor backwards = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    for (std::int64_t i = n; i-- > 0;) body(i);
  };
  EXPECT_EQ(difference(run_cpu(b, {.threads = 3, .parallel_for = threads}).o, alone), "");
  EXPECT_EQ(difference(run_cpu(b, {.threads = 3, .parallel_for = backwards}).o, alone), "");
}

// A server forks after its first call: the child has none of the pool's threads.
TEST(Concurrency, AForkedProcessAnswersToo) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of several threads";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of several threads";
#endif
#endif
  const Case c = case_of(0);
  Bundle b = make(c);
  const std::vector<double> before = run_cpu(b, {.threads = 2}).o;
  b.poison_outputs();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // a child that waits for threads it has not ends by this signal
    forward(b.args(), {.threads = 2});
    ::_exit(difference(values(b.o), before).empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(difference(run_cpu(b, {.threads = 2}).o, before), "");
}

}  // namespace
}  // namespace kda::test
