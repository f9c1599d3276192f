#include "audit_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "audit/random.h"
#include "compare.h"
#include "device_flag.h"
#include "half.h"
#include "plan.h"
#include "reference/reference.h"
#ifdef KDA_WITH_CUDA
#include "device_call.h"
#endif

namespace kda::cli {
namespace {

using audit::Array;
using audit::Arrays;

// The numbers as a dense tensor.
void store(const std::vector<double>& values, DType dtype, std::byte* memory) {
  const auto put = [&](auto stored) {
    std::memcpy(memory, &stored, sizeof stored);
    memory += sizeof stored;
  };
  for (const double x : values) {
    switch (dtype) {
      case DType::f64:
        put(x);
        break;
      case DType::bf16:
        put(bf16_from_double(x));
        break;
      case DType::f16:
        put(f16_from_double(x));
        break;
      default:
        put(static_cast<float>(x));
    }
  }
}

// Memory of one tensor.
class Stored {
 public:
  Stored(DType dtype, std::size_t elements) : dtype_(dtype), bytes_(elements * size_of(dtype)) {}
  Stored(const std::vector<double>& values, DType dtype) : Stored(dtype, values.size()) {
    store(values, dtype, bytes_.data());
  }

  ConstTensor in(std::initializer_list<std::int64_t> shape) const {
    return contiguous(bytes_.data(), dtype_, shape);
  }
  Tensor out(std::initializer_list<std::int64_t> shape) {
    return contiguous(bytes_.data(), dtype_, shape);
  }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

// The tensors of one sequence, and the call that they make.
struct Call {
  explicit Call(const CallForm& form, const Arrays& inputs)
      : q(array(inputs, "q")),
        k(array(inputs, "k")),
        v(array(inputs, "v")),
        g(array(inputs, "g")),
        beta(array(inputs, "beta")) {
    T = size(inputs, "q", 0);
    K = size(inputs, "q", 1);
    V = size(inputs, "v", 1);
    args.q = q.in({1, T, 1, K});
    args.k = k.in({1, T, 1, K});
    args.v = v.in({1, T, 1, V});
    args.g = g.in({1, T, 1, K});
    args.beta = beta.in({1, T, 1});
    args.options.gate = form.gate;
    if (form.gate == Gate::bounded) args.options.lower_bound = form.lower_bound;
    args.options.norm = Norm::rsqrt;
    args.options.precision = form.precision;
    args.options.chunk = form.chunk;
    args.options.reference = form.reference;
    args.options.key_window = form.key_window;
  }

  static Stored array(const Arrays& inputs, const char* name) {
    const Array& found = *std::ranges::find(inputs, name, &Array::name);
    return {found.values, found.dtype};
  }
  static std::int64_t size(const Arrays& inputs, const char* name, std::size_t d) {
    return std::ranges::find(inputs, name, &Array::name)->shape[d];
  }

