#include "audit/shrink.h"

#include <algorithm>
#include <vector>

#include "audit/tokens.h"
#include "audit/watch.h"

namespace kda::audit {
namespace {

// The watched output, as long as calls are left.
class Calls {
 public:
  Calls(const Function& f, const std::string& output, std::int64_t most)
      : f_(f), output_(output), left_(most) {}

  bool spent() const { return left_ <= 0; }

  Array operator()(const Arrays& inputs) {
    --left_;
    return named(f_(inputs), output_, "output");
  }

 private:
  const Function& f_;
  const std::string& output_;
  std::int64_t left_;
};

constexpr std::int64_t kNoLimit = INT64_MAX;

Arrays with(const Arrays& inputs, std::size_t position, const Array& array) {
  Arrays changed = inputs;
  changed[position] = array;
  return changed;
}

// The input with tokens [begin, end) of the witness's; those before its cut from all_changed.
Array changed_between(const Array& input, const Witness& w, std::int64_t begin, std::int64_t end) {
  Array result = input;
  copy_tokens(w.all_changed, begin, std::min(w.cut, end), result);
  copy_tokens(w.changed, std::max(begin, w.cut), end, result);
  return result;
}

// A failing case of `tokens` tokens: output token i moves when the elements do.
class Reduction {
 public:
  Reduction(Calls& calls, const Arrays& inputs, std::size_t input, const Array& changed,
            std::int64_t i)
      : calls_(calls),
        inputs_(inputs),
        input_(input),
        changed_(changed),
        i_(i),
        base_(calls(inputs)) {
    for (std::int64_t t = i + 1; t < layout(changed).tokens; ++t) {
      each_of_token(changed, t, [&](std::size_t at) {
        if (changed.values[at] != inputs[input].values[at]) elements_.push_back(at);
      });
    }
  }

  Example run() {
    if (!one_is_enough()) drop_in_halves();
    const Array& input = inputs_[input_];
    const Array after = calls_(with_only(elements_));
    Example example;
    example.tokens = layout(input).tokens;
    std::int64_t j = example.tokens;
    for (const std::size_t at : elements_) {
      example.edits.push_back(
          {input.name, index_of(input, at), input.values[at], changed_.values[at]});
      j = std::min(j, example.edits.back().index[static_cast<std::size_t>(input.axis)]);
    }
    example.pair = {i_, j};
    example.output = differing_element(base_, after, i_);
    return example;
  }

 private:
  Arrays with_only(const std::vector<std::size_t>& elements) const {
    Arrays inputs = inputs_;
    for (const std::size_t at : elements) inputs[input_].values[at] = changed_.values[at];
    return inputs;
  }

  bool fails(const std::vector<std::size_t>& elements) {
    return !differing_element(base_, calls_(with_only(elements)), i_).array.empty();
  }

  bool one_is_enough() {
    for (const std::size_t at : elements_) {
      if (calls_.spent()) return false;
      if (!fails({at})) continue;
      elements_ = {at};
      return true;
    }
    return false;
  }

  // Leaves out ever smaller pieces as long as the rest still fails.
  void drop_in_halves() {
    for (std::size_t piece = elements_.size() / 2; piece > 0; piece /= 2) {
      for (std::size_t begin = 0; begin < elements_.size();) {
        if (calls_.spent()) return;
        std::vector<std::size_t> rest(elements_.begin(), elements_.begin() + begin);
        rest.insert(rest.end(), elements_.begin() + std::min(begin + piece, elements_.size()),
                    elements_.end());
        if (!rest.empty() && fails(rest)) {
          elements_ = std::move(rest);
        } else {
          begin += piece;
        }
      }
    }
  }

  Calls& calls_;
  const Arrays& inputs_;
  const std::size_t input_;
  const Array& changed_;
  const std::int64_t i_;
  const Array base_;
  std::vector<std::size_t> elements_;
};

}  // namespace

FirstPair first_pair_of_change(const Function& f, const Arrays& inputs, const Array& base,
                               const Witness& w) {
  Calls calls(f, w.output, kNoLimit);
  const std::int64_t tokens = token_count(inputs);
  for (std::int64_t j = w.i + 1; j < tokens; ++j) {
    const Array one = changed_between(inputs[w.input], w, j, j + 1);
    if (one.values == inputs[w.input].values) continue;
    const Array after = calls(with(inputs, w.input, one));
    if (!differing_element(base, after, w.i).array.empty()) return {{w.i, j}, false};
  }
  return {{w.i, w.cut}, true};
}

FirstPair first_pair_of_append(const Function& f, const Arrays& inputs, const Witness& w) {
  Calls calls(f, w.output, kNoLimit);
  const std::int64_t tokens = token_count(inputs);
  const Array alone = calls(first_tokens(inputs, w.i + 1));
  for (std::int64_t j = w.i + 1; j < tokens; ++j) {
    const Array after = calls(first_tokens(inputs, j + 1));
    if (!differing_element(alone, after, w.i).array.empty()) return {{w.i, j}, false};
  }
  return {{w.i, w.cut}, true};
}

std::optional<Example> smallest_change(const Function& f, const Arrays& inputs, const Witness& w,
                                       std::int64_t most) {
  Calls calls(f, w.output, most);
  const std::int64_t tokens = token_count(inputs);
  for (std::int64_t n = 2; n <= tokens && !calls.spent(); ++n) {
    const Arrays short_inputs = first_tokens(inputs, n);
    const Array base = calls(short_inputs);
    std::int64_t earliest = -1, cut = 0;
    for (std::int64_t c = 1; c < n && !calls.spent() && earliest != 0; ++c) {
      const Arrays changed =
          first_tokens(with(inputs, w.input, changed_between(inputs[w.input], w, c, n)), n);
      const std::int64_t i = first_differing(base, calls(changed), c);
      if (i >= 0 && (earliest < 0 || i < earliest)) earliest = i, cut = c;
    }
    if (earliest < 0) continue;
    const Arrays changed =
        first_tokens(with(inputs, w.input, changed_between(inputs[w.input], w, cut, n)), n);
    return Reduction(calls, short_inputs, w.input, changed[w.input], earliest).run();
  }
  return std::nullopt;
}

std::optional<Example> smallest_append(const Function& f, const Arrays& inputs, const Witness& w,
                                       std::int64_t most) {
  Calls calls(f, w.output, most);
  const std::int64_t tokens = token_count(inputs);
  for (std::int64_t n = 2; n <= tokens && !calls.spent(); ++n) {
    const Array all = calls(first_tokens(inputs, n));
    for (std::int64_t p = 1; p < n && !calls.spent(); ++p) {
      const Array alone = calls(first_tokens(inputs, p));
      const std::int64_t i = first_differing(alone, all, p);
      if (i < 0) continue;
      return Example{n, {i, p}, {}, differing_element(alone, all, i)};
    }
  }
  return std::nullopt;
}

}  // namespace kda::audit
