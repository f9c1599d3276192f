#include "norm_plan.h"

#include <cmath>
#include <string>
#include <vector>

#include "checks.h"
#include "plan_parts.h"

namespace kda {
namespace {

constexpr const char* kNeeded = "every norm";

NormCall read_rows(const ConstTensor& x) {
  check_input({"x", x}, {{"B", 0, true}, {"T", 0, true}, {"H", 1, true}, {"D", 1, true}}, kFloats,
              kNeeded);
  NormCall call;
  call.x = x;
  call.B = x.shape[0], call.T = x.shape[1], call.H = x.shape[2], call.D = x.shape[3];
  call.wide = x.dtype == DType::f64;
  return call;
}

void check_rows(const Argument& a, const NormCall& c) {
  check_input(a, {{"B", c.B}, {"T", c.T}, {"H", c.H}, {"D", c.D}}, kFloats, kNeeded);
}

// A result; of the others it may be `in_place`, and must be apart from the rest.
void check_result(const Argument& a, Shape shape, std::vector<Argument> others,
                  const ConstTensor& in_place = {}) {
  check_view(a, shape, kFloats, kNeeded);
  check_output_memory(a);
  for (const Argument& other : others) {
    if (in_place && other.view.data == in_place.data && is_same_view(a.view, in_place)) continue;
    check_apart(a, other);
  }
}

void read_length(Norm norm, NormCall& call) {
  check_enum("norm", norm);
  if (norm == Norm::none) throw Error("norm", "none", "rsqrt, normalize");
  call.length = norm == Norm::rsqrt ? NormCall::Length::rsqrt : NormCall::Length::normalize;
  call.eps = 1e-6;
}

void read_eps(double eps, NormCall& call) {
  if (!std::isfinite(eps) || eps <= 0) throw Error("eps", show(eps), "a finite number above 0");
  call.eps = eps;
}

void read_gate(const ConstTensor& weight, const ConstTensor& gate, NormCall& call) {
  if (weight) check_input({"weight", weight}, {{"D", call.D}}, kFloats);
  if (gate) check_rows({"gate", gate}, call);
  call.weight = weight;
  call.gate = gate;
}

}  // namespace

NormCall make_norm_call(const L2NormArgs& args) {
  NormCall c = read_rows(args.x);
  read_length(args.norm, c);
  check_result({"y", as_const(args.y)}, {{"B", c.B}, {"T", c.T}, {"H", c.H}, {"D", c.D}},
               {{"x", args.x}}, args.x);
  c.y = args.y;
  return c;
}

NormCall make_norm_call(const L2NormBackwardArgs& args) {
  NormCall c = read_rows(args.x);
  read_length(args.norm, c);
  check_rows({"d_y", args.d_y}, c);
  check_result({"dx", as_const(args.dx)}, {{"B", c.B}, {"T", c.T}, {"H", c.H}, {"D", c.D}},
               {{"x", args.x}, {"d_y", args.d_y}}, args.d_y);
  c.d_y = args.d_y;
  c.dx = args.dx;
  return c;
}

NormCall make_norm_call(const GatedNormArgs& args) {
  NormCall c = read_rows(args.x);
  read_gate(args.weight, args.gate, c);
  read_eps(args.eps, c);
  check_result({"y", as_const(args.y)}, {{"B", c.B}, {"T", c.T}, {"H", c.H}, {"D", c.D}},
               {{"x", args.x}, {"weight", args.weight}, {"gate", args.gate}}, args.x);
  c.y = args.y;
  return c;
}

NormCall make_norm_call(const GatedNormBackwardArgs& args) {
  NormCall c = read_rows(args.x);
  read_gate(args.weight, args.gate, c);
  read_eps(args.eps, c);
  check_rows({"d_y", args.d_y}, c);
  c.d_y = args.d_y;
  std::vector<Argument> others = {
      {"x", args.x}, {"weight", args.weight}, {"gate", args.gate}, {"d_y", args.d_y}};
  const auto gradient = [&](const char* name, const Tensor& view, Shape shape) {
    if (!view) return;
    check_result({name, as_const(view)}, shape, others);
    others.push_back({name, as_const(view)});
  };
  gradient("dx", args.dx, {{"B", c.B}, {"T", c.T}, {"H", c.H}, {"D", c.D}});
  gradient("dweight", args.dweight, {{"D", c.D}});
  if (!args.gate) check_absent({"dgate", as_const(args.dgate)}, "there is no gate");
  gradient("dgate", args.dgate, {{"B", c.B}, {"T", c.T}, {"H", c.H}, {"D", c.D}});
  c.dx = args.dx, c.dweight = args.dweight, c.dgate = args.dgate;
  return c;
}

}  // namespace kda
