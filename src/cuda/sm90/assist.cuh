// The warp beside a producer's warpgroup: everything that waits. It draws the chunks, waits for
// their places in the ring, has the end keys stored, solves, and announces the image.
//
// Warpgroup and warp meet three times a chunk (Meeting): when the place is free, when the end keys
// stand in shared memory, and when all of the image but W is written. Between the last and the next
// first the warp solves and announces; nothing that it waits for then waits for it. It is two
// chunks ahead with its tickets, so that what it writes becomes visible by meetings that are there
// anyway.
#pragma once

#include <cstdint>

#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/solve.cuh"

namespace kda::cuda::sm90 {

// What the warp leaves for its warpgroup, in shared memory.
struct Desk {
  static constexpr int kTasks = 3;  // at work, next, after next

  Task task[kTasks];
};
static_assert(sizeof(Desk) <= Scratch::kDeskBytes);

__device__ __forceinline__ int next_turn(int turn) {
  return turn == Desk::kTasks - 1 ? 0 : turn + 1;
}

// Between the warpgroup `group` of a block and its warp.
struct Meeting {
  int group;

  __device__ __forceinline__ void operator()() const { barrier_sync(5 + group, 128 + 32); }
};

// The gates' parameters of a value head: raw, then as GateForm has them in shared memory.
class Gates {
 public:
  __device__ __forceinline__ void load(const ForwardParams& p, int h, int lane) {
    rate_ = p.A_log ? load_scalar(p.A_log, p.A_log_element, h) : 0.f;
    if (!p.dt_bias) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bias_[i] = load_scalar(p.dt_bias, p.dt_bias_element, h * p.bias_head + i * 32 + lane);
    }
  }

  __device__ __forceinline__ void store(const ForwardParams& p, std::uint32_t base,
                                        int lane) const {
    GateForm form;
    form.set(p, rate_);
    if (lane == 0) store_shared2(base + Scratch::kForm, form.factor, form.amplitude);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_shared(base + Scratch::kOffsets + GateForm::offset_place(i * 32 + lane) * 4,
                   p.dt_bias ? form.factor * bias_[i] : 0.f);
    }
  }

 private:
  float rate_, bias_[4] = {};
};

// ends: where the warpgroup's end keys stand, as Ends.
template <class Ends>
__device__ __forceinline__ void assist(const ForwardParams& p, std::uint32_t ends, char* scratch,
                                       int group) {
  const std::uint32_t base = shared_address(scratch);
  Desk& desk = *reinterpret_cast<Desk*>(scratch + Scratch::kDesk);
  const int lane = threadIdx.x % 32;
  const Meeting meet{group};
  const Tickets tickets(p);
  Gates gates;
  // One after the other: behind a task that is not there none may follow.
  for (int turn = 0; turn < 2; ++turn) tickets.redeem(tickets.draw(lane), desk.task[turn], lane);
  __syncwarp();
  if (desk.task[0].left > 0) {
    gates.load(p, desk.task[0].h, lane);
    gates.store(p, base, lane);
  }
  meet();
  for (int turn = 0, last = -1, parity = 0;; parity ^= 1) {
    const int next = next_turn(turn);
    const Task& task = desk.task[turn];
    // In good time: what is asked for here is wanted behind the solve.
    const std::uint32_t ticket = tickets.draw(lane);
    const std::uint32_t seen = task.left > 0 ? look(p, task) : 0;
    if (desk.task[next].left > 0) gates.load(p, desk.task[next].h, lane);
    if (last >= 0) {
      const Task& done = desk.task[last];
      const std::uint32_t rows = base + Scratch::kRows + (parity ^ 1) * Scratch::kRowsBytes;
      solve(base + Scratch::kA, rows + Scratch::kBeta, done.image + Image::kW, lane);
      __syncwarp();
      if (lane == 0) announce(p, done);
    }
    if (task.left == 0) break;
    wait_free(p, task, seen);
    __syncwarp();
    meet();
    gates.store(p, base, lane);
    tickets.redeem(ticket, desk.task[next_turn(next)], lane);
    meet();
    if (lane == 0) bulk_store(task.image + Image::kEndKeys, ends, Ends::kBytes);
    meet();
    last = turn;
    turn = next;
  }
}

}  // namespace kda::cuda::sm90
