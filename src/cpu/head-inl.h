// A task: the tokens' rows of one sequence and some value heads, chunk after chunk.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_HEAD_INL_H_
#undef KDA_CPU_HEAD_INL_H_
#else
#define KDA_CPU_HEAD_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "cpu/head.h"
#include "cpu/tile-inl.h"
#include "cpu/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// One value head.
template <class Dot>
class Head {
  using F = typename Dot::Format;
  using T = typename F::T;

 public:
  // scratch: work_bytes and kept_bytes; heads that share it take turns. own_state: state_bytes of
  // this head alone, where others share scratch; else null.
  Head(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch,
       void* own_state)
      : args_(args),
        plan_(plan),
        task_(task),
        states_(args.serving.states ? &args.serving.states->memory() : nullptr),
        shape_(head_shape(plan, task.panels)),
        form_(chunk_form(plan)),
        work_(place_work<F>(shape_, scratch)),
        kept_memory_(place(scratch)),
        kept_(place_kept<F>(shape_, kept_memory_)),
        tokens_(args, plan, task_, work_.dt_bias),
        chunks_(shape_, form_, kept_, work_, windows_) {
    if (own_state && (!states_ || draft())) place_state(shape_, own_state, kept_);
  }

  void start() {
    if (states_ && !task_.from_zero) {
      if (draft()) std::memcpy(kept_memory_, states_->head(task_.slot, task_.hv), own_bytes());
      chunks_.resume();
      return;
    }
    // Nothing of the slot's last sequence stays, not even in rows that are never read.
    if (states_ && !draft()) std::memset(kept_memory_, 0, states_->head_bytes);
    for (std::size_t p = 0; p < task_.panels; ++p) {
      T* S = kept_.S + p * shape_.K * kPanel;
      if (task_.from_zero || !args_.initial_state) {
        std::fill(S, S + shape_.K * kPanel, T(0));
      } else {
        load_state_panel<T>(args_.initial_state, task_.slot, task_.hv, shape_.K, shape_.V,
                            task_.first_panel + p, S);
      }
    }
    chunks_.begin();
  }

  std::size_t open_tokens() const { return chunks_.length(); }
  std::int64_t tokens() const { return tokens_.count(); }
  WindowCounts windows() const { return windows_; }

