#include "c_api/convert.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace kda::c_api {
namespace {

// A dtype that is none, for the call to refuse with the argument's name.
DType to_dtype(std::int32_t value) {
  return value >= 0 && value <= UINT8_MAX ? static_cast<DType>(value) : DType{UINT8_MAX};
}

}  // namespace

void want_zero(const char* argument, bool is_zero, const char* accepted) {
  if (!is_zero) throw Error(argument, "set", accepted);
}

Tensor to_tensor(const kda_tensor& given) {
  Tensor t;
  t.data = given.data;
  t.dtype = to_dtype(given.dtype);
  t.rank = given.rank;
  std::copy_n(given.shape, kMaxRank, t.shape);
  std::copy_n(given.stride, kMaxRank, t.stride);
  return t;
}

State to_state(const char* name, const kda_state& given) {
  State s;
  s.tensor = to_tensor(given.tensor);
  if (!s) return s;
  const std::string prefix = name;
  want_zero((prefix + ".reserved").c_str(), given.reserved == 0, "0");
  s.layout = to_enum<StateLayout>((prefix + ".layout").c_str(), given.layout);
  return s;
}

ConstState to_const_state(const char* name, const kda_state& given) {
  const State s = to_state(name, given);
  return {as_const(s.tensor), s.layout};
}

ConstTensor to_optional(const kda_tensor* given) {
  return given ? as_const(to_tensor(*given)) : ConstTensor{};
}

Options to_options(const kda_options* pointer) {
  const auto given = read_or_default("options", pointer);
  Options o;
  o.op = to_enum<Op>("op", given.op);
  o.gate = to_enum<Gate>("gate", given.gate);
  o.norm = to_enum<Norm>("norm", given.norm);
  o.sigmoid_beta = given.sigmoid_beta != 0;
  o.neg_eigval = given.neg_eigval != 0;
  if (given.lower_bound != 0) o.lower_bound = given.lower_bound;
  if (given.scale != 0) o.scale = given.scale;
  o.precision = to_enum<Precision>("precision", given.precision);
  o.bf16_state = given.bf16_state != 0;
  if (given.chunk != 0) o.chunk = given.chunk;
  if (given.key_window != 0) o.key_window = given.key_window;
  o.reference = to_enum<Reference>("reference", given.reference);
  return o;
}

ForwardCall::ForwardCall(const kda_forward_args* pointer) {
  const auto given = read("args", pointer);
  ForwardArgs& a = args_;
  a.q = to_tensor(given.q);
  a.k = to_tensor(given.k);
  a.v = to_tensor(given.v);
  a.g = to_tensor(given.g);
  a.beta = to_tensor(given.beta);
  a.A_log = to_tensor(given.A_log);
  a.dt_bias = to_tensor(given.dt_bias);
  a.initial_state = to_const_state("initial_state", given.initial_state);
  a.cu_seqlens = to_tensor(given.cu_seqlens);
  a.o = to_tensor(given.o);
  a.final_state = to_state("final_state", given.final_state);
  a.options = to_options(given.options);
  a.workspace = {given.workspace.data, given.workspace.bytes};
  if (given.serving) take_serving(read("serving", given.serving));
}

void ForwardCall::take_serving(const kda_serving& given) {
  Serving& s = args_.serving;
  if (given.states) s.states = &given.states->states;
  s.slots = to_tensor(given.slots);
  s.has_initial_state = to_tensor(given.has_initial_state);
  s.draft = given.draft != 0;
  want_zero("serving.reserved", given.reserved == 0, "0");
  checkpoints_ = to_checkpoints(given.checkpoints, given.checkpoint_count);
  s.checkpoints = checkpoints_.data();
  s.checkpoint_count = checkpoints_.size();
  s.checkpoint_states = to_state("checkpoint_states", given.checkpoint_states);
}

std::vector<Checkpoint> to_checkpoints(const kda_checkpoint* given, std::size_t count) {
  if (count > 0 && !given) {
    throw Error("checkpoints", "null", "checkpoint_count = " + std::to_string(count) + " of them");
  }
  std::vector<Checkpoint> checkpoints;
  for (std::size_t i = 0; i < count; ++i) {
    checkpoints.push_back({given[i].sequence, given[i].offset, given[i].slot});
  }
  return checkpoints;
}

