// The gradients of the kernel and the bias of a convolution of few channels, and of the ReLU behind it, in one pass over
// the upstream gradients.
#include <algorithm>
#include <vector>

#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 14;  // numbers of the output

struct Sizes {
  int64_t height, width, channels, out_height, out_width, filters, kernel_height, kernel_width;
  int64_t stride_down, stride_along, above, left;

  // Weights in a row of the kernel, for each filter
  int64_t taps() const { return kernel_width * channels; }

  // Numbers of a row of the input with what the kernel reads beside it
  int64_t padded() const { return std::max(left + width, (out_width - 1) * stride_along + kernel_width) * channels; }
};

// What a row of the upstream gradients adds to the gradients of the bias and of kTaps neighbours in each of kRows rows of
// the kernel, by N filters: sums over columns, which stay in registers.
template <typename T, int kRows, int kTaps, int N>
void add_up(const Sizes& of, const T* up, const T* y, const float* x, float* dkernel, float* dbias) {
  Vector<N> sums[kRows][kTaps] = {}, level = {};
  const int64_t pitch = of.padded(), step = of.stride_along * of.channels;
  for (int64_t column = 0; column < of.out_width; ++column) {
    Vector<N> gradients = load<N>(up + column * of.filters);
    if (y != nullptr) gradients = load<N>(y + column * of.filters) > 0.0f ? gradients : Vector<N>{};
    level += gradients;
    const float* const from = x + column * step;
#pragma GCC unroll 3
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 9
      for (int tap = 0; tap < kTaps; ++tap) sums[row][tap] += gradients * from[row * pitch + tap];
    }
  }
#pragma GCC unroll 3
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 9
    for (int tap = 0; tap < kTaps; ++tap) {
      float* const to = dkernel + (row * of.taps() + tap) * of.filters;
      store<N>(load<N>(to) + sums[row][tap], to);
    }
  }
  if (dbias != nullptr) store<N>(load<N>(dbias) + level, dbias);
}

// The same for whole rows of the kernel: its weights for all channels are neighbours, as the numbers of the input are.
template <typename T, int kRows, int N>
void add_up_rows(const Sizes& of, const T* up, const T* y, const float* x, float* dkernel, float* dbias) {
  constexpr int kMost = kRows == 1 || kLanes == 16 ? 9 : 3;  // sums that there are registers for
  int64_t tap = 0;
  const auto next = [&](auto taps) {
    add_up<T, kRows, taps, N>(of, up, y, x + tap, dkernel + tap * of.filters, tap == 0 ? dbias : nullptr);
    tap += taps;
  };
  while (tap + kMost <= of.taps()) next(std::integral_constant<int, kMost>());
  while (tap + 3 <= of.taps()) next(std::integral_constant<int, 3>());
  while (tap < of.taps()) next(std::integral_constant<int, 1>());
}

// The same for the whole kernel; x are as many rows of the input as it has.
template <typename T>
void add_up_all(const Sizes& of, const T* up, const T* y, const float* x, float* dkernel, float* dbias) {
  in_registers(of.filters, [=](auto lanes, int64_t at) {
    int64_t row = 0;
    const auto next = [&](auto rows) {
      float* const to = dkernel + row * of.taps() * of.filters + at;
      add_up_rows<T, rows, lanes>(of, up + at, y == nullptr ? y : y + at, x + row * of.padded(), to,
                                  row == 0 ? dbias + at : nullptr);
      row += rows;
    };
    while (row + 3 <= of.kernel_height) next(std::integral_constant<int, 3>());
    while (row < of.kernel_height) next(std::integral_constant<int, 1>());
  });
}

// From dy and y (images, out_height, out_width, filters) and x (images, height, width, channels) to the gradients of
// the kernel (kernel_height, kernel_width, channels, filters) and of the bias. Where y is null, there is no ReLU.
template <typename T>
void differentiate(ffi::ThreadPool& pool, int64_t images, const Sizes& of, const T* dy, const T* y, const T* x,
                   T* dkernel, T* dbias) {
  const int64_t rows = images * of.out_height, row = of.width * of.channels, out_row = of.out_width * of.filters;
  const int64_t weights = of.kernel_height * of.taps() * of.filters, all = weights + of.filters;
  const int64_t parts = std::clamp<int64_t>(rows * out_row / kWorthAThread, 1, std::max<int64_t>(1, pool.num_threads()));
  std::vector<float> sums(parts * all);
  float* const all_sums = sums.data();
  in_parallel(pool, parts, [=](int64_t part) {
    float* const to = all_sums + part * all;
    std::vector<float> from(of.kernel_height * of.padded());
    for (int64_t number = rows * part / parts; number < rows * (part + 1) / parts; ++number) {
      const int64_t image = number / of.out_height, top = (number % of.out_height) * of.stride_down - of.above;
      for (int64_t tap = 0; tap < of.kernel_height; ++tap) {
        float* const place = from.data() + tap * of.padded() + of.left * of.channels;
        const bool inside = 0 <= top + tap && top + tap < of.height;
        const T* const given = inside ? x + (image * of.height + top + tap) * row : x;
        for (int64_t i = 0; i < row; ++i) place[i] = inside ? widened(given[i]) : 0.0f;
      }
      add_up_all(of, dy + number * out_row, y == nullptr ? y : y + number * out_row, from.data(), to, to + weights);
    }
  });
  for (int64_t i = 0; i < all; ++i) {
    float sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += all_sums[part * all + i];
    narrow(sum, i < weights ? dkernel + i : dbias + (i - weights));
  }
}

template <typename T>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer y, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                    ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> dkernel, ffi::Result<ffi::AnyBuffer> dbias,
                    int32_t relu, int32_t stride_down, int32_t stride_along, int32_t above, int32_t left) {
  const auto out = dy.dimensions(), in = x.dimensions(), taps = kernel.dimensions();
  const Sizes sizes{in[1],   in[2],       in[3],        out[1], out[2], out[3], taps[0],
                    taps[1], stride_down, stride_along, above,  left};
  differentiate(pool, in[0], sizes, numbers_of<T>(dy), relu ? numbers_of<T>(y) : nullptr, numbers_of<T>(x),
                numbers_of<T>(dkernel), numbers_of<T>(dbias));
  return ffi::Error::Success();
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int32_t>("relu")
      .Attr<int32_t>("stride_down").Attr<int32_t>("stride_along").Attr<int32_t>("above").Attr<int32_t>("left");
}

XLA_FFI_DEFINE_HANDLER(kF32, backward<float>, form());
XLA_FFI_DEFINE_HANDLER(kBF16, backward<bfloat16>, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_few_channels_gradients_f32", kF32) &&
         register_function("tfperf_few_channels_gradients_bf16", kBF16);
}

}  // namespace tfperf
