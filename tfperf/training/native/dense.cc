// Dense layers in float32: the product with the bias and the ReLU behind it, and the gradient of the kernel.
//
// The second matrix is in panels; of the first one rows are read where they are.
#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "panels.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 18;        // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers
constexpr int64_t kMostSums = 1 << 19;            // of a kernel's gradient, for which threads share the rows

// y (rows, columns) = x kernel + bias, without what is below 0 where there is a ReLU. The bias has numbers for all panels.
void compute_rows(const float* x, int64_t rows, const Panels& kernel, const float* bias, bool relu, float* y) {
  const int64_t inner = kernel.rows, columns = kernel.columns;
  const auto finished = [=](int64_t panel) {
    return [=](Vector<kLanes> sum, int v) {
      sum += load<kLanes>(bias + panel * kColumns + v * kLanes);
      const Vector<kLanes> zeros = {};
      return relu ? (sum < zeros ? zeros : sum) : sum;  // what is no number stays
    };
  };
  for (int64_t i = 0; i < rows; i += kTogether)
    multiply_panels({x + i * inner, inner, 1}, std::min(kTogether, rows - i), kernel, y + i * columns, columns, false, finished);
}

void compute(ffi::ThreadPool& pool, const float* x, int64_t rows, const float* numbers, int64_t inner, int64_t columns,
             const float* bias, bool relu, float* y) {
  static thread_local Buffer of_kernel, of_bias;
  const Panels kernel{of_kernel.of<float>(Panels::size(inner, columns)), inner, columns};
  const int64_t worth = parts_worth(pool, inner * columns, kWorthAThreadToPack);
  const int64_t to_pack = std::max<int64_t>(1, std::min(worth, inner));
  in_parallel(pool, to_pack, [&](int64_t part) {
    pack(numbers, columns, inner * part / to_pack, inner * (part + 1) / to_pack, kernel);
  });
  const int64_t padded = Panels::size(1, columns);
  float* const all = of_bias.of<float>(padded);
  std::fill(std::copy(bias, bias + columns, all), all + padded, 0.0f);
  const int64_t blocks = divided_up(rows, kRowsAtOnce);
  const int64_t parts = std::max<int64_t>(1, std::min(parts_worth(pool, rows * inner * columns, kWorthAThread), blocks));
  in_parallel(pool, parts, [&, all](int64_t part) {
    const int64_t begin = blocks * part / parts * kRowsAtOnce;
    const int64_t end = std::min(blocks * (part + 1) / parts * kRowsAtOnce, rows);
    compute_rows(x + begin * inner, end - begin, kernel, all, relu, y + begin * columns);
  });
  of_kernel.forget_if_large();
}

// dkernel (inner, columns) = x^T dy. Threads share the rows, each with sums of its own; where there are too many of these,
// the longer side of the kernel.
void find_kernel(ffi::ThreadPool& pool, const float* x, const float* dy, int64_t rows, int64_t inner, int64_t columns,
                 float* dkernel) {
  static thread_local Buffer of_sums;
  const int64_t size = inner * columns;
  const int64_t threads = std::min<int64_t>(pool.num_threads(), rows * size / kWorthAThread);
  const bool by_rows = threads * size <= kMostSums, by_columns = !by_rows && columns > inner;
  const int64_t step = by_rows ? 1 : by_columns ? kColumns : kRowsAtOnce, all = by_rows ? rows : by_columns ? columns : inner;
  const int64_t steps = divided_up(all, step), parts = std::max<int64_t>(1, std::min(threads, steps));
  float* const sums = of_sums.of<float>(by_rows ? std::max<int64_t>(1, (parts - 1) * size) : 1);
  in_parallel(pool, parts, [&, sums](int64_t part) {
    const int64_t begin = steps * part / parts * step, count = std::min(steps * (part + 1) / parts * step, all) - begin;
    if (by_rows) {
      float* const to = part > 0 ? sums + (part - 1) * size : dkernel;
      multiply_transposed(x + begin * inner, inner, dy + begin * columns, columns, count, inner, columns, to, columns, false);
    } else if (by_columns) {
      multiply_transposed(x, inner, dy + begin, columns, rows, inner, count, dkernel + begin, columns, false);
    } else {
      multiply_transposed(x + begin, inner, dy, columns, rows, count, columns, dkernel + begin * columns, columns, false);
    }
  });
  if (!by_rows || parts == 1) return;
  in_parallel(pool, parts, [&, sums](int64_t part) {
    for (int64_t other = 0; other < parts - 1; ++other)
#pragma omp simd
      for (int64_t at = size * part / parts; at < size * (part + 1) / parts; ++at) dkernel[at] += sums[other * size + at];
  });
}

ffi::Error computed(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::AnyBuffer bias,
                    ffi::Result<ffi::AnyBuffer> y, int32_t relu) {
  const auto sizes = kernel.dimensions();
  return told([&] {
    compute(pool, numbers_of<float>(x), x.dimensions()[0], numbers_of<float>(kernel), sizes[0], sizes[1],
            numbers_of<float>(bias), relu != 0, numbers_of<float>(y));
  });
}

ffi::Error kernel_gradient(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dkernel) {
  const auto sizes = x.dimensions();
  return told([&] {
    find_kernel(pool, numbers_of<float>(x), numbers_of<float>(dy), sizes[0], sizes[1], dy.dimensions()[1],
                numbers_of<float>(dkernel));
  });
}

XLA_FFI_DEFINE_HANDLER(kForward, computed,
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int32_t>("relu"));
XLA_FFI_DEFINE_HANDLER(kKernelGradient, kernel_gradient,
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_dense_f32", kForward) &&
         register_function("tfperf_dense_kernel_gradient_f32", kKernelGradient);
}

}  // namespace tfperf
