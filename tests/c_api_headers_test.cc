// The C headers have what the C++ ones have: every member of a struct of arguments or results.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>

#include "subprocess.h"

namespace kda::test {
namespace {

// The members of a struct that has no functions, by name.
std::set<std::string> members(const std::string& header, const std::string& name) {
  const std::string text = contents(std::string(KDA_INCLUDE_DIR) + "/kda/" + header);
  const auto begin = text.find("struct " + name + " {"), end = text.find("\n}", begin);
  EXPECT_NE(begin, text.npos) << name << " is not in " << header;
  if (begin == text.npos) return {};
  const std::string body =
      std::regex_replace(text.substr(begin, end - begin), std::regex("//[^\n]*"), "");
  const std::regex member(R"((\w+)(\[\d+\])?(\s*=[^;]*)?;)");
  std::set<std::string> names;
  for (auto it = std::sregex_iterator(body.begin(), body.end(), member);
       it != std::sregex_iterator(); ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

struct Pair {
  const char *cpp_header, *cpp, *c_header, *c;
};

constexpr Pair kPairs[] = {
    {"args.hpp", "Options", "kda.h", "kda_options"},
    {"args.hpp", "Workspace", "kda.h", "kda_workspace"},
    {"args.hpp", "Checkpoint", "kda.h", "kda_checkpoint"},
    {"args.hpp", "Serving", "kda.h", "kda_serving"},
    {"args.hpp", "ForwardArgs", "kda.h", "kda_forward_args"},
    {"context.hpp", "CpuContext", "kda.h", "kda_context"},
    {"cuda.hpp", "CudaContext", "kda.h", "kda_context"},
    {"kda.hpp", "Ran", "kda.h", "kda_ran"},
    {"cuda.hpp", "CudaStreamingStates", "cuda.h", "kda_cuda_states"},
    {"cuda.hpp", "CudaLayer", "cuda.h", "kda_cuda_layer"},
    {"cuda.hpp", "CudaConvolution", "cuda.h", "kda_cuda_convolution"},
    {"backward.hpp", "BackwardArgs", "backward.h", "kda_backward_args"},
    {"conv.hpp", "ConvArgs", "conv.h", "kda_conv_args"},
    {"conv.hpp", "ConvBackwardArgs", "conv.h", "kda_conv_backward_args"},
    {"conv.hpp", "ConvCommitArgs", "conv.h", "kda_conv_commit_args"},
    {"norm.hpp", "L2NormArgs", "norm.h", "kda_l2_norm_args"},
    {"norm.hpp", "L2NormBackwardArgs", "norm.h", "kda_l2_norm_backward_args"},
    {"norm.hpp", "GatedNormArgs", "norm.h", "kda_gated_norm_args"},
    {"norm.hpp", "GatedNormBackwardArgs", "norm.h", "kda_gated_norm_backward_args"},
};

TEST(CApiHeaders, HaveEveryMember) {
  const std::map<std::string, std::string> other_names = {{"CudaContext.states", "cuda_states"},
                                                          {"CudaContext.layer", "cuda_layer"}};
  for (const Pair& pair : kPairs) {
    const std::set<std::string> c = members(pair.c_header, pair.c);
    const std::set<std::string> cpp = members(pair.cpp_header, pair.cpp);
    EXPECT_GE(cpp.size(), 2U) << pair.cpp;
    for (const std::string& name : cpp) {
      const auto other = other_names.find(std::string(pair.cpp) + "." + name);
      EXPECT_TRUE(c.contains(other == other_names.end() ? name : other->second))
          << pair.c << " lacks what " << pair.cpp << "::" << name << " says";
    }
  }
}

}  // namespace
}  // namespace kda::test
