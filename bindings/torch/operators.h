// The operators of each file: their schemas, and their kernels, on the CPU and on CUDA.
#pragma once

#include <torch/csrc/stable/library.h>

namespace kda::torch_op {

using Library = torch::stable::detail::StableLibrary;

// Raised where a schema, or what an argument or a result means, changes; python/libkda/_library.py
// has the same number.
inline constexpr int kOperators = 3;

void define_forward(Library& m);
void implement_forward(Library& m);

void define_backward(Library& m);
void implement_backward(Library& m);

void define_streaming(Library& m);
void implement_streaming(Library& m);
void implement_streaming_anywhere(Library& m);  // what takes no tensor

void define_cuda_streaming(Library& m);
void implement_cuda_streaming(Library& m);
void implement_cuda_streaming_anywhere(Library& m);

void define_conv(Library& m);
void implement_conv(Library& m);

void define_norm(Library& m);
void implement_norm(Library& m);

}  // namespace kda::torch_op