  void prefetch(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t t = begin; t < end; ++t) tokens_.prefetch(t);
  }

  // Tokens [begin, end), which fit into the open chunk. While they are read, the rows of `next`
  // from token next_begin on are asked for.
  void append(std::int64_t begin, std::int64_t end, const Head& next, std::int64_t next_begin) {
    if (begin == end) return;
    tokens_.take_turn();
    chunks_.take_turn();
    const std::size_t first_row = chunks_.length();
    for (std::int64_t t = begin; t < end; ++t) {
      next.tokens_.prefetch(next_begin + t - begin);
      tokens_.prefetch_output(t);
      const TokenScalars<T> x = tokens_.read(t, work_.row, work_.gate);
      if (draft()) remember(t, x);
      chunks_.add_row(x.beta, x.key_exponent, x.query_exponent);
    }
    chunks_.finish_rows();
    for (std::size_t p = 0; p < task_.panels; ++p) {
      T* rows = work_.output + 2 * first_row * kPanel;
      tokens_.read_values(begin, end, p, rows, 2 * kPanel);
      for (std::int64_t i = 0; i < end - begin; ++i) {
        std::fill_n(rows + (2 * i + 1) * static_cast<std::int64_t>(kPanel), kPanel, T(0));
      }
      tokens_.prefetch_panel(begin, end, p);
      chunks_.outputs(p, first_row);
      tokens_.write_outputs(begin, end, p, rows + kPanel, 2 * kPanel);
    }
    if (chunks_.full()) chunks_.close();
  }

  void write_checkpoint(std::size_t index) {
    if (!states_) {
      return store_plain(args_.serving.checkpoint_states, static_cast<std::int64_t>(index));
    }
    const std::int64_t slot = args_.serving.checkpoints[index].slot;
    std::memcpy(states_->head(slot, task_.hv), kept_memory_, own_bytes());
    *draft_of(slot).count = 0;
  }

  void finish() {
    chunks_.count_open_window();
    if (states_) {
      // Tokens that are appended, or drafted, take the place of drafts that wait.
      if (draft() || tokens_.count() > 0) {
        *draft_of(task_.slot).count = draft() ? tokens_.count() : 0;
      }
    } else if (args_.final_state) {
      store_plain(args_.final_state, task_.slot);
    }
  }

 private:
  bool draft() const { return args_.serving.draft; }
  std::size_t own_bytes() const { return kept_bytes(plan_.precision, shape_); }

  // Where what is kept lives: in the slot itself, but for drafts, which leave the slot alone.
  void* place(void* scratch) const {
    if (states_ && !draft()) return states_->head(task_.slot, task_.hv);
    return static_cast<char*>(scratch) + work_bytes(plan_.precision, shape_);
  }

  Draft<T> draft_of(std::int64_t slot) const {
    return place_draft<T>(states_->shape, states_->max_draft,
                          states_->head(slot, task_.hv) + own_bytes());
  }

  // A draft token's row, for commit().
  void remember(std::int64_t t, const TokenScalars<T>& x) {
    const Draft<T> d = draft_of(task_.slot);
    const auto i = static_cast<std::size_t>(t);
    const std::size_t Kp = shape_.Kp();
    d.rows[i] = {x.beta, x.key_exponent};
    std::copy_n(work_.row, Kp, d.keys + i * Kp);
    std::copy_n(work_.gate, Kp, d.gates + i * Kp);
    for (std::size_t p = 0; p < task_.panels; ++p) {
      tokens_.read_values(t, p, d.values + (i * task_.panels + p) * kPanel);
    }
  }

  void store_plain(const State& out, std::int64_t slot) {
    chunks_.prepare_fold();
    for (std::size_t p = 0; p < task_.panels; ++p) {
      chunks_.fold(p);
      store_state_panel<T>(out, slot, task_.hv, shape_.K, shape_.V, task_.first_panel + p,
                           work_.fold);
    }
  }

  const ForwardArgs& args_;
  const Plan& plan_;
  const HeadTask task_;
  StreamingStates::Memory* const states_;
  const TileShape shape_;
  const ChunkForm form_;
  Work<F> work_;
  void* const kept_memory_;
  Kept<F> kept_;
  Tokens<T> tokens_;
  WindowCounts windows_;
  Chunks<Dot> chunks_;
};

// The heads of a task, a chunk of each in turn.
template <class Dot>
class HeadGroup {
 public:
  HeadGroup(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch)
      : plan_(plan), task_(task), size_(static_cast<std::size_t>(task.heads)) {
    const TileShape shape = head_shape(plan, task.panels);
    auto* own = static_cast<std::byte*>(scratch) + work_bytes(plan.precision, shape) +
                kept_bytes(plan.precision, shape);
    for (std::size_t i = 0; i < size_; ++i) {
      HeadTask one = task;
      one.hv += static_cast<std::int64_t>(i);
      heads_[i].emplace(args, plan, one, scratch, i == 0 ? nullptr : own);
      if (i > 0) own += state_bytes(plan.precision, shape);
    }
  }

  void run(HeadCounts& counts) {
    each([](Head<Dot>& head) { head.start(); });
    const Head<Dot>& first = *heads_[0];  // all have the same tokens
    first.prefetch(0, std::min<std::int64_t>(plan_.chunk, first.tokens()));
    for (std::int64_t t = 0, next_stop = 0;;) {
      std::int64_t end = std::min(t + plan_.chunk - static_cast<std::int64_t>(first.open_tokens()),
                                  first.tokens());
      const bool has_stop = next_stop < static_cast<std::int64_t>(task_.stop_count);
      if (has_stop) end = std::min(end, task_.stops[next_stop].offset);
      if (first.open_tokens() == 0 && t < end) counts.chunks += task_.heads;
      const bool stops = has_stop && task_.stops[next_stop].offset == end;
      const bool ends = !stops && end == first.tokens();
      for (std::size_t i = 0; i < size_; ++i) {
        const bool last = i + 1 == size_;
        heads_[i]->append(t, end, *heads_[last ? 0 : i + 1], last ? end : t);
        // The rows of its open chunk are another's after its turn.
        if (stops) heads_[i]->write_checkpoint(task_.stops[next_stop].index);
        if (ends) heads_[i]->finish();
      }
      t = end;
      next_stop += stops;
      if (ends) break;
    }
    each([&](Head<Dot>& head) {
      counts.windows += head.windows().windows;
      counts.one_token_windows += head.windows().one_token;
    });
  }