  Stored q, k, v, g, beta;
  std::int64_t T = 0, K = 0, V = 0;
  ForwardArgs args;
};

DType operand_dtype(Precision precision) {
  return precision == Precision::exact64 ? DType::f64
         : precision == Precision::mixed ? DType::bf16
                                         : DType::f32;
}

std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

Backend cpu_backend(const CpuContext& context) {
  return {"cpu", [context](const ForwardArgs& args) { return forward(args, context); },
          [context](const BackwardArgs& args) { return backward(args, context); }};
}

#ifdef KDA_WITH_CUDA
Backend cuda_backend() {
  const CudaContext context;
  const auto forward = [](const ForwardArgs& args) {
    DeviceCall call(args);
    const Ran ran = call.run();
    call.download();
    return ran;
  };
  const auto refusal = [context](const ForwardArgs& args) -> std::string {
    try {
      workspace_bytes(args, context);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  check_cuda_device();
  return {"cuda", forward, {}, refusal};
}
#else
Backend cuda_backend() {
  check_cuda_device();
  return {};
}
#endif

Backend oracle_backend() {
  return {"oracle", [](const ForwardArgs& args) {
            const reference::Result truth = reference::recurrence(args, make_plan(args));
            // audits ask for dense outputs
            store(truth.o, args.o.dtype, static_cast<std::byte*>(args.o.data));
            return Ran{.backend = "oracle"};
          }};
}

double unit_roundoff(Precision precision) {
  return precision == Precision::exact64 ? 0x1p-53
         : precision == Precision::mixed ? 0x1p-8
                                         : 0x1p-24;
}

DType output_dtype(Precision precision) {
  return precision == Precision::exact64 ? DType::f64 : DType::f32;
}

Arrays draw_inputs(const CallForm& form, const Sizes& sizes, std::uint64_t seed) {
  const DType wide = output_dtype(form.precision);
  std::uint64_t number = 0;
  // A tensor's draws do not hang on the sizes of the others, nor a token's on T.
  const auto draw = [&](const char* name, DType dtype, std::int64_t channels, auto next) {
    Array x{.name = name, .shape = {sizes.T, channels}, .axis = 0, .dtype = dtype};
    audit::Random random(seed + 1000 * ++number);
    for (std::int64_t i = 0; i < sizes.T * channels; ++i) {
      x.values.push_back(audit::rounded(next(random), dtype));
    }
    return x;
  };
  const auto normal = [](audit::Random& r) { return r.normal(); };
  const bool bounded = form.gate == Gate::bounded;
  const auto gate = [&](audit::Random& r) { return bounded ? 2 * r.normal() : -5 * r.uniform(); };
  const DType narrow = operand_dtype(form.precision);
  Arrays inputs = {draw("q", narrow, sizes.K, normal), draw("k", narrow, sizes.K, normal),
                   draw("v", narrow, sizes.V, normal), draw("g", wide, sizes.K, gate),
                   draw("beta", wide, 1, [](audit::Random& r) { return r.uniform(); })};
  if (!bounded) inputs[3].high = 0;
  inputs[4].low = 0;
  inputs[4].high = 1;
  return inputs;
}

std::string why_not(const Backend& backend, const CallForm& form) {
  Call call(form, draw_inputs(form, {.T = 1, .K = 1, .V = 1}, 1));
  Stored o(output_dtype(form.precision), count(call.T * call.V));
  call.args.o = o.out({1, call.T, 1, call.V});
  return backend.refusal ? backend.refusal(call.args) : kda::why_not(call.args);
}

Arrays outputs(const Backend& backend, const CallForm& form, const Arrays& inputs,
               std::string* isa) {
  Call call(form, inputs);
  const DType dtype = output_dtype(form.precision);
  Stored o(dtype, count(call.T * call.V));
  call.args.o = o.out({1, call.T, 1, call.V});
  const Ran ran = backend.forward(call.args);
  if (isa != nullptr) *isa = name(ran.isa);
  return {{.name = "o",
           .shape = {call.T, call.V},
           .axis = 0,
           .dtype = dtype,
           .values = values(as_const(call.args.o))}};
}

Arrays states(const Backend& backend, const CallForm& form, const Arrays& inputs,
              std::int64_t cut) {
  Call call(form, inputs);
  const DType dtype = output_dtype(form.precision);
  Stored o(dtype, count(call.T * call.V)), ht(dtype, count(2 * call.K * call.V));
  const std::int64_t ends[] = {0, std::min(cut, call.T), call.T};
  call.args.cu_seqlens = contiguous(ends, DType::i64, {3});
  call.args.o = o.out({1, call.T, 1, call.V});
  call.args.final_state.tensor = ht.out({2, 1, call.K, call.V});
  backend.forward(call.args);
  std::vector<double> both = values(as_const(call.args.final_state.tensor));
  both.resize(count(call.K * call.V));
  return {{.name = "ht",
           .shape = {1, call.K * call.V},
           .axis = 0,
           .dtype = dtype,
           .values = std::move(both),
           .sees = {ends[1] - 1}}};
}

Arrays gradients(const Backend& backend, const CallForm& form, const Arrays& inputs,
                 std::int64_t cut) {
  const Call call(form, inputs);
  const auto [T, K, V] = std::tuple(call.T, call.K, call.V);
  const std::int64_t seen = std::min(cut, T);
  const DType dtype = output_dtype(form.precision);
  std::vector<double> weights;
  audit::Random random(1);
  for (std::int64_t i = 0; i < T * V; ++i) weights.push_back(i < seen * V ? random.normal() : 0);
  const Stored d_o(weights, dtype);
  Stored dq(dtype, count(T * K)), dk = dq, dg = dq, dv(dtype, count(T * V)), dbeta(dtype, count(T)),
                                  dA_log(dtype, 1), ddt_bias(dtype, count(K)),
                                  dh0(dtype, count(K * V));
  BackwardArgs args;
  args.q = call.args.q, args.k = call.args.k, args.v = call.args.v;
  args.g = call.args.g, args.beta = call.args.beta;
  args.options = call.args.options;
  args.d_o = d_o.in({1, T, 1, V});
  args.dq = dq.out({1, T, 1, K}), args.dk = dk.out({1, T, 1, K}), args.dv = dv.out({1, T, 1, V});
  args.dg = dg.out({1, T, 1, K}), args.dbeta = dbeta.out({1, T, 1});
  if (form.gate != Gate::log) {
    args.dA_log = dA_log.out({1});
    args.ddt_bias = ddt_bias.out({1, K});
  }
  args.d_initial_state.tensor = dh0.out({1, 1, K, V});
  backend.backward(args);
  Arrays all;
  const auto add = [&](const char* name, const Tensor& t, std::int64_t tokens,
                       std::int64_t channels) {
    if (!t) return;
    Array x{.name = name,
            .shape = {tokens, channels},
            .axis = 0,
            .dtype = dtype,
            .values = values(as_const(t))};
    // The loss sees the tokens before the cut, and so does every gradient of it. Those of later
    // tokens are not looked at.
    x.sees.assign(count(tokens), T - 1);
    std::fill_n(x.sees.begin(), std::min(seen, tokens), seen - 1);
    all.push_back(std::move(x));
  };
  add("dq", args.dq, T, K), add("dk", args.dk, T, K), add("dv", args.dv, T, V);
  add("dg", args.dg, T, K), add("dbeta", args.dbeta, T, 1);
  add("dA_log", args.dA_log, 1, 1), add("ddt_bias", args.ddt_bias, 1, K);
  add("dh0", args.d_initial_state.tensor, 1, K * V);
  return all;
}

Arrays scores(const Backend& backend, const CallForm& form, const Arrays& inputs,
              std::int64_t columns) {
  Call call(form, inputs);
  const std::int64_t T = call.T;
  std::vector<double> writes(count(T * T), 0.0);
  for (std::int64_t j = 0; j < T; ++j) writes[count(j * T + j)] = 1;
  const DType dtype = output_dtype(form.precision);
  const Stored one({1}, operand_dtype(form.precision)), beta(writes, dtype);
  Stored o(dtype, count(T * T));
  ForwardArgs& args = call.args;
  for (ConstTensor* shared : {&args.q, &args.k, &args.g}) {
    shared->shape[0] = T;
    shared->stride[0] = 0;
  }
  args.v = one.in({1, 1, 1, 1});
  args.v.shape[0] = args.v.shape[1] = T;
  args.v.stride[0] = args.v.stride[1] = 0;
  args.beta = beta.in({T, T, 1});
  args.o = o.out({T, T, 1, 1});
  args.options.scale = 1;
  backend.forward(args);
  const std::vector<double> by_column = values(as_const(args.o));
  Array result{.name = "A_qk", .shape = {T, columns}, .axis = 0, .dtype = dtype};
  result.values.assign(count(T * columns), 0.0);
  for (std::int64_t i = 0; i < T; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      result.values[count(i * columns + j)] = by_column[count(j * T + i)];
    }
  }
  return {result};
}

}  // namespace kda::cli
