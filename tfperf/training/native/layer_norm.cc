// Layer normalization over rows, forward and backward: all that is done with a row is done while it is in the cache.
#include <algorithm>
#include <cmath>
#include <vector>

#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

using Weights = ffi::Buffer<ffi::F32>;

constexpr int64_t kWorthAThread = 1 << 14;  // numbers
constexpr int64_t kBlock = 32;              // rows whose gradients of weights are added up before they join all others

struct Moments {
  float mean, scale;
};

template <typename T>
Moments moments_of(const T* row, int64_t width, float epsilon) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += widened(row[i]);
  const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) {
    const float distance = widened(row[i]) - mean;
    squares += distance * distance;
  }
  return {mean, 1.0f / std::sqrt(squares / width + epsilon)};
}

int64_t parts_of(const ffi::ThreadPool& pool, int64_t rows, int64_t width) {
  return parts_worth(pool, rows * width, kWorthAThread);
}

template <typename T>
void normalize(ffi::ThreadPool& pool, int64_t rows, int64_t width, float epsilon, const T* x, const float* gamma,
               const float* beta, T* y) {
  const int64_t parts = parts_of(pool, rows, width);
  in_parallel(pool, parts, [=](int64_t part) {
    for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
      const T* from = x + row * width;
      T* to = y + row * width;
      const auto [mean, scale] = moments_of(from, width, epsilon);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) narrow((widened(from[i]) - mean) * scale * gamma[i] + beta[i], to + i);
    }
  });
}

// The moments are computed again: two numbers for each row are not worth an output of XLA's.
template <typename T>
void differentiate(ffi::ThreadPool& pool, int64_t rows, int64_t width, float epsilon, const T* dy, const T* x,
                   const float* gamma, T* dx, float* dgamma, float* dbeta) {
  const int64_t parts = parts_of(pool, rows, width);
  std::vector<float> sums(parts * 4 * width);  // for each part: those of all its rows, and of one block
  float* const all = sums.data();
  in_parallel(pool, parts, [=](int64_t part) {
    float* const of_part = all + part * 4 * width;
    float* const to_gamma = of_part + 2 * width;
    float* const to_beta = to_gamma + width;
    const int64_t end = rows * (part + 1) / parts;
    for (int64_t begin = rows * part / parts; begin < end; begin += kBlock) {
      std::fill(to_gamma, to_gamma + 2 * width, 0.0f);
      for (int64_t row = begin; row < std::min(end, begin + kBlock); ++row) {
        const T* upstream = dy + row * width;
        const T* from = x + row * width;
        T* to = dx + row * width;
        const auto [mean, scale] = moments_of(from, width, epsilon);
        float along = 0, level = 0;
#pragma omp simd reduction(+ : along, level)
        for (int64_t i = 0; i < width; ++i) {
          const float up = widened(upstream[i]), normal = (widened(from[i]) - mean) * scale;
          to_gamma[i] += up * normal;
          to_beta[i] += up;
          along += up * gamma[i] * normal;
          level += up * gamma[i];
        }
        along /= width;
        level /= width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
          const float normal = (widened(from[i]) - mean) * scale;
          narrow((widened(upstream[i]) * gamma[i] - level - normal * along) * scale, to + i);
        }
      }
      for (int64_t i = 0; i < 2 * width; ++i) of_part[i] += to_gamma[i];
    }
  });
  std::fill(dgamma, dgamma + width, 0.0f);
  std::fill(dbeta, dbeta + width, 0.0f);
  for (int64_t part = 0; part < parts; ++part) {
    const float* of_part = all + part * 4 * width;
    for (int64_t i = 0; i < width; ++i) dgamma[i] += of_part[i];
    for (int64_t i = 0; i < width; ++i) dbeta[i] += of_part[width + i];
  }
}

template <typename T>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, Weights gamma, Weights beta, ffi::Result<ffi::AnyBuffer> y,
                   float epsilon) {
  const int64_t width = gamma.element_count(), rows = x.element_count() / std::max<int64_t>(1, width);
  return told([&] {
    normalize(pool, rows, width, epsilon, numbers_of<T>(x), gamma.typed_data(), beta.typed_data(), numbers_of<T>(y));
  });
}

template <typename T>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, Weights gamma,
                    ffi::Result<ffi::AnyBuffer> dx, ffi::Result<Weights> dgamma, ffi::Result<Weights> dbeta,
                    float epsilon) {
  const int64_t width = gamma.element_count(), rows = x.element_count() / std::max<int64_t>(1, width);
  return told([&] {
    differentiate(pool, rows, width, epsilon, numbers_of<T>(dy), numbers_of<T>(x), gamma.typed_data(),
                  numbers_of<T>(dx), dgamma->typed_data(), dbeta->typed_data());
  });
}

auto forward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<Weights>().Arg<Weights>()
      .Ret<ffi::AnyBuffer>().Attr<float>("epsilon");
}

auto backward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<Weights>()
      .Ret<ffi::AnyBuffer>().Ret<Weights>().Ret<Weights>().Attr<float>("epsilon");
}

XLA_FFI_DEFINE_HANDLER(kForwardF32, forward<float>, forward_form());
XLA_FFI_DEFINE_HANDLER(kForwardBF16, forward<bfloat16>, forward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardF32, backward<float>, backward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardBF16, backward<bfloat16>, backward_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_layer_norm_f32", kForwardF32) &&
         register_function("tfperf_layer_norm_bf16", kForwardBF16) &&
         register_function("tfperf_layer_norm_gradient_f32", kBackwardF32) &&
         register_function("tfperf_layer_norm_gradient_bf16", kBackwardBF16);
}

}  // namespace tfperf
