// Matrices in panels, and products with them: sums of some rows by some columns stay in registers. Matrices of bfloat16 have a
// pair of numbers in place of each float, which are multiplied by those of a pair and summed.
#pragma once

#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "products.h"

namespace tfperf {

constexpr int kVectors = 2;                      // in a row of a panel
constexpr int64_t kColumns = kVectors * kLanes;  // of a panel
constexpr int64_t kSummed = 256;                 // numbers that are added up before the next panel has its turn
constexpr int64_t kTogether = 24 * kRowsAtOnce;  // rows that stay in the nearer cache for all panels

inline int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

// A matrix in panels: kColumns columns lie in each, one row of it after the other. Number (i, j) is the one at
// j % kColumns of row i in panel j / kColumns. Beyond its columns are zeros.
struct Panels {
  float* numbers;
  int64_t rows, columns;

  int64_t count() const { return divided_up(columns, kColumns); }
  int64_t width(int64_t panel) const { return std::min(kColumns, columns - panel * kColumns); }
  float* at(int64_t panel, int64_t row = 0) const { return numbers + (panel * rows + row) * kColumns; }

  static int64_t size(int64_t rows, int64_t columns) { return divided_up(columns, kColumns) * kColumns * rows; }
};

// Puts some rows into panels, from numbers on whose rows are `width` apart.
inline void pack(const float* numbers, int64_t width, int64_t begin, int64_t end, const Panels& to) {
  for (int64_t row = begin; row < end; ++row) {
    const float* from = numbers + row * width;
    for (int64_t panel = 0; panel < to.count(); ++panel, from += kColumns) {
      float* const place = to.at(panel, row);
      const int64_t there = to.width(panel);
      if (there == kColumns) {
        for (int64_t j = 0; j < kColumns; j += kLanes) store<kLanes>(load<kLanes>(from + j), place + j);
      } else {
        for (int64_t j = 0; j < kColumns; ++j) place[j] = j < there ? from[j] : 0.0f;
      }
    }
  }
}

// Puts the transpose of a matrix, whose rows lie one behind the other, into panels.
inline void pack_transposed(const float* numbers, const Panels& to) {
  for (int64_t panel = 0; panel < to.count(); ++panel)
    for (int64_t row = 0; row < to.rows; ++row) {
      const float* const from = numbers + panel * kColumns * to.rows + row;
      float* const place = to.at(panel, row);
      for (int64_t j = 0; j < kColumns; ++j) place[j] = j < to.width(panel) ? from[j * to.rows] : 0.0f;
    }
}

// Adds products of rows with a panel to sums, which begin as 0 or as they are in c; of each vector of them `last` is kept.
template <int kRows, typename T, typename Last>
inline void multiply_rows(const Left& a, const float* panel, int64_t inner, float* c, int64_t c_width, int64_t columns,
                          bool adds, const Last& last) {
  Vector<kLanes> sums[kRows][kVectors] = {};
  const float* from = a.numbers;
#pragma GCC unroll 4
  for (int64_t k = 0; k < inner; ++k, from += a.column, panel += kColumns) {
    Vector<kLanes> numbers[kVectors];
    for (int v = 0; v < kVectors; ++v) numbers[v] = load<kLanes>(panel + v * kLanes);
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < kVectors; ++v) sums[i][v] = add_products<T>(sums[i][v], from[i * a.row], numbers[v]);
  }
  for (int i = 0; i < kRows; ++i, c += c_width) {
    alignas(64) float some[kColumns] = {};
    float* const row = columns == kColumns ? c : some;
    if (row == some && adds) std::memcpy(some, c, columns * sizeof(float));
    for (int v = 0; v < kVectors; ++v) {
      float* const to = row + v * kLanes;
      store<kLanes>(last(adds ? sums[i][v] + load<kLanes>(to) : sums[i][v], v), to);
    }
    if (row == some) std::memcpy(c, some, columns * sizeof(float));
  }
}

// The same for as many blocks of kRows rows as there are, then for what is left in smaller ones.
template <int kRows, typename T, typename Last>
inline void multiply_all(Left a, int64_t rows, const float* panel, int64_t inner, float* c, int64_t c_width,
                         int64_t columns, bool adds, const Last& last) {
  for (; rows >= kRows; rows -= kRows, a = a.from(kRows), c += kRows * c_width)
    multiply_rows<kRows, T>(a, panel, inner, c, c_width, columns, adds, last);
  if constexpr (kRows > 1) multiply_all<kRows - 1, T>(a, rows, panel, inner, c, c_width, columns, adds, last);
}

const auto kAsItIs = [](Vector<kLanes> sum, int) { return sum; };

// c = a b, or c += a b; of each vector of the finished sums what last(panel)(sum, vector) makes of it is kept. The rows of c
// are c_width numbers apart.
template <typename T = float, typename Last>
inline void multiply_panels(const Left& a, int64_t rows, const Panels& b, float* c, int64_t c_width, bool adds, const Last& last) {
  for (int64_t k = 0; k < b.rows; k += kSummed) {
    const Left from{a.numbers + k * a.column, a.row, a.column};
    const int64_t summed = std::min(kSummed, b.rows - k);
    for (int64_t panel = 0; panel < b.count(); ++panel) {
      const auto add = [&](const auto& finished) {
        multiply_all<kRowsAtOnce, T>(from, rows, b.at(panel, k), summed, c + panel * kColumns, c_width, b.width(panel),
                                     adds || k > 0, finished);
      };
      k + summed < b.rows ? add(kAsItIs) : add(last(panel));
    }
  }
}

// c = a^T b, or c += a^T b, of `rows` rows: c is (inner, columns). The rows of each matrix are so many numbers apart. For
// kRowsAtOnce rows of c the numbers of a are put side by side.
template <typename T = float>
inline void multiply_transposed(const float* a, int64_t a_width, const float* b, int64_t b_width, int64_t rows, int64_t inner,
                                int64_t columns, float* c, int64_t c_width, bool adds) {
  static thread_local Buffer of_a, of_b;
  for (int64_t k = 0; k < rows; k += kSummed) {
    const int64_t summed = std::min(kSummed, rows - k);
    const Panels panels{of_b.of<float>(Panels::size(summed, columns)), summed, columns};
    pack(b + k * b_width, b_width, 0, summed, panels);
    for (int64_t i = 0; i < inner; i += kTogether) {
      const int64_t together = std::min(kTogether, inner - i);
      float* const beside = of_a.of<float>(divided_up(together, kRowsAtOnce) * kRowsAtOnce * summed);
      for (int64_t row = 0; row < summed; ++row) {
        const float* const from = a + (k + row) * a_width + i;
        int64_t j = 0;
        for (; j + kRowsAtOnce <= together; j += kRowsAtOnce)
          std::memcpy(beside + j * summed + row * kRowsAtOnce, from + j, kRowsAtOnce * sizeof(float));
        std::copy(from + j, from + together, beside + j * summed + row * kRowsAtOnce);
      }
      for (int64_t panel = 0; panel < panels.count(); ++panel)
        for (int64_t j = 0; j < together; j += kRowsAtOnce)
          multiply_all<kRowsAtOnce, T>({beside + j * summed, 1, kRowsAtOnce}, std::min<int64_t>(kRowsAtOnce, together - j),
                                       panels.at(panel), summed, c + (i + j) * c_width + panel * kColumns, c_width,
                                       panels.width(panel), adds || k > 0, kAsItIs);
    }
  }
  of_a.forget_if_large();
  of_b.forget_if_large();
}

}  // namespace tfperf
