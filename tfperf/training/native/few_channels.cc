// Convolutions of few channels: with a bias, a ReLU and pooling in one pass, and so are the gradients of kernel and bias.
// Without pooling, windows have one place.
#include <algorithm>
#include <vector>

#include "windows.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 14;  // numbers that are convolved
constexpr int kColumns = 8;                 // of a row, which are convolved together

struct Sizes {
  int64_t images, height, width, channels, kernel_height, kernel_width, filters;
  int64_t stride_down, stride_along, above, left;
  int64_t convolved_height, convolved_width, window_height, window_width;

  int64_t out_height() const { return convolved_height / window_height; }
  int64_t out_width() const { return convolved_width / window_width; }
  int64_t out_rows() const { return images * out_height(); }
  int64_t out_row() const { return out_width() * filters; }
  int64_t convolved_row() const { return convolved_width * filters; }
  Window window() const { return {window_height, window_width, convolved_row(), filters}; }

  // Weights in a row of the kernel, for each filter, and all weights
  int64_t taps() const { return kernel_width * channels; }
  int64_t weights() const { return kernel_height * taps() * filters; }

  // Numbers of a row of the input with what the kernel reads beside it
  int64_t padded() const {
    return std::max(left + width, (convolved_width - 1) * stride_along + kernel_width) * channels;
  }

  int64_t parts(const ffi::ThreadPool& pool) const {
    return parts_worth(pool, images * convolved_height * convolved_row(), kWorthAThread);
  }
};

// The rows of the input that one convolved row is made of, with zeros beside them.
template <typename T>
void read_rows(const Sizes& of, const T* x, int64_t image, int64_t convolved, float* to) {
  const int64_t top = convolved * of.stride_down - of.above, row = of.width * of.channels;
  for (int64_t tap = 0; tap < of.kernel_height; ++tap) {
    float* const place = to + tap * of.padded() + of.left * of.channels;
    const bool inside = 0 <= top + tap && top + tap < of.height;
    const T* const given = inside ? x + (image * of.height + top + tap) * row : x;
    for (int64_t i = 0; i < row; ++i) place[i] = inside ? widened(given[i]) : 0.0f;
  }
}

// kCount neighbours of a convolved row, by N filters; x is what the kernel reads for the first.
template <typename T, int kCount, int N>
void convolve(const Sizes& of, const float* x, const float* kernel, const float* bias, T* y) {
  Vector<N> sums[kCount];
#pragma GCC unroll 8
  for (int one = 0; one < kCount; ++one) sums[one] = load<N>(bias);
  const int64_t step = of.stride_along * of.channels;
  for (int64_t row = 0; row < of.kernel_height; ++row) {
    const float* const from = x + row * of.padded();
    for (int64_t tap = 0; tap < of.taps(); ++tap, kernel += of.filters) {
      const Vector<N> weights = load<N>(kernel);
#pragma GCC unroll 8
      for (int one = 0; one < kCount; ++one) sums[one] += weights * from[one * step + tap];
    }
  }
#pragma GCC unroll 8
  for (int one = 0; one < kCount; ++one) store<N>(sums[one], y + one * of.filters);
}

// A convolved row; x are as many rows of the input as the kernel has.
template <typename T>
void convolve_row(const Sizes& of, const float* x, const float* kernel, const float* bias, T* y) {
  const int64_t step = of.stride_along * of.channels, width = of.convolved_width;
  in_registers(of.filters, [=](auto lanes, int64_t at) {
    const auto convolve_at = [=](auto count, int64_t column) {
      convolve<T, count, lanes>(of, x + column * step, kernel + at, bias + at, y + column * of.filters + at);
    };
    int64_t column = 0;
    for (; column + kColumns <= width; column += kColumns)
      convolve_at(std::integral_constant<int, kColumns>(), column);
    if (column == width) return;
    if (column > 0)  // some of them once more
      convolve_at(std::integral_constant<int, kColumns>(), width - kColumns);
    else
      for (; column < width; ++column) convolve_at(std::integral_constant<int, 1>(), column);
  });
}

