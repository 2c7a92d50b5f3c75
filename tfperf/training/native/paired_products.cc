// Products of matrices in bfloat16, whose sums are float32, on processors that multiply pairs of numbers.
//
// Each pair has the place of a float: of two neighbours in a row of the first matrix, and in a column of the second one,
// which is in panels.
#include <algorithm>

#include "buffer.h"
#include "panels.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 19;        // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers
constexpr int64_t kCopied = 4 * kRowsAtOnce;      // rows whose copies stay in the nearest cache
constexpr int64_t kBlock = 16;                    // pairs of each column that are written before those of the next

// `outer` rows of `inner` numbers, or columns; `across`: those of one do not lie together in memory, but one of each does.
struct Matrix {
  const bfloat16* numbers;
  int64_t outer, inner;
  bool across;

  int64_t pairs() const { return divided_up(inner, 2); }
  bool has_pairs_in_place() const { return !across && inner % 2 == 0; }
};

// Pairs of some neighbours in rows `pair` * 2 and the next of a matrix that lies across; there may be no next.
void pair_rows(const Matrix& of, int64_t pair, int64_t begin, int64_t count, float* to) {
  const bfloat16* const first = of.numbers + 2 * pair * of.outer + begin;
  const bool has_second = 2 * pair + 1 < of.inner;
  in_registers(count, [&](auto lanes, int64_t at) {
    constexpr bfloat16 kZeros[lanes] = {};
    store<lanes>(paired<lanes>(first + at, has_second ? first + of.outer + at : kZeros), to + at);
  });
}

// Some pairs of a row that lies together, which has so many numbers.
void pair_row(const bfloat16* row, int64_t numbers, int64_t begin, int64_t end, float* to, int64_t step) {
  int64_t pair = begin;
  for (; pair < std::min(end, numbers / 2); ++pair) to[(pair - begin) * step] = paired(row[2 * pair], row[2 * pair + 1]);
  if (pair < end) to[(pair - begin) * step] = paired(row[2 * pair], bfloat16{});
}

// Puts the columns of some panels into them.
void pack(const Matrix& columns, int64_t begin, int64_t end, const Panels& to) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * kColumns, there = to.width(panel);
    if (there < kColumns) std::fill_n(to.at(panel), to.rows * kColumns, 0.0f);
    if (columns.across) {
      for (int64_t pair = 0; pair < to.rows; ++pair) pair_rows(columns, pair, first, there, to.at(panel, pair));
      continue;
    }
    for (int64_t pair = 0; pair < to.rows; pair += kBlock)
      for (int64_t j = 0; j < there; ++j)
        pair_row(columns.numbers + (first + j) * columns.inner, columns.inner, pair, std::min(pair + kBlock, to.rows),
                 to.at(panel, pair) + j, kColumns);
  }
}

// Some rows as the first matrix of a product: where they lie, or a copy in memory.
Left left(const Matrix& of, int64_t begin, int64_t count, Buffer& memory) {
  const int64_t pairs = of.pairs();
  if (of.has_pairs_in_place()) return {reinterpret_cast<const float*>(of.numbers + begin * of.inner), pairs, 1};
  float* const to = memory.of<float>(count * pairs);
  if (of.across) {
    for (int64_t pair = 0; pair < pairs; ++pair) pair_rows(of, pair, begin, count, to + pair * count);
    return {to, 1, count};
  }
  for (int64_t row = 0; row < count; ++row)
    pair_row(of.numbers + (begin + row) * of.inner, of.inner, 0, pairs, to + row * pairs, 1);
  return {to, pairs, 1};
}

// Some rows of the product by some of the panels.
void multiply_part(const Matrix& rows, int64_t begin, int64_t end, const Panels& panels, bfloat16* product, int64_t width) {
  static thread_local Buffer of_rows, of_sums;
  const int64_t together = rows.has_pairs_in_place() ? kTogether : kCopied;
  for (; begin < end; begin += together) {
    const int64_t count = std::min(together, end - begin);
    float* const sums = of_sums.of<float>(count * panels.columns);
    multiply_panels<bfloat16>(left(rows, begin, count, of_rows), count, panels, sums, panels.columns, false,
                              [](int64_t) { return kAsItIs; });
    for (int64_t row = 0; row < count; ++row) {
      const float* const from = sums + row * panels.columns;
      bfloat16* const to = product + (begin + row) * width;
      in_registers(panels.columns, [&](auto lanes, int64_t at) { store<lanes>(load<lanes>(from + at), to + at); });
    }
  }
  of_rows.forget_if_large();
  of_sums.forget_if_large();
}

// Threads share the rows of the product, or where these are few, its panels.
void multiply(ffi::ThreadPool& pool, const Matrix& rows, const Matrix& columns, bfloat16* product) {
  const int64_t width = columns.outer;
  if (rows.inner == 0) {
    std::fill_n(product, rows.outer * width, bfloat16{});
    return;
  }
  static thread_local Buffer of_columns;
  const Panels panels{of_columns.of<float>(Panels::size(columns.pairs(), width)), columns.pairs(), width};
  const int64_t worth = parts_worth(pool, width * columns.inner, kWorthAThreadToPack);
  const int64_t to_pack = std::max<int64_t>(1, std::min(worth, panels.count()));
  in_parallel(pool, to_pack, [&](int64_t part) {
    pack(columns, panels.count() * part / to_pack, panels.count() * (part + 1) / to_pack, panels);
  });
  const int64_t blocks = divided_up(rows.outer, kRowsAtOnce);
  const int64_t shared = parts_worth(pool, rows.outer * width * rows.inner, kWorthAThread);
  const bool by_rows = blocks >= shared;
  const int64_t steps = by_rows ? blocks : panels.count(), parts = std::max<int64_t>(1, std::min(shared, steps));
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t begin = steps * part / parts, end = steps * (part + 1) / parts;
    if (by_rows) {
      multiply_part(rows, begin * kRowsAtOnce, std::min(end * kRowsAtOnce, rows.outer), panels, product, width);
    } else if (begin < end) {
      const int64_t first = begin * kColumns;
      const Panels some{panels.at(begin), panels.rows, std::min(end * kColumns, width) - first};
      multiply_part(rows, 0, rows.outer, some, product + first, width);
    }
  });
  of_columns.forget_if_large();
}

ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c,
                   int32_t transposed_first, int32_t transposed_second) {
  const auto of_a = a.dimensions(), of_b = b.dimensions();
  const bool first = transposed_first != 0, second = transposed_second == 0;
  const Matrix rows{numbers_of<bfloat16>(a), of_a[first ? 1 : 0], of_a[first ? 0 : 1], first};
  const Matrix columns{numbers_of<bfloat16>(b), of_b[second ? 1 : 0], of_b[second ? 0 : 1], second};
  return told([&] { multiply(pool, rows, columns, numbers_of<bfloat16>(c)); });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
      .Attr<int32_t>("transposed_first").Attr<int32_t>("transposed_second");
}

XLA_FFI_DEFINE_HANDLER(kProduct, product, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_paired_products_bf16", kProduct);
}

}  // namespace tfperf
