// The one error type of libkda.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace kda {

// Thrown at the door, before anything runs and before anything is written. what() reads
//   "<argument>: <was>; accepted: <accepted>".
class Error : public std::exception {
 public:
  Error(std::string argument, std::string was, std::string accepted)
      : argument_(std::move(argument)),
        was_(std::move(was)),
        accepted_(std::move(accepted)),
        text_(argument_ + ": " + was_ + "; accepted: " + accepted_) {}

  const char* what() const noexcept override { return text_.c_str(); }
  const std::string& argument() const noexcept { return argument_; }  // the argument's name
  const std::string& was() const noexcept { return was_; }            // what it was
  const std::string& accepted() const noexcept { return accepted_; }  // what would do

 private:
  std::string argument_, was_, accepted_, text_;
};

}  // namespace kda
