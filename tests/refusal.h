// A call that must be refused, and how the refusal is checked.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "cases.h"
#include "kda/kda.hpp"

namespace kda::test {

struct Refusal {
  std::string name;                  // [a-z0-9_]+
  Case made;                         // a call that runs ...
  void (*spoil)(ForwardArgs&);       // ... until this is done to it
  std::string argument;              // that the error must name
  std::vector<std::string> telling;  // parts of its text
};

inline std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.name; }

// Small, every size different. T is no multiple of anything.
inline Case small(Options options = {}) {
  Case c;
  c.name = "small";
  c.B = 2, c.T = 9, c.H = 2, c.HV = 4, c.K = 8, c.V = 6;
  c.options = options;
  c.initial_state = StateSpec{};
  return c;
}

inline Case small_packed() {
  Case c = small();
  c.B = 1;
  c.lens = {2, 0, 5};
  return c;
}

inline Options bounded(double lower_bound) {
  return {.gate = Gate::bounded, .lower_bound = lower_bound};
}

inline void expect_refused(const Refusal& r) {
  Bundle bundle = make(r.made);
  ForwardArgs args = bundle.args();
  ASSERT_EQ(why_not(args), "") << "the call must be good before it is spoilt";
  r.spoil(args);
  std::string text;
  try {
    forward(args);
    FAIL() << "not refused";
  } catch (const Error& error) {
    text = error.what();
    EXPECT_EQ(error.argument(), r.argument) << text;
    EXPECT_FALSE(error.was().empty());
    EXPECT_FALSE(error.accepted().empty());
  }
  for (const std::string& part : r.telling) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in \"" << text << "\"";
  }
  EXPECT_EQ(why_not(args), text);
  EXPECT_TRUE(bundle.untouched());
}

}  // namespace kda::test
