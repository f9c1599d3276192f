// Which chunks a lane takes. A tile is one value head of one sequence. The chunks of all tiles
// stand in a line, sequence by sequence and head by head; lane i takes stretch i of it. A tile that
// lies across the end of lane i has its later chunks there, and its first ones at the beginning of
// lane i + 1: no stretch is shorter than a tile, so the first are long done when the later ones
// want the state that they left (R. McNaughton, Scheduling with deadlines and loss functions,
// 1959).
//
// For host and device: tests/cuda_schedule_test.cc.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KDA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KDA_HOST_DEVICE inline
#endif

namespace kda::cuda::sm90 {

struct Line {
  int total;   // chunks of all tiles
  int length;  // of a lane; the last ones may have less, or nothing
  int empty;   // 1 if a sequence has no chunk, so that its tiles are in no lane

  // longest: chunks of the longest tile. More than can be counted, for which there is no memory,
  // are none.
  KDA_HOST_DEVICE static Line cut(std::int64_t total, int longest, int lanes, bool empty) {
    constexpr std::int64_t kMost = 0x7fffffff - (1 << 24);
    if (total > kMost || longest > kMost) return {0, 0, empty ? 1 : 0};
    const int even = static_cast<int>((total + lanes - 1) / lanes);
    return {static_cast<int>(total), even > longest ? even : longest, empty ? 1 : 0};
  }

  // Lanes that have chunks.
  KDA_HOST_DEVICE int lanes() const { return length == 0 ? 0 : (total - 1) / length + 1; }
  // Chunks of a lane.
  KDA_HOST_DEVICE int count(int lane) const {
    const std::int64_t left = total - std::int64_t{lane} * length;
    return left < 0 ? 0 : left < length ? static_cast<int>(left) : length;
  }
};

// What a lane takes of a tile: chunks first ... first + count - 1 of its `chunks`, which are number
// index ... of the lane.
struct Piece {
  int n, h;  // sequence, value head
  int index, first, count, chunks;

  // Whether another lane hands over the state, or takes it.
  KDA_HOST_DEVICE bool continues() const { return first > 0; }
  KDA_HOST_DEVICE bool breaks() const { return first + count < chunks; }
};

// The pieces of a lane. before[n]: chunks of a head in the sequences before n.
class Route {
 public:
  // At the piece of the lane's chunk `index`.
  KDA_HOST_DEVICE Route(const Line& line, const int* before, int sequences, int heads, int lane,
                        int index = 0)
      : before_(before),
        sequences_(sequences),
        heads_(heads),
        begin_(lane * line.length),
        end_(begin_ + line.count(lane)) {
    find(index);
  }

  // Chunks of the lane.
  KDA_HOST_DEVICE int count() const { return end_ - begin_; }

  // There is one while its index is below count().
  KDA_HOST_DEVICE Piece piece() const {
    const int end = start_ + chunks_;
    if (start_ < begin_) return {n_, h_, 0, 0, end - begin_, chunks_};
    const int index = start_ - begin_;
    if (end > end_) return {n_, h_, index, end - end_, end_ - start_, chunks_};
    return {n_, h_, index, 0, chunks_, chunks_};
  }

  // To the piece behind this one, if the lane has one.
  KDA_HOST_DEVICE void next() {
    start_ += chunks_;
    if (start_ >= end_) return;
    if (++h_ < heads_) return;
    h_ = 0;
    do {
      ++n_;
      chunks_ = before_[n_ + 1] - before_[n_];
    } while (chunks_ == 0);
  }

 private:
  // To the piece of chunk `index`, if the lane has one.
  KDA_HOST_DEVICE void find(int index) {
    const int at = begin_ + index;
    if (at >= end_) return;
    int low = 0, high = sequences_;  // the last sequence that begins at or before it
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (before_[middle] * heads_ <= at) {
        low = middle;
      } else {
        high = middle;
      }
    }
    n_ = low;
    const int first = before_[n_];
    chunks_ = before_[n_ + 1] - first;
    h_ = (at - first * heads_) / chunks_;
    start_ = first * heads_ + h_ * chunks_;
  }

  const int* before_;
  int sequences_, heads_;
  int begin_, end_;  // of the lane, in the line
  int n_ = 0, h_ = 0, start_ = 0, chunks_ = 0;
};

}  // namespace kda::cuda::sm90
