// The names of enumerators, one table per enum: what options, files, flags and messages spell.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "kda/conv.hpp"
#include "kda/kda.hpp"

namespace kda {

template <class Enum>
struct Named {
  Enum value;
  const char* name;
};

// kNames<Op> and so on: every enumerator, in the order of its declaration.
template <class Enum>
inline constexpr std::array<Named<Enum>, 0> kNames{};

template <>
inline constexpr auto kNames<DType> = std::to_array<Named<DType>>({
    {DType::f64, "f64"},
    {DType::f32, "f32"},
    {DType::bf16, "bf16"},
    {DType::f16, "f16"},
    {DType::i32, "i32"},
    {DType::i64, "i64"},
    {DType::u8, "u8"},
});

template <>
inline constexpr auto kNames<Op> = std::to_array<Named<Op>>({
    {Op::kda, "kda"},
    {Op::gdn, "gdn"},
    {Op::delta, "delta"},
    {Op::linear, "linear"},
});

template <>
inline constexpr auto kNames<Gate> = std::to_array<Named<Gate>>({
    {Gate::log, "log"},
    {Gate::softplus, "softplus"},
    {Gate::bounded, "bounded"},
});

template <>
inline constexpr auto kNames<Norm> = std::to_array<Named<Norm>>({
    {Norm::none, "none"},
    {Norm::rsqrt, "rsqrt"},
    {Norm::normalize, "normalize"},
});

template <>
inline constexpr auto kNames<Reference> = std::to_array<Named<Reference>>({
    {Reference::shifted, "shifted"},
    {Reference::first_row, "first_row"},
    {Reference::midpoint, "midpoint"},
    {Reference::pairwise, "pairwise"},
});

template <>
inline constexpr auto kNames<Precision> = std::to_array<Named<Precision>>({
    {Precision::automatic, "automatic"},
    {Precision::exact64, "exact64"},
    {Precision::fp32, "fp32"},
    {Precision::mixed, "mixed"},
});

template <>
inline constexpr auto kNames<StateLayout> = std::to_array<Named<StateLayout>>({
    {StateLayout::key_first, "key_first"},
    {StateLayout::value_first, "value_first"},
});

template <>
inline constexpr auto kNames<Isa> = std::to_array<Named<Isa>>({
    {Isa::best, "best"},
    {Isa::sse4, "sse4"},
    {Isa::avx2, "avx2"},
    {Isa::avx512, "avx512"},
    {Isa::avx512_bf16, "avx512_bf16"},
    {Isa::neon, "neon"},
});

template <>
inline constexpr auto kNames<Activation> = std::to_array<Named<Activation>>({
    {Activation::none, "none"},
    {Activation::silu, "silu"},
});

// Null for a value that is no enumerator.
template <class Enum>
constexpr const char* name_or_null(Enum value) {
  static_assert(!kNames<Enum>.empty(), "no table for this enum");
  for (const auto& entry : kNames<Enum>) {
    if (entry.value == value) return entry.name;
  }
  return nullptr;
}

// The enumerator of that exact name.
template <class Enum>
constexpr std::optional<Enum> from_name(std::string_view name) {
  static_assert(!kNames<Enum>.empty(), "no table for this enum");
  for (const auto& entry : kNames<Enum>) {
    if (name == entry.name) return entry.value;
  }
  return std::nullopt;
}

// "kda, gdn, delta, linear"
template <class Enum>
std::string accepted_names() {
  static_assert(!kNames<Enum>.empty(), "no table for this enum");
  std::string list;
  for (const auto& entry : kNames<Enum>) {
    if (!list.empty()) list += ", ";
    list += entry.name;
  }
  return list;
}

}  // namespace kda