CpuContext to_cpu_context(const kda_context& given) {
  constexpr const char* kCudaOnly = "0 on the CPU";
  if (given.backend != KDA_CPU) {
    throw Error("context.backend", "no such value (" + std::to_string(given.backend) + ")",
                "cpu (0), cuda (1)");
  }
  want_zero("context.device", given.device == 0, kCudaOnly);
  want_zero("context.stream", !given.stream, kCudaOnly);
  want_zero("context.host_cu_seqlens", !given.host_cu_seqlens, kCudaOnly);
  want_zero("context.host_slots", !given.host_slots, kCudaOnly);
  want_zero("context.cuda_states", !given.cuda_states, kCudaOnly);
  want_zero("context.status", !given.status, kCudaOnly);
  want_zero("context.path", given.path == 0, kCudaOnly);
  want_zero("context.cuda_layer", !given.cuda_layer, kCudaOnly);
  want_zero("context.reserved", given.reserved == 0, "0");
  want_zero("context.parallel_user", given.parallel_for || !given.parallel_user,
            "0 without parallel_for");
  CpuContext context{.threads = given.threads, .isa = to_enum<Isa>("context.isa", given.isa)};
  if (given.parallel_for) {
    context.parallel_for = [run = given.parallel_for, user = given.parallel_user](
                               std::int64_t n, const std::function<void(std::int64_t)>& body) {
      const auto call = [](void* data, std::int64_t i) {
        (*static_cast<const std::function<void(std::int64_t)>*>(data))(i);
      };
      run(user, n, call, const_cast<std::function<void(std::int64_t)>*>(&body));
    };
  }
  return context;
}

CudaStreamingStates to_cuda_states(const kda_cuda_states* pointer) {
  const auto given = read("states", pointer);
  want_zero("states.reserved", given.reserved == 0, "0");
  return {.data = given.data,
          .bytes = given.bytes,
          .slots = given.slots,
          .HV = given.HV,
          .max_draft = given.max_draft,
          .options = to_options(given.options)};
}

CudaLayer to_cuda_layer(const kda_cuda_layer* pointer) {
  const auto given = read("layer", pointer);
  want_zero("layer.reserved", given.reserved == 0, "0");
  const auto convolution = [](const kda_cuda_convolution& c) {
    return CudaConvolution{
        .weight = to_tensor(c.weight), .bias = to_tensor(c.bias), .state = to_tensor(c.state)};
  };
  return {.q = convolution(given.q),
          .k = convolution(given.k),
          .v = convolution(given.v),
          .activation = to_enum<Activation>("layer.activation", given.activation),
          .norm_weight = to_tensor(given.norm_weight),
          .gate = to_tensor(given.gate),
          .eps = given.eps == 0 ? 1e-5 : given.eps};
}

CudaCall::CudaCall(const kda_context& given) {
  constexpr const char* kCpuOnly = "0 on CUDA";
  if (given.backend != KDA_CUDA) {
    throw Error("context.backend", std::to_string(given.backend), "cuda (1)");
  }
  want_zero("context.threads", given.threads == 0, kCpuOnly);
  want_zero("context.isa", given.isa == 0, kCpuOnly);
  want_zero("context.parallel_for", !given.parallel_for && !given.parallel_user, kCpuOnly);
  context_.device = given.device;
  context_.stream = given.stream;
  context_.host_cu_seqlens = given.host_cu_seqlens;
  context_.host_slots = given.host_slots;
  if (given.cuda_states) {
    states_ = to_cuda_states(given.cuda_states);
    context_.states = &states_;
  }
  if (given.cuda_layer) {
    layer_ = to_cuda_layer(given.cuda_layer);
    context_.layer = &layer_;
  }
  context_.status = given.status;
  if (given.path != KDA_CUDA_PATH_AUTOMATIC && given.path != KDA_CUDA_PATH_PORTABLE) {
    throw Error("context.path", std::to_string(given.path), "automatic (0), portable (1)");
  }
  context_.path = static_cast<CudaPath>(given.path);
  want_zero("context.reserved", given.reserved == 0, "0");
}

CpuContext cpu_only(const char* call, const kda_context* given) {
  const auto context = read_or_default("context", given);
  if (context.backend == KDA_CUDA) {
    throw Error("context.backend", "cuda", std::string("cpu: ") + call + " runs there only");
  }
  return to_cpu_context(context);
}

StreamingStates& to_states(kda_states* given) {
  if (!given) throw Error("states", "null", "what kda_states_create() gave");
  return given->states;
}

const StreamingStates& to_states(const kda_states* given) {
  return to_states(const_cast<kda_states*>(given));
}

kda_ran from_ran(const Ran& ran) {
  kda_ran r{};
  r.backend = ran.backend;
  r.isa = static_cast<std::int32_t>(ran.isa);
  r.precision = static_cast<std::int32_t>(ran.precision);
  r.reference = static_cast<std::int32_t>(ran.reference);
  r.chunk = ran.chunk;
  r.key_window = ran.key_window;
  r.shift = ran.shift;
  r.cuts = ran.cuts;
  r.threads = ran.threads;
  r.chunks = ran.chunks;
  r.windows = ran.windows;
  r.one_token_windows = ran.one_token_windows;
  r.kernel = ran.kernel;
  return r;
}

}  // namespace kda::c_api
