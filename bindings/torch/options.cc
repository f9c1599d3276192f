#include "options.h"

#include <algorithm>
#include <limits>

namespace kda::torch_op {

int narrow(std::int64_t x) {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp(x, -most, most));
}

OptionArguments::OptionArguments(Stack& stack)
    : op_(stack.text()),
      gate_(stack.text()),
      norm_(stack.text()),
      sigmoid_beta_(stack.next<bool>()),
      neg_eigval_(stack.next<bool>()),
      lower_bound_(stack.next<std::optional<double>>()),
      scale_(stack.next<std::optional<double>>()),
      precision_(stack.text()),
      bf16_state_(stack.next<bool>()),
      chunk_(stack.next<std::int64_t>()),
      key_window_(stack.next<std::optional<std::int64_t>>()),
      reference_(stack.text()) {}

Options OptionArguments::options() const {
  Options o;
  o.op = named<Op>("op", op_);
  o.gate = named<Gate>("gate", gate_);
  o.norm = named<Norm>("norm", norm_);
  o.sigmoid_beta = sigmoid_beta_;
  o.neg_eigval = neg_eigval_;
  o.lower_bound = lower_bound_;
  o.scale = scale_;
  o.precision = named<Precision>("precision", precision_);
  o.bf16_state = bf16_state_;
  o.chunk = narrow(chunk_);
  if (key_window_) o.key_window = narrow(*key_window_);
  o.reference = named<Reference>("reference", reference_);
  return o;
}

AtType state_type(const Options& options, const At& q, const MaybeAt& initial_state) {
  if (initial_state) return initial_state->scalar_type();
  const bool exact =
      options.precision == Precision::exact64 ||
      (options.precision == Precision::automatic && q.scalar_type() == AtType::Double);
  return exact ? AtType::Double : AtType::Float;
}

}  // namespace kda::torch_op
