// Products of small matrices, whose sums stay in registers.
#pragma once

#include <cstdint>

#include "numbers.h"

namespace tfperf {

constexpr int kRowsAtOnce = kLanes == 16 ? 8 : 6;  // what is left of the registers holds two vectors and a number

// The first matrix, whose number (i, k) is at numbers + i * row + k * column.
struct Left {
  const float* numbers;
  int64_t row, column;

  Left from(int64_t i) const { return {numbers + i * row, row, column}; }
};

// Rows that lie one behind the other, `width` numbers from each to the next: a whole number of vectors.
struct Rows {
  float* numbers;
  int64_t width;

  float* row(int64_t number) const { return numbers + number * width; }
};

// As the first matrix, from some row on.
inline Left left(const Rows& of, int64_t first = 0) { return {of.row(first), of.width, 1}; }

inline Left transposed(const Rows& of) { return {of.numbers, 1, of.width}; }

inline Rows from_row(const Rows& of, int64_t first) { return {of.row(first), of.width}; }

namespace detail {

template <int kRows, int kVectors>
inline void multiply_block(const Left& a, const float* b, int64_t b_width, int64_t inner, float* c, int64_t c_width,
                           bool adds) {
  Vector<kLanes> sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row)
    for (int at = 0; at < kVectors; ++at)
      sums[row][at] = adds ? load<kLanes>(c + row * c_width + at * kLanes) : Vector<kLanes>{};
  const float* from = a.numbers;
  for (int64_t k = 0; k < inner; ++k, b += b_width, from += a.column) {
    Vector<kLanes> columns[kVectors];
    for (int at = 0; at < kVectors; ++at) columns[at] = load<kLanes>(b + at * kLanes);
    for (int row = 0; row < kRows; ++row)
      for (int at = 0; at < kVectors; ++at) sums[row][at] += from[row * a.row] * columns[at];
  }
  for (int row = 0; row < kRows; ++row)
    for (int at = 0; at < kVectors; ++at) store<kLanes>(sums[row][at], c + row * c_width + at * kLanes);
}

// As many blocks of so many rows as there are, then what is left in smaller ones.
template <int kRows, int kVectors>
inline void multiply_rows(Left a, int64_t rows, const float* b, int64_t b_width, int64_t inner, float* c,
                          int64_t c_width, bool adds) {
  for (; rows >= kRows; rows -= kRows, a = a.from(kRows), c += kRows * c_width)
    multiply_block<kRows, kVectors>(a, b, b_width, inner, c, c_width, adds);
  if constexpr (kRows > 1) multiply_rows<kRows - 1, kVectors>(a, rows, b, b_width, inner, c, c_width, adds);
}

}  // namespace detail

// c = a b, or c += a b: `rows` of a, `inner` rows of b, and so many columns, a whole number of vectors.
inline void multiply(const Left& a, int64_t rows, const Rows& b, int64_t inner, int64_t columns, const Rows& c,
                     bool adds = false) {
  int64_t at = 0;
  for (; at + 2 * kLanes <= columns; at += 2 * kLanes)
    detail::multiply_rows<kRowsAtOnce, 2>(a, rows, b.numbers + at, b.width, inner, c.numbers + at, c.width, adds);
  if (at < columns)
    detail::multiply_rows<kRowsAtOnce, 1>(a, rows, b.numbers + at, b.width, inner, c.numbers + at, c.width, adds);
}

}  // namespace tfperf