// From convolved rows, as many as a window has, a row of the result and of the places.
template <typename T, template <typename, int> class Pooled>
void pool_row(const Sizes& of, const T* convolved, bool relu, T* y, uint8_t* places) {
  for (int64_t column = 0; column < of.out_width(); ++column) {
    const T* const first = convolved + column * of.window_width * of.filters;
    const int64_t to = column * of.filters;
    in_registers(of.filters, [=](auto lanes, int64_t at) {
      const Pooled<T, lanes> pooled(of.window(), first + at, relu);
      store<lanes>(pooled.numbers, y + to + at);
      const auto bytes = bytes_of<lanes>(pooled.places);
      std::memcpy(places + to + at, &bytes, sizeof bytes);
    });
  }
}

// From x (images, height, width, channels), a kernel (kernel_height, kernel_width, channels, filters) and a bias to y
// (images, out_height, out_width, filters), and what `Pooled` keeps of each window.
template <typename T, template <typename, int> class Pooled>
void compute(ffi::ThreadPool& pool, const Sizes& of, const T* x, const T* kernel, const T* bias, bool relu, T* y,
             uint8_t* places) {
  std::vector<float> wide(of.weights() + of.filters);
  for (int64_t i = 0; i < of.weights(); ++i) wide[i] = widened(kernel[i]);
  for (int64_t i = 0; i < of.filters; ++i) wide[of.weights() + i] = widened(bias[i]);
  const float* const wide_kernel = wide.data();
  const int64_t parts = of.parts(pool);
  in_parallel(pool, parts, [=](int64_t part) {
    std::vector<float> from(of.kernel_height * of.padded());
    std::vector<T> convolved(of.window_height * of.convolved_row());
    for (int64_t number = of.out_rows() * part / parts; number < of.out_rows() * (part + 1) / parts; ++number) {
      const int64_t image = number / of.out_height(), first = number % of.out_height() * of.window_height;
      for (int64_t row = 0; row < of.window_height; ++row) {
        read_rows(of, x, image, first + row, from.data());
        T* const to = convolved.data() + row * of.convolved_row();
        convolve_row(of, from.data(), wide_kernel, wide_kernel + of.weights(), to);
      }
      pool_row<T, Pooled>(of, convolved.data(), relu, y + number * of.out_row(), places + number * of.out_row());
    }
  });
}

