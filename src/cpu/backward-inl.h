// Backward of some heads of a sequence: forward once for the states between blocks, then block
// after block from the last. Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_BACKWARD_INL_H_
#undef KDA_CPU_BACKWARD_INL_H_
#else
#define KDA_CPU_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "cpu/adjoint-inl.h"
#include "cpu/gradients-inl.h"
#include "cpu/head.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class Dot>
class BackwardHead {
  using F = typename Dot::Format;
  using T = typename F::T;
  using Rows = GradientRows<T>;

 public:
  BackwardHead(const BackwardArgs& args, const ForwardArgs& inputs, const Plan& plan,
               const BackwardTask& task, const AdjointShape& sizes, void* scratch)
      : args_(args),
        inputs_(inputs),
        plan_(plan),
        task_(task),
        sizes_(sizes),
        shape_(sizes.tile),
        form_(chunk_form(plan)),
        length_(stretch(inputs, plan, task.n).length),
        chunk_(static_cast<std::int64_t>(shape_.chunk)),
        block_(chunk_ * static_cast<std::int64_t>(block_chunks(shape_))) {
    auto* place = static_cast<char*>(scratch);
    place += walk_adjoint(shape_, place, adjoint_);
    for (std::size_t c = 0; c < block_chunks(shape_); ++c) {
      records_[c].emplace(shape_, form_, sizes.operands, place);
      place = static_cast<char*>(records_[c]->end());
    }
    states_ = reinterpret_cast<T*>(place);
    // What lies past K is read and never written.
    std::fill_n(adjoint_.S_transposed, kPanel * shape_.Kp(), T(0));
    std::fill_n(adjoint_.dS_transposed, kPanel * shape_.Kp(), T(0));
    std::fill_n(adjoint_.Z_transposed, kPanel * shape_.Cp(), T(0));
  }

  void run(BackwardCounts& counts) {
    for (std::size_t g = 0; g < heads(); ++g) begin(g);
    for (std::int64_t b = 0; b + 1 < blocks(); ++b) {
      for (std::size_t g = 0; g < heads(); ++g) find_state(b, g);
    }
    for (std::int64_t b = blocks(); b-- > 0;) {
      for (std::size_t h = 0; h < heads(); h += sizes_.sharing) {
        for (std::size_t g = 0; g < sizes_.sharing; ++g) block(b, h + g, counts);
        write_shared(b, h);
      }
    }
    for (std::size_t g = 0; g < heads(); ++g) end_gradient(g);
  }

 private:
  std::size_t heads() const { return static_cast<std::size_t>(task_.heads) * sizes_.sharing; }
  std::int64_t blocks() const { return (length_ + block_ - 1) / block_; }
  std::int64_t head(std::size_t g) const {
    return task_.first_head * static_cast<std::int64_t>(sizes_.sharing) +
           static_cast<std::int64_t>(g);
  }
  T* dS(std::size_t g) const { return states_ + g * sizes_.of_head(); }
  // v - v^ of the chunk that begins with token t.
  T* rest(std::size_t g, std::int64_t t) const {
    return dS(g) + sizes_.state() + static_cast<std::size_t>(t / chunk_) * sizes_.rest();
  }
  // In front of block b.
  T* S(std::size_t g, std::int64_t b) const {
    return dS(g) + sizes_.chunks * sizes_.rest() +
           (1 + static_cast<std::size_t>(b)) * sizes_.state();
  }

  Rows rows_of(std::size_t g, const Tokens<T>& tokens) const {
    return Rows(args_, inputs_, plan_, task_, head(g), tokens, adjoint_.row, adjoint_.wide_row);
  }

  HeadTask head_task(std::size_t g) const {
    HeadTask t;
    t.n = task_.n;
    t.hv = head(g);
    t.panels = shape_.panels;
    return t;
  }

  void load(const ConstState& from, std::int64_t n, std::int64_t hv, std::size_t panel,
            T* to) const {
    if (from) {
      load_state_panel<T>(from, n, hv, shape_.K, shape_.V, panel, to);
    } else {
      std::fill_n(to, shape_.K * kPanel, T(0));
    }
  }

