#include "names.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kda/kda.hpp"

namespace kda::test {
namespace {

template <class Enum>
class Names : public testing::Test {};
using Enums =
    testing::Types<DType, Op, Gate, Norm, Reference, Precision, StateLayout, Isa, Activation>;
TYPED_TEST_SUITE(Names, Enums);

TYPED_TEST(Names, ReadBackAsWhatTheyName) {
  std::set<std::string> seen;
  int value = 0;
  for (const auto& entry : kNames<TypeParam>) {
    EXPECT_EQ(static_cast<int>(entry.value), value++) << "an enumerator is missing";
    EXPECT_STREQ(name(entry.value), entry.name);
    EXPECT_EQ(from_name<TypeParam>(entry.name), entry.value);
    EXPECT_TRUE(seen.insert(entry.name).second) << entry.name << " twice";
  }
}

// A misspelt word is refused, never taken for another.
TYPED_TEST(Names, MisspeltAreRefused) {
  for (const auto& entry : kNames<TypeParam>) {
    const std::string good = entry.name;
    std::string upper = good;
    upper[0] = static_cast<char>(upper[0] - 'a' + 'A');
    for (const std::string& bad :
         {good + "s", good + " ", " " + good, good.substr(0, good.size() - 1),
          good + std::string(1, '\0'), upper, std::string("unknown"), std::string()}) {
      EXPECT_FALSE(from_name<TypeParam>(bad).has_value()) << bad;
    }
  }
}

TYPED_TEST(Names, NoEnumerator) {
  const auto past = static_cast<TypeParam>(kNames<TypeParam>.size());
  EXPECT_STREQ(name(past), "unknown");
  EXPECT_EQ(name_or_null(past), nullptr);
}

TEST(AcceptedNames, AreListedInOrder) {
  EXPECT_EQ(accepted_names<Op>(), "kda, gdn, delta, linear");
  EXPECT_EQ(accepted_names<Gate>(), "log, softplus, bounded");
  EXPECT_EQ(accepted_names<Norm>(), "none, rsqrt, normalize");
  EXPECT_EQ(accepted_names<Reference>(), "shifted, first_row, midpoint, pairwise");
  EXPECT_EQ(accepted_names<Precision>(), "automatic, exact64, fp32, mixed");
  EXPECT_EQ(accepted_names<StateLayout>(), "key_first, value_first");
  EXPECT_EQ(accepted_names<Isa>(), "best, sse4, avx2, avx512, avx512_bf16, neon");
  EXPECT_EQ(accepted_names<DType>(), "f64, f32, bf16, f16, i32, i64, u8");
}

TEST(Version, IsTheBuilds) { EXPECT_STREQ(version(), KDA_VERSION); }

}  // namespace
}  // namespace kda::test
