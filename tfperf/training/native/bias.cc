// The gradient of a bias: sums of rows of numbers, in float32.
#include <algorithm>

#include "buffer.h"
#include "numbers.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 15;  // numbers

// Adds `count` rows to sums.
template <typename T>
void add_up(const T* rows, int64_t count, int64_t columns, float* sums) {
  for (; count >= 4; count -= 4, rows += 4 * columns)
    in_registers(columns, [&](auto lanes, int64_t at) {
      const T* const from = rows + at;
      const Vector<lanes> first = load<lanes>(from) + load<lanes>(from + columns);
      const Vector<lanes> second = load<lanes>(from + 2 * columns) + load<lanes>(from + 3 * columns);
      store<lanes>(load<lanes>(sums + at) + (first + second), sums + at);
    });
  for (; count > 0; --count, rows += columns)
    in_registers(columns, [&](auto lanes, int64_t at) {
      store<lanes>(load<lanes>(sums + at) + load<lanes>(rows + at), sums + at);
    });
}

// From rows (count, columns) to their sums (columns). Threads share the rows, each with sums of its own.
template <typename T>
void compute(ffi::ThreadPool& pool, const T* rows, int64_t count, int64_t columns, T* result) {
  static thread_local Buffer of_sums;
  const int64_t parts = std::max<int64_t>(1, std::min(parts_worth(pool, count * columns, kWorthAThread), count));
  float* const sums = of_sums.of<float>(parts * columns);
  in_parallel(pool, parts, [=](int64_t part) {
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    std::fill_n(sums + part * columns, columns, 0.0f);
    add_up(rows + begin * columns, end - begin, columns, sums + part * columns);
  });
  for (int64_t part = 1; part < parts; ++part) add_up(sums + part * columns, 1, columns, sums);
  for (int64_t at = 0; at < columns; ++at) narrow(sums[at], result + at);
  of_sums.forget_if_large();
}

template <typename T>
ffi::Error computed(ffi::ThreadPool pool, ffi::AnyBuffer rows, ffi::Result<ffi::AnyBuffer> sums) {
  const auto sizes = rows.dimensions();
  return told([&] { compute(pool, numbers_of<T>(rows), sizes[0], sizes[1], numbers_of<T>(sums)); });
}

auto form() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(); }

XLA_FFI_DEFINE_HANDLER(kSumF32, computed<float>, form());
XLA_FFI_DEFINE_HANDLER(kSumBF16, computed<bfloat16>, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_bias_gradient_f32", kSumF32) &&
         register_function("tfperf_bias_gradient_bf16", kSumBF16);
}

}  // namespace tfperf
