// A build without CUDA: the calls of kda/cuda.hpp exist and say so.
#include "kda/cuda.hpp"

#ifndef KDA_WITH_CUDA

namespace kda {
namespace {

Error refusal() {
  return {"context", "CudaContext", "CpuContext: this build of libkda has no CUDA backend"};
}

}  // namespace

Ran forward(const ForwardArgs&, const CudaContext&) { throw refusal(); }
std::size_t slot_bytes(const CudaStreamingStates&) { throw refusal(); }
void commit(const CudaStreamingStates&, const ConstTensor&, const ConstTensor&,
            const CudaContext&) {
  throw refusal();
}
void plain_states(const CudaStreamingStates&, const ConstTensor&, const State&,
                  const CudaContext&) {
  throw refusal();
}
Ran recurrent(const ForwardArgs&, const CudaContext&) { throw refusal(); }
std::string why_not(const ForwardArgs&, const CudaContext&) { return refusal().what(); }
std::size_t workspace_bytes(const ForwardArgs&, const CudaContext&) { throw refusal(); }

}  // namespace kda

#endif
