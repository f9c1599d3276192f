// Dense matrices of doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kda::reference {

using Vector = std::vector<double>;

class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns)
      : columns_(static_cast<std::size_t>(columns)),
        elements_(static_cast<std::size_t>(rows) * columns_, 0.0) {}

  double* operator[](std::int64_t row) {
    return elements_.data() + static_cast<std::size_t>(row) * columns_;
  }
  const double* operator[](std::int64_t row) const {
    return elements_.data() + static_cast<std::size_t>(row) * columns_;
  }
  Matrix& operator+=(const Matrix& other) {  // of the same size
    for (std::size_t i = 0; i < elements_.size(); ++i) elements_[i] += other.elements_[i];
    return *this;
  }
  const Vector& elements() const { return elements_; }

 private:
  std::size_t columns_;
  Vector elements_;
};

}  // namespace kda::reference