 private:
  template <class F>
  void each(F f) {
    for (std::size_t i = 0; i < size_; ++i) f(*heads_[i]);
  }

  const Plan& plan_;
  const HeadTask& task_;
  const std::size_t size_;
  std::array<std::optional<Head<Dot>>, kMaxHeads> heads_;
};

// The state of one head of a slot, to be changed or read.
template <class Dot>
struct SlotHead {
  using F = typename Dot::Format;

  SlotHead(const TileShape& s, const Plan& plan, void* kept_memory, void* scratch)
      : shape(s),
        form(chunk_form(plan)),
        work(place_work<F>(shape, scratch)),
        kept(place_kept<F>(shape, kept_memory)),
        chunks(shape, form, kept, work, windows) {
    chunks.resume();
  }

  const TileShape shape;
  const ChunkForm form;
  Work<F> work;
  Kept<F> kept;
  WindowCounts windows;
  Chunks<Dot> chunks;
};

// Appends the first `tokens` of the slot's draft, which have no outputs any more.
template <class Dot>
void commit_draft(StreamingStates::Memory& states, std::int64_t slot, std::int64_t hv,
                  std::int64_t tokens, void* scratch) {
  using T = typename Dot::Format::T;
  SlotHead<Dot> head(states.shape, states.plan, states.head(slot, hv), scratch);
  const TileShape& shape = head.shape;
  const std::size_t Kp = shape.Kp(), panels = shape.panels;
  const Draft<T> d = place_draft<T>(
      shape, states.max_draft, states.head(slot, hv) + kept_bytes(states.plan.precision, shape));
  const auto count = static_cast<std::size_t>(tokens);
  for (std::size_t i = 0; i < count;) {
    const std::size_t first = i, first_row = head.chunks.length();
    for (; i < count && !head.chunks.full(); ++i) {
      std::copy_n(d.keys + i * Kp, Kp, head.work.row);
      std::fill(head.work.row + Kp, head.work.row + 2 * Kp, T(0));  // no query
      std::copy_n(d.gates + i * Kp, Kp, head.work.gate);
      head.chunks.add_row(d.rows[i].beta, d.rows[i].key_exponent, 0);
    }
    head.chunks.finish_rows();
    for (std::size_t p = 0; p < panels; ++p) {
      T* row = head.work.output + 2 * first_row * kPanel;
      for (std::size_t j = first; j < i; ++j, row += 2 * kPanel) {
        std::copy_n(d.values + (j * panels + p) * kPanel, kPanel, row);
        std::fill(row + kPanel, row + 2 * kPanel, T(0));
      }
      head.chunks.outputs(p, first_row);
    }
    if (head.chunks.full()) head.chunks.close();
  }
  *d.count = 0;
}

template <class Dot>
void write_plain_state(const StreamingStates::Memory& states, std::int64_t slot, std::int64_t hv,
                       const State& out, std::int64_t n, void* scratch) {
  using T = typename Dot::Format::T;
  SlotHead<Dot> head(states.shape, states.plan, states.head(slot, hv), scratch);
  head.chunks.prepare_fold();
  for (std::size_t p = 0; p < head.shape.panels; ++p) {
    head.chunks.fold(p);
    store_state_panel<T>(out, n, hv, head.shape.K, head.shape.V, p, head.work.fold);
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