// What a convolved row's gradients add to the gradients of the bias and of kTaps neighbours in each of kRows rows of the
// kernel, by N filters: sums over columns, which stay in registers.
template <typename T, int kRows, int kTaps, int N>
void add_up(const Sizes& of, const T* up, const float* x, float* dkernel, float* dbias) {
  Vector<N> sums[kRows][kTaps] = {}, level = {};
  const int64_t pitch = of.padded(), step = of.stride_along * of.channels;
  for (int64_t column = 0; column < of.convolved_width; ++column) {
    const Vector<N> gradients = load<N>(up + column * of.filters);
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
void add_up_rows(const Sizes& of, const T* up, const float* x, float* dkernel, float* dbias) {
  constexpr int kMost = kRows == 1 || kLanes == 16 ? 9 : 3;  // sums that there are registers for
  int64_t tap = 0;
  const auto next = [&](auto taps) {
    add_up<T, kRows, taps, N>(of, up, x + tap, dkernel + tap * of.filters, tap == 0 ? dbias : nullptr);
    tap += taps;
  };
  while (tap + kMost <= of.taps()) next(std::integral_constant<int, kMost>());
  while (tap + 3 <= of.taps()) next(std::integral_constant<int, 3>());
  while (tap < of.taps()) next(std::integral_constant<int, 1>());
}

// The same for the whole kernel; x are as many rows of the input as it has.
template <typename T>
void add_up_all(const Sizes& of, const T* up, const float* x, float* dkernel, float* dbias) {
  in_registers(of.filters, [=](auto lanes, int64_t at) {
    int64_t row = 0;
    const auto next = [&](auto rows) {
      float* const to = dkernel + row * of.taps() * of.filters + at;
      add_up_rows<T, rows, lanes>(of, up + at, x + row * of.padded(), to, row == 0 ? dbias + at : nullptr);
      row += rows;
    };
    while (row + 3 <= of.kernel_height) next(std::integral_constant<int, 3>());
    while (row < of.kernel_height) next(std::integral_constant<int, 1>());
  });
}

// The places of N numbers of the result: as `compute` wrote them, or told from the result itself where nothing was pooled,
// which without a ReLU is not looked at.
template <int N>
typename Neighbours<N>::Bits places_of(const uint8_t* places, bool) {
  typename Neighbours<N>::Bytes bytes;
  std::memcpy(&bytes, places, sizeof bytes);
  return bits_of<N>(bytes);
}

template <int N, typename T>
typename Neighbours<N>::Bits places_of(const T* y, bool relu) {
  using Bits = typename Neighbours<N>::Bits;
  return relu ? (load<N>(y) > 0.0f ? Bits{} : Bits{} + Largest<T, N>::kNowhere) : Bits{};
}

// The gradients of convolved rows, as many as a window has: those of a row of the result at their places, else zeros.
template <typename T, template <typename, int> class Pooled, typename Places>
void spread_row(const Sizes& of, const T* dy, const Places* places, bool relu, T* convolved) {
  for (int64_t column = 0; column < of.out_width(); ++column) {
    const int64_t from = column * of.filters;
    T* const first = convolved + column * of.window_width * of.filters;
    in_registers(of.filters, [=](auto lanes, int64_t at) {
      Pooled<T, lanes>::spread(of.window(), dy + from + at, places_of<lanes>(places + from + at, relu), first + at);
    });
  }
}

// From dy and places, or the result, (images, out_height, out_width, filters) and x to the gradients of the kernel and of
// the bias.
template <typename T, template <typename, int> class Pooled, typename Places>
void differentiate(ffi::ThreadPool& pool, const Sizes& of, const T* dy, const Places* places, bool relu, const T* x,
                   T* dkernel, T* dbias) {
  const int64_t all = of.weights() + of.filters, parts = of.parts(pool);
  std::vector<float> sums(parts * all);
  float* const all_sums = sums.data();
  in_parallel(pool, parts, [=](int64_t part) {
    float* const to = all_sums + part * all;
    std::vector<float> from(of.kernel_height * of.padded());
    std::vector<T> convolved(of.window_height * of.convolved_row());  // places beside all windows stay zeros
    for (int64_t number = of.out_rows() * part / parts; number < of.out_rows() * (part + 1) / parts; ++number) {
      const int64_t image = number / of.out_height(), first = number % of.out_height() * of.window_height;
      spread_row<T, Pooled>(of, dy + number * of.out_row(), places + number * of.out_row(), relu, convolved.data());
      for (int64_t row = 0; row < of.window_height; ++row) {
        read_rows(of, x, image, first + row, from.data());
        add_up_all(of, convolved.data() + row * of.convolved_row(), from.data(), to, to + of.weights());
      }
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < all; ++i) sums[i] += sums[part * all + i];
  for (int64_t i = 0; i < all; ++i) narrow(sums[i], i < of.weights() ? dkernel + i : dbias + (i - of.weights()));
}

Sizes sizes_of(ffi::AnyBuffer x, ffi::AnyBuffer kernel, int32_t stride_down, int32_t stride_along, int32_t above,
               int32_t left, int32_t convolved_height, int32_t convolved_width, int32_t window_height,
               int32_t window_width) {
  const auto in = x.dimensions(), taps = kernel.dimensions();
  return {in[0],       in[1],        in[2], in[3], taps[0],          taps[1],         taps[3],
          stride_down, stride_along, above, left,  convolved_height, convolved_width, window_height,
          window_width};
}

template <typename T, template <typename, int> class Pooled, typename... Numbers>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::AnyBuffer bias,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> places, int32_t relu, Numbers... numbers) {
  return told([&] {
    compute<T, Pooled>(pool, sizes_of(x, kernel, numbers...), numbers_of<T>(x), numbers_of<T>(kernel),
                       numbers_of<T>(bias), relu != 0, numbers_of<T>(y), numbers_of<uint8_t>(places));
  });
}

template <typename T, template <typename, int> class Pooled, typename Places, typename... Numbers>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer places, ffi::AnyBuffer x,
                    ffi::AnyBuffer kernel, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> dkernel,
                    ffi::Result<ffi::AnyBuffer> dbias, int32_t relu, Numbers... numbers) {
  return told([&] {
    differentiate<T, Pooled>(pool, sizes_of(x, kernel, numbers...), numbers_of<T>(dy), numbers_of<Places>(places),
                             relu != 0, numbers_of<T>(x), numbers_of<T>(dkernel), numbers_of<T>(dbias));
  });
}

template <typename Binding>
auto with_settings(Binding binding) {
  return std::move(binding).template Attr<int32_t>("relu").template Attr<int32_t>("stride_down")
      .template Attr<int32_t>("stride_along").template Attr<int32_t>("above").template Attr<int32_t>("left")
      .template Attr<int32_t>("convolved_height").template Attr<int32_t>("convolved_width")
      .template Attr<int32_t>("window_height").template Attr<int32_t>("window_width");
}

auto forward_form() {
  return with_settings(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
}

auto backward_form() {
  return with_settings(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());
}

using Number = int32_t;

template <typename T, template <typename, int> class Pooled>
constexpr auto kForward = forward<T, Pooled, Number, Number, Number, Number, Number, Number, Number, Number>;

template <typename T, template <typename, int> class Pooled, typename Places = uint8_t>
constexpr auto kBackward = backward<T, Pooled, Places, Number, Number, Number, Number, Number, Number, Number, Number>;

XLA_FFI_DEFINE_HANDLER(kMaxF32, (kForward<float, Largest>), forward_form());
XLA_FFI_DEFINE_HANDLER(kMaxBF16, (kForward<bfloat16, Largest>), forward_form());
XLA_FFI_DEFINE_HANDLER(kMeanF32, (kForward<float, Mean>), forward_form());
XLA_FFI_DEFINE_HANDLER(kMeanBF16, (kForward<bfloat16, Mean>), forward_form());
XLA_FFI_DEFINE_HANDLER(kGradientsF32, (kBackward<float, Largest, float>), backward_form());
XLA_FFI_DEFINE_HANDLER(kGradientsBF16, (kBackward<bfloat16, Largest, bfloat16>), backward_form());
XLA_FFI_DEFINE_HANDLER(kGradientsOfMaxF32, (kBackward<float, Largest>), backward_form());
XLA_FFI_DEFINE_HANDLER(kGradientsOfMaxBF16, (kBackward<bfloat16, Largest>), backward_form());
XLA_FFI_DEFINE_HANDLER(kGradientsOfMeanF32, (kBackward<float, Mean>), backward_form());
XLA_FFI_DEFINE_HANDLER(kGradientsOfMeanBF16, (kBackward<bfloat16, Mean>), backward_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_few_channels_max_f32", kMaxF32) &&
         register_function("tfperf_few_channels_max_bf16", kMaxBF16) &&
         register_function("tfperf_few_channels_mean_f32", kMeanF32) &&
         register_function("tfperf_few_channels_mean_bf16", kMeanBF16) &&
         register_function("tfperf_few_channels_gradients_f32", kGradientsF32) &&
         register_function("tfperf_few_channels_gradients_bf16", kGradientsBF16) &&
         register_function("tfperf_few_channels_max_gradients_f32", kGradientsOfMaxF32) &&
         register_function("tfperf_few_channels_max_gradients_bf16", kGradientsOfMaxBF16) &&
         register_function("tfperf_few_channels_mean_gradients_f32", kGradientsOfMeanF32) &&
         register_function("tfperf_few_channels_mean_gradients_bf16", kGradientsOfMeanBF16);
}

}  // namespace tfperf