  void begin(std::size_t g) {
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      load(args_.d_final_state, task_.n, head(g), p, dS(g) + p * shape_.K * kPanel);
      if (length_ == 0) continue;
      load(args_.initial_state, task_.n, head(g), p, S(g, 0) + p * shape_.K * kPanel);
    }
    add_cotangents(g, length_);
    if (length_ > 0) round_state(S(g, 0));
  }

  // The state in front of block b + 1, from that in front of block b; and v - v^ of block b.
  void find_state(std::int64_t b, std::size_t g) {
    const HeadTask task = head_task(g), next_task = head_task((g + 1) % heads());
    const Tokens<T> tokens(inputs_, plan_, task, adjoint_.dt_bias);
    const Tokens<T> next(inputs_, plan_, next_task, adjoint_.row);
    const std::int64_t next_block = g + 1 < heads() ? b : b + 1;
    RecordedChunk<Dot>& x = *records_[0];
    T* const out = S(g, b + 1);
    for (std::int64_t t = b * block_; t < (b + 1) * block_; t += chunk_) {
      x.begin(t % block_ == 0 ? S(g, b) : out, rest(g, t));
      x.pass(tokens, t, t + chunk_, [&](std::int64_t i) {
        const std::int64_t ahead = next_block * block_ + t % block_ + i;
        next.prefetch_key(ahead);
        next.prefetch_values(ahead);
      });
      x.next_state(out);
    }
  }

  // A bf16 state starts from what it can hold.
  void round_state(T* S) const {
    if constexpr (std::is_same_v<T, float>) {
      const Tag<float> d;
      for (std::size_t i = 0; form_.bf16_state && i < sizes_.state(); i += hn::Lanes(d)) {
        hn::Store(hn::BitCast(d, bf16_bits(hn::Load(d, S + i))), d, S + i);
      }
    }
  }

  // dS += the cotangents of checkpoints after `offset` tokens.
  void add_cotangents(std::size_t g, std::int64_t offset) {
    const Tag<T> d;
    for (std::size_t s = 0; s < task_.stop_count; ++s) {
      if (task_.stops[s].offset != offset) continue;
      for (std::size_t p = 0; p < shape_.panels; ++p) {
        load(args_.d_checkpoint_states, static_cast<std::int64_t>(task_.stops[s].index), head(g), p,
             adjoint_.given);
        T* sum = dS(g) + p * shape_.K * kPanel;
        for (std::size_t i = 0; i < shape_.K * kPanel; i += hn::Lanes(d)) {
          hn::Store(hn::Add(hn::Load(d, sum + i), hn::Load(d, adjoint_.given + i)), d, sum + i);
        }
      }
    }
  }

  void end_gradient(std::size_t g) {
    if (length_ > 0) add_cotangents(g, 0);
    if (!args_.d_initial_state) return;
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      store_state_panel<T>(args_.d_initial_state, task_.n, head(g), shape_.K, shape_.V, p,
                           dS(g) + p * shape_.K * kPanel);
    }
  }

  void block(std::int64_t b, std::size_t g, BackwardCounts& counts) {
    const HeadTask task = head_task(g);
    const Tokens<T> tokens(inputs_, plan_, task, adjoint_.dt_bias);
    Rows rows = rows_of(g, tokens);
    const std::int64_t begin = b * block_, end = std::min(begin + block_, length_);
    const bool solved = b + 1 < blocks();
    std::size_t chunks = 0;
    for (std::int64_t t = begin; t < end; t += chunk_) {
      RecordedChunk<Dot>& x = *records_[chunks++];
      x.begin(chunks == 1 ? S(g, b) : x.own_state(), rest(g, t));
      x.run(tokens, t, std::min(t + chunk_, end), solved, [&](std::int64_t i) {
        tokens.prefetch_rows(t + i + kAhead);
        if (!solved) tokens.prefetch_values(t + i + kAhead);
        rows.prefetch(t + i);
      });
      if (t + chunk_ < end) x.next_state(records_[chunks]->own_state());
    }
    while (chunks-- > 0) {
      RecordedChunk<Dot>& x = *records_[chunks];
      chunk(x, g, rows);
      ++counts.chunks;
      counts.windows += static_cast<std::int64_t>(x.windows());
      for (std::size_t w = 0; w < x.windows(); ++w) {
        counts.one_token_windows += x.window_end(w) - x.recorded.first[w] == 1;
      }
    }
  }

  void chunk(RecordedChunk<Dot>& x, std::size_t g, Rows& rows) {
    const std::int64_t first = x.first_token(), length = static_cast<std::int64_t>(x.length());
    rows.set_first(first);
    const auto [begin, end] = stops_inside(first, length);
    ChunkAdjoint<Dot, Rows>(shape_, form_, x, adjoint_, rows).run(dS(g), begin, end);
    if (first > 0) add_cotangents(g, first);
    write_gates(x, g, rows);
    const std::size_t at = static_cast<std::size_t>(first % block_) * shape_.Kp();
    const bool first_of_sum = g % sizes_.sharing == 0;
    share(adjoint_.sum_dq + at, adjoint_.dq, first_of_sum, x.length());
    share(adjoint_.sum_dk + at, adjoint_.dk, first_of_sum, x.length());
  }

  // The checkpoints inside a chunk. Those at its ends belong to dS.
  std::pair<const Stop*, const Stop*> stops_inside(std::int64_t first, std::int64_t length) const {
    const Stop* const last = task_.stops + task_.stop_count;
    const auto before = [](const Stop& s, std::int64_t offset) { return s.offset < offset; };
    const Stop* begin = std::lower_bound(task_.stops, last, first + 1, before);
    return {begin, std::lower_bound(begin, last, first + length, before)};
  }

  void write_gates(RecordedChunk<Dot>& x, std::size_t g, Rows& rows) {
    const std::size_t Kp = shape_.Kp();
    T* const ddt_bias = adjoint_.row_sums;
    T* const dA_log = ddt_bias + Kp;
    std::fill_n(ddt_bias, 2 * Kp, T(0));
    for (std::size_t i = 0; i < x.length(); ++i) {
      rows.write_dbeta(i, adjoint_.dbeta + i * kPad);
      rows.write_dg(i, adjoint_.dG + i * Kp, dA_log, ddt_bias);
    }
    if (!task_.sums) return;
    const std::int64_t chunk = x.first_token() / chunk_;
    T* out = static_cast<T*>(task_.sums) +
             static_cast<std::size_t>(chunk * plan_.HV + head(g)) * sum_count(plan_);
    const std::size_t channels = gate_channels(plan_);
    std::copy_n(ddt_bias, channels, out);
    out[channels] = sum_of(dA_log, Kp);
  }

  // (42): the value heads' shares, in the order of the heads.
  void share(T* sum, const T* of_head, bool first, std::size_t rows) const {
    const Tag<T> d;
    const std::size_t count = rows * shape_.Kp();
    if (first) std::fill_n(sum, count, T(0));
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      hn::Store(hn::Add(hn::Load(d, sum + i), hn::Load(d, of_head + i)), d, sum + i);
    }
  }

  // dq and dk of a block, of the key head whose first value head is g.
  void write_shared(std::int64_t b, std::size_t g) {
    const HeadTask task = head_task(g);
    const Tokens<T> tokens(inputs_, plan_, task, adjoint_.dt_bias);
    Rows rows = rows_of(g, tokens);
    const std::int64_t begin = b * block_, count = std::min(begin + block_, length_) - begin;
    rows.set_first(begin);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      rows.write_dq_dk(i, adjoint_.sum_dq + i * shape_.Kp(), adjoint_.sum_dk + i * shape_.Kp());
    }
  }

  static constexpr std::int64_t kAhead = 8;  // tokens

  // Blocks of the shortest chunk there is.
  static constexpr std::size_t kMostChunks = kBlock;

  const BackwardArgs& args_;
  const ForwardArgs& inputs_;
  const Plan& plan_;
  const BackwardTask& task_;
  const AdjointShape& sizes_;
  const TileShape& shape_;
  const ChunkForm form_;
  const std::int64_t length_, chunk_, block_;  // tokens
  Adjoint<T> adjoint_;
  std::array<std::optional<RecordedChunk<Dot>>, kMostChunks> records_;
  T* states_ = nullptr;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
