// How the Hopper kernel cuts its chunks into lanes (src/cuda/sm90/line.h), on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/sm90/line.h"

namespace kda::cuda::sm90 {
namespace {

struct Shape {
  std::vector<int> chunks;  // of each sequence
  int heads, lanes;

  std::vector<int> before() const {
    std::vector<int> sums(chunks.size() + 1, 0);
    std::partial_sum(chunks.begin(), chunks.end(), sums.begin() + 1);
    return sums;
  }
  Line line() const {
    const int longest = *std::max_element(chunks.begin(), chunks.end());
    return Line::cut(before().back() * heads, longest, lanes, false);
  }
  Route route(const std::vector<int>& sums, int lane, int index = 0) const {
    return Route(line(), sums.data(), static_cast<int>(chunks.size()), heads, lane, index);
  }
};

// Every chunk of every tile is in one lane, pieces of a lane follow one another, and the first
// chunks of a tile that two lanes share are the beginning of the next lane: done before the first
// lane wants their state, if all lanes take a chunk a step.
void check(const Shape& shape) {
  const Line line = shape.line();
  const std::vector<int> sums = shape.before();
  const int sequences = static_cast<int>(shape.chunks.size());
  std::vector<std::vector<int>> seen;
  for (int n = 0; n < sequences; ++n) {
    for (int h = 0; h < shape.heads; ++h) {
      seen.emplace_back(static_cast<std::size_t>(shape.chunks[static_cast<std::size_t>(n)]), 0);
    }
  }
  std::vector<int> left_behind(static_cast<std::size_t>(shape.lanes) + 1, -1);  // tile, by lane
  int total = 0;
  ASSERT_LE(line.lanes(), shape.lanes);
  for (int lane = shape.lanes - 1; lane >= 0; --lane) {
    Route route = shape.route(sums, lane);
    EXPECT_EQ(route.count(), line.count(lane));
    EXPECT_EQ(route.count() > 0, lane < line.lanes());
    total += route.count();
    for (int number = 0; number < route.count(); route.next()) {
      const Piece piece = route.piece();
      ASSERT_EQ(piece.index, number);
      ASSERT_GT(piece.count, 0);
      ASSERT_LE(number + piece.count, route.count());
      ASSERT_GE(piece.n, 0);
      ASSERT_LT(piece.n, sequences);
      ASSERT_LT(piece.h, shape.heads);
      ASSERT_EQ(piece.chunks, shape.chunks[static_cast<std::size_t>(piece.n)]);
      const int tile = piece.n * shape.heads + piece.h;
      for (int i = 0; i < piece.count; ++i) {
        ++seen[static_cast<std::size_t>(tile)].at(static_cast<std::size_t>(piece.first + i));
        const Piece found = shape.route(sums, lane, number + i).piece();
        ASSERT_EQ(found.index, piece.index);
        ASSERT_EQ(found.n * shape.heads + found.h, tile);
        ASSERT_EQ(found.first, piece.first);
      }
      if (piece.continues()) {
        EXPECT_EQ(left_behind[static_cast<std::size_t>(lane) + 1], tile);
        EXPECT_LE(piece.first, piece.index);  // those of the next lane are its first ones
        EXPECT_EQ(number + piece.count, route.count());
      }
      if (piece.breaks()) {
        EXPECT_EQ(piece.index, 0);
        EXPECT_EQ(piece.first, 0);
        left_behind[static_cast<std::size_t>(lane)] = tile;
      }
      number += piece.count;
    }
  }
  EXPECT_EQ(total, line.total);
  for (const std::vector<int>& tile : seen) {
    for (int times : tile) ASSERT_EQ(times, 1);
  }
}

TEST(CudaSchedule, EveryChunkInOneLane) {
  check({{256}, 96, 64});
  check({{256}, 64, 64});
  check({{256}, 8, 66});  // more lanes than tiles
  check({{2, 7, 1, 0, 2, 4, 10, 1}, 35, 60});
  check({{0, 0, 5, 0, 3, 0}, 3, 4});
  check({{0, 1000, 1, 1, 1}, 2, 7});
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    Shape shape{{}, draw(1, 9), draw(1, 12)};
    for (int n = draw(1, 8); n > 0; --n) shape.chunks.push_back(draw(0, 1) * draw(0, 12));
    SCOPED_TRACE(testing::PrintToString(shape.chunks) + " heads " + std::to_string(shape.heads) +
                 " lanes " + std::to_string(shape.lanes));
    check(shape);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(CudaSchedule, LanesAreEven) {
  const Line line = Shape{{256}, 96, 64}.line();
  EXPECT_EQ(line.length, 384);
  EXPECT_EQ(line.lanes(), 64);
  EXPECT_EQ((Shape{{100, 1}, 1, 8}.line().length), 100);  // no tile is longer than a lane
}

TEST(CudaSchedule, NothingToDo) {
  const Line line = Line::cut(0, 0, 5, true);
  EXPECT_EQ(line.lanes(), 0);
  EXPECT_EQ(line.count(0), 0);
  EXPECT_EQ(line.empty, 1);
}

// As uninitialised offsets in device memory might have it.
TEST(CudaSchedule, MoreThanCanBeCounted) {
  for (std::int64_t total : {std::int64_t{1} << 31, std::int64_t{3} << 30, std::int64_t{1} << 40}) {
    const Line line = Line::cut(total, 4096, 57, false);
    EXPECT_EQ(line.lanes(), 0);
    EXPECT_EQ(line.count(0), 0);
  }
  const Line most = Line::cut(2000000000, 4096, 2, false);
  EXPECT_EQ(most.lanes(), 2);
  EXPECT_EQ(most.count(0) + most.count(1), 2000000000);
  EXPECT_EQ(most.count(2), 0);
}

}  // namespace
}  // namespace kda::cuda::sm90
