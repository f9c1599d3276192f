// Structs that begin with their size, and the way out of every C function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "kda/error.hpp"
#include "kda/kda.h"

namespace kda::c_api {

// A size that no struct of any version has: what was never set is refused, not followed.
inline constexpr std::size_t kSizeLimit = 1 << 16;

// The member `size` of a T, whose bytes may be fewer than this version's.
template <class T>
std::size_t size_of_struct(const char* name, const T* given) {
  std::size_t size = 0;
  std::memcpy(&size, static_cast<const void*>(given), sizeof size);
  if (size < sizeof size || size % alignof(T) != 0 || size > kSizeLimit) {
    throw Error(std::string(name) + ".size", std::to_string(size),
                "sizeof of the struct, " + std::to_string(sizeof(T)) + " in this version");
  }
  return size;
}

// What the caller gave, in this version's form: fields that it lacks are 0.
template <class T>
T read(const char* name, const T* given) {
  if (!given) throw Error(name, "null", "a struct");
  const std::size_t size = size_of_struct(name, given);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const std::size_t known = std::min(size, sizeof(T));
  if (std::any_of(bytes + known, bytes + size, [](unsigned char b) { return b != 0; })) {
    throw Error(name, "fields of a newer version than this library are set",
                "these fields 0, or a newer library");
  }
  T value{};
  std::memcpy(static_cast<void*>(&value), bytes, known);
  return value;
}

// The same; null is all defaults.
template <class T>
T read_or_default(const char* name, const T* given) {
  return given ? read(name, given) : T{};
}

// A struct that a call fills once it has run: its size is looked at before.
template <class T>
class Output {
 public:
  Output(const char* name, T* to) : to_(to), size_(to ? size_of_struct(name, to) : 0) {}

  // Fields that the caller lacks are left out; those that this version lacks are 0.
  void write(T value) const {
    if (!to_) return;
    value.size = size_;
    const std::size_t known = std::min(size_, sizeof(T));
    auto* bytes = reinterpret_cast<unsigned char*>(to_);
    std::memcpy(bytes, &value, known);
    std::fill(bytes + known, bytes + size_, static_cast<unsigned char>(0));
  }

 private:
  T* to_;
  std::size_t size_;
};

template <class T>
T& at(const char* name, T* pointer) {
  if (!pointer) throw Error(name, "null", "a place for the result");
  return *pointer;
}

// Fills *error, as far as the caller has room.
inline int report(kda_error* error, kda_code code, const char* text) {
  if (!error) return code;
  const std::size_t length = std::strlen(text);
  error->code = code;
  error->length = length;
  if (error->message && error->capacity > 0) {
    const std::size_t copied = std::min(length, error->capacity - 1);
    std::memcpy(error->message, text, copied);
    error->message[copied] = '\0';
  }
  return code;
}

// Runs a call: what it throws becomes a code and a message.
template <class Call>
int guarded(kda_error* error, const Call& call) noexcept {
  // A kda_error of another size than the one that all versions know cannot be filled.
  if (error && error->size < sizeof(kda_error)) return KDA_ERROR_REFUSED;
  try {
    call();
    return report(error, KDA_OK, "");
  } catch (const Error& e) {
    return report(error, KDA_ERROR_REFUSED, e.what());
  } catch (const std::bad_alloc&) {
    return report(error, KDA_ERROR_MEMORY, "not enough memory for the call");
  } catch (const std::exception& e) {
    return report(error, KDA_ERROR_INTERNAL, e.what());
  } catch (...) {
    return report(error, KDA_ERROR_INTERNAL, "an exception of an unknown type");
  }
}

// Runs a question that answers with the reason against a call, empty if there is none.
template <class Question>
int guarded_reason(kda_error* error, const Question& question) noexcept {
  std::string reason;
  const int code = guarded(error, [&] { reason = question(); });
  return reason.empty() ? code : report(error, KDA_ERROR_REFUSED, reason.c_str());
}

}  // namespace kda::c_api
