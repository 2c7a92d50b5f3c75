// Batch normalization over rows of channels, in two passes, and its gradients, in two.
#include <algorithm>
#include <cmath>
#include <vector>

#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

using Rows = ffi::Buffer<ffi::F32>;
using Channels = ffi::Buffer<ffi::F32>;

constexpr int64_t kWorthAThread = 1 << 15;  // numbers
constexpr int64_t kBlock = 64;              // rows whose sums are added up before they join all others

// Adds up two numbers of each channel over rows, and returns the sums: of the first, and behind them of the second. Threads
// share the rows. add(row, first, second) adds those of a row to what is in float32 for some rows.
template <typename Add>
std::vector<double> added_up(ffi::ThreadPool& pool, int64_t rows, int64_t width, const Add& add) {
  const int64_t parts = parts_worth(pool, rows * width, kWorthAThread);
  std::vector<double> sums(parts * 2 * width);
  in_parallel(pool, parts, [&](int64_t part) {
    std::vector<float> block(2 * width);
    double* const all = sums.data() + part * 2 * width;
    const int64_t end = rows * (part + 1) / parts;
    for (int64_t first = rows * part / parts; first < end; first += kBlock) {
      std::fill(block.begin(), block.end(), 0.0f);
      for (int64_t row = first; row < std::min(first + kBlock, end); ++row) add(row, block.data(), block.data() + width);
      for (int64_t i = 0; i < 2 * width; ++i) all[i] += block[i];
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < 2 * width; ++i) sums[i] += sums[part * 2 * width + i];
  sums.resize(2 * width);
  return sums;
}

// Does work(row) for all rows, which threads share.
template <typename Work>
void for_rows(ffi::ThreadPool& pool, int64_t rows, int64_t width, const Work& work) {
  const int64_t parts = parts_worth(pool, rows * width, kWorthAThread);
  in_parallel(pool, parts, [&](int64_t part) {
    for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) work(row);
  });
}

// Squares are added up as they are from the mean of the first rows, which is near that of all.
void moments_of(ffi::ThreadPool& pool, int64_t rows, int64_t width, const float* x, float* mean, float* variance) {
  const int64_t some = std::min(rows, kBlock);
  std::vector<float> near(width);
  for (int64_t row = 0; row < some; ++row)
    for (int64_t i = 0; i < width; ++i) near[i] += x[row * width + i] / some;
  const float* const level = near.data();
  const std::vector<double> sums = added_up(pool, rows, width, [=](int64_t row, float* distances, float* squares) {
    const float* const from = x + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float distance = from[i] - level[i];
      distances[i] += distance;
      squares[i] += distance * distance;
    }
  });
  for (int64_t i = 0; i < width; ++i) {
    const double beyond = sums[i] / rows;
    mean[i] = level[i] + beyond;
    variance[i] = std::max(0.0, sums[width + i] / rows - beyond * beyond);
  }
}

void normalize(ffi::ThreadPool& pool, int64_t rows, int64_t width, const float* x, const float* gamma, const float* beta,
               float epsilon, float* y, float* mean, float* variance) {
  moments_of(pool, rows, width, x, mean, variance);
  std::vector<float> steepness(width);
  for (int64_t i = 0; i < width; ++i) steepness[i] = gamma[i] / std::sqrt(variance[i] + epsilon);
  const float* const steep = steepness.data();
  for_rows(pool, rows, width, [=](int64_t row) {
    const float* const from = x + row * width;
    float* const to = y + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] = (from[i] - mean[i]) * steep[i] + beta[i];
  });
}

void differentiate(ffi::ThreadPool& pool, int64_t rows, int64_t width, const float* dy, const float* x, const float* gamma,
                   const float* mean, const float* variance, float epsilon, float* dx, float* dgamma, float* dbeta) {
  const std::vector<double> sums = added_up(pool, rows, width, [=](int64_t row, float* level, float* along) {
    const float *const up = dy + row * width, *const from = x + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      level[i] += up[i];
      along[i] += up[i] * (from[i] - mean[i]);
    }
  });
  std::vector<float> shares(3 * width);  // of dy, of what is taken off it, and of the distance from the mean
  float *const steep = shares.data(), *const level = steep + width, *const along = level + width;
  for (int64_t i = 0; i < width; ++i) {
    const double scale = 1 / std::sqrt(static_cast<double>(variance[i]) + epsilon);
    dbeta[i] = sums[i];
    dgamma[i] = sums[width + i] * scale;
    steep[i] = gamma[i] * scale;
    level[i] = sums[i] / rows;
    along[i] = sums[width + i] / rows * scale * scale;
  }
  for_rows(pool, rows, width, [=](int64_t row) {
    const float *const up = dy + row * width, *const from = x + row * width;
    float* const to = dx + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] = steep[i] * (up[i] - level[i] - (from[i] - mean[i]) * along[i]);
  });
}

ffi::Error forward(ffi::ThreadPool pool, Rows x, Channels gamma, Channels beta, ffi::Result<Rows> y,
                   ffi::Result<Channels> mean, ffi::Result<Channels> variance, float epsilon) {
  return told([&] {
    const auto sizes = x.dimensions();
    normalize(pool, sizes[0], sizes[1], x.typed_data(), gamma.typed_data(), beta.typed_data(), epsilon, y->typed_data(),
              mean->typed_data(), variance->typed_data());
  });
}

ffi::Error backward(ffi::ThreadPool pool, Rows dy, Rows x, Channels gamma, Channels mean, Channels variance,
                    ffi::Result<Rows> dx, ffi::Result<Channels> dgamma, ffi::Result<Channels> dbeta, float epsilon) {
  return told([&] {
    const auto sizes = x.dimensions();
    differentiate(pool, sizes[0], sizes[1], dy.typed_data(), x.typed_data(), gamma.typed_data(), mean.typed_data(),
                  variance.typed_data(), epsilon, dx->typed_data(), dgamma->typed_data(), dbeta->typed_data());
  });
}

auto forward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Rows>().Arg<Channels>().Arg<Channels>().Ret<Rows>().Ret<Channels>()
      .Ret<Channels>().Attr<float>("epsilon");
}

auto backward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Rows>().Arg<Rows>().Arg<Channels>().Arg<Channels>().Arg<Channels>()
      .Ret<Rows>().Ret<Channels>().Ret<Channels>().Attr<float>("epsilon");
}

XLA_FFI_DEFINE_HANDLER(kForward, forward, forward_form());
XLA_FFI_DEFINE_HANDLER(kGradients, backward, backward_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_batch_norm_f32", kForward) &&
         register_function("tfperf_batch_norm_gradients_f32", kGradients);
}

}  // namespace tfperf
