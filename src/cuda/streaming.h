// Forward with streaming states in device memory.
#pragma once

#include <cstddef>

#include "kda/cuda.hpp"

namespace kda::cuda {

Ran forward_streaming(const ForwardArgs& args, const CudaContext& context);
std::size_t streaming_workspace_bytes(const ForwardArgs& args, const CudaContext& context);

}  // namespace kda::cuda
