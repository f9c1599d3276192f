// A build without CUDA: the calls of kda/cuda.hpp exist and say so.
#include "kda/cuda.hpp"

#ifndef KDA_WITH_CUDA

namespace kda {
namespace {

Error refusal() {
  return {"context", "CudaContext",
          "CpuContext: this build of libkda has no CUDA backend (KDA_WITH_CUDA=ON builds it in)"};
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
Ran causal_conv1d(const ConvArgs&, const CudaContext&) { throw refusal(); }
Ran causal_conv1d_backward(const ConvBackwardArgs&, const CudaContext&) { throw refusal(); }
Ran causal_conv1d_commit(const ConvCommitArgs&, const CudaContext&) { throw refusal(); }
Ran l2_norm(const L2NormArgs&, const CudaContext&) { throw refusal(); }
Ran l2_norm_backward(const L2NormBackwardArgs&, const CudaContext&) { throw refusal(); }
Ran gated_norm(const GatedNormArgs&, const CudaContext&) { throw refusal(); }
Ran gated_norm_backward(const GatedNormBackwardArgs&, const CudaContext&) { throw refusal(); }
std::string why_not(const ConvArgs&, const CudaContext&) { return refusal().what(); }
std::string why_not(const ConvBackwardArgs&, const CudaContext&) { return refusal().what(); }
std::string why_not(const ConvCommitArgs&, const CudaContext&) { return refusal().what(); }
std::string why_not(const L2NormArgs&, const CudaContext&) { return refusal().what(); }
std::string why_not(const L2NormBackwardArgs&, const CudaContext&) { return refusal().what(); }
std::string why_not(const GatedNormArgs&, const CudaContext&) { return refusal().what(); }
std::string why_not(const GatedNormBackwardArgs&, const CudaContext&) { return refusal().what(); }
std::size_t workspace_bytes(const ConvBackwardArgs&, const CudaContext&) { throw refusal(); }
std::size_t workspace_bytes(const GatedNormBackwardArgs&, const CudaContext&) { throw refusal(); }

}  // namespace kda

#endif
