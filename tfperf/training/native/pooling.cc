// Pooling by windows that do not overlap, of the largest number or the mean, and its gradient, each in one pass.
#include <algorithm>

#include "windows.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 15;  // numbers of the input

struct Sizes {
  int64_t height, width, channels, window_height, window_width;

  Window window() const { return {window_height, window_width, row(), channels}; }
  int64_t out_height() const { return height / window_height; }
  int64_t out_width() const { return width / window_width; }
  int64_t row() const { return width * channels; }
  int64_t out_row() const { return out_width() * channels; }
};

// A row of the output, of as many rows of the input as a window has.
template <typename T, template <typename, int> class Pooled>
void pool_row(const Sizes& of, const T* x, T* y) {
  for (int64_t column = 0; column < of.out_width(); ++column) {
    const T* const from = x + column * of.window_width * of.channels;
    T* const to = y + column * of.channels;
    in_registers(of.channels, [=](auto lanes, int64_t at) {
      store<lanes>(Pooled<T, lanes>(of.window(), from + at).numbers, to + at);
    });
  }
}

// The gradients of as many rows of the input as a window has.
template <typename T, template <typename, int> class Pooled>
void spread_row(const Sizes& of, const T* dy, const T* x, T* dx) {
  for (int64_t column = 0; column < of.out_width(); ++column) {
    const int64_t first = column * of.window_width * of.channels;
    const T* const upstream = dy + column * of.channels;
    in_registers(of.channels, [=](auto lanes, int64_t at) {
      Pooled<T, lanes>::spread(of.window(), upstream + at, x + first + at, dx + first + at);
    });
  }
  const int64_t used = of.out_width() * of.window_width * of.channels;
  for (int64_t row = 0; row < of.window_height; ++row) {
    std::fill(dx + row * of.row() + used, dx + (row + 1) * of.row(), T{});  // no window reads these
  }
}

// Does work(out, in, row) for each row of the output: where it begins there and in the input, and its number in its image.
template <typename Work>
ffi::Error for_rows(ffi::ThreadPool& pool, int64_t images, const Sizes& of, const Work& work) {
  const int64_t rows = images * of.out_height(), numbers = images * of.height * of.row();
  const int64_t parts = parts_worth(pool, numbers, kWorthAThread);
  return told([&] {
    in_parallel(pool, parts, [=](int64_t part) {
      for (int64_t number = rows * part / parts; number < rows * (part + 1) / parts; ++number) {
        const int64_t image = number / of.out_height(), row = number % of.out_height();
        work(number * of.out_row(), (image * of.height + row * of.window_height) * of.row(), row);
      }
    });
  });
}

// From x (images, height, width, channels) to y (images, out_height, out_width, channels).
template <typename T, template <typename, int> class Pooled>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y, int32_t window_height,
                   int32_t window_width) {
  const auto in = x.dimensions();
  const Sizes of{in[1], in[2], in[3], window_height, window_width};
  const T* const from = numbers_of<T>(x);
  T* const to = numbers_of<T>(y);
  return for_rows(pool, in[0], of, [=](int64_t out, int64_t first, int64_t) {
    pool_row<T, Pooled>(of, from + first, to + out);
  });
}

// From dy, as y, and x to dx, as x.
template <typename T, template <typename, int> class Pooled>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dx,
                    int32_t window_height, int32_t window_width) {
  const auto in = x.dimensions();
  const Sizes of{in[1], in[2], in[3], window_height, window_width};
  const T *const upstream = numbers_of<T>(dy), *const from = numbers_of<T>(x);
  T* const to = numbers_of<T>(dx);
  return for_rows(pool, in[0], of, [=](int64_t out, int64_t first, int64_t row) {
    spread_row<T, Pooled>(of, upstream + out, from + first, to + first);
    if (row + 1 < of.out_height()) return;
    const int64_t left = of.height - of.out_height() * of.window_height;  // rows that no window reads
    T* const behind = to + first + of.window_height * of.row();
    std::fill(behind, behind + left * of.row(), T{});
  });
}

auto forward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
      .Attr<int32_t>("window_height").Attr<int32_t>("window_width");
}

auto backward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
      .Attr<int32_t>("window_height").Attr<int32_t>("window_width");
}

constexpr auto kLargest = forward<float, Largest>, kMean = forward<float, Mean>;
constexpr auto kLargestBF16 = forward<bfloat16, Largest>, kMeanBF16 = forward<bfloat16, Mean>;
constexpr auto kOfLargest = backward<float, Largest>, kOfMean = backward<float, Mean>;
constexpr auto kOfLargestBF16 = backward<bfloat16, Largest>, kOfMeanBF16 = backward<bfloat16, Mean>;

XLA_FFI_DEFINE_HANDLER(kForwardLargestF32, kLargest, forward_form());
XLA_FFI_DEFINE_HANDLER(kForwardLargestBF16, kLargestBF16, forward_form());
XLA_FFI_DEFINE_HANDLER(kForwardMeanF32, kMean, forward_form());
XLA_FFI_DEFINE_HANDLER(kForwardMeanBF16, kMeanBF16, forward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardLargestF32, kOfLargest, backward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardLargestBF16, kOfLargestBF16, backward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardMeanF32, kOfMean, backward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardMeanBF16, kOfMeanBF16, backward_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_max_pooling_f32", kForwardLargestF32) &&
         register_function("tfperf_max_pooling_bf16", kForwardLargestBF16) &&
         register_function("tfperf_mean_pooling_f32", kForwardMeanF32) &&
         register_function("tfperf_mean_pooling_bf16", kForwardMeanBF16) &&
         register_function("tfperf_max_pooling_gradient_f32", kBackwardLargestF32) &&
         register_function("tfperf_max_pooling_gradient_bf16", kBackwardLargestBF16) &&
         register_function("tfperf_mean_pooling_gradient_f32", kBackwardMeanF32) &&
         register_function("tfperf_mean_pooling_gradient_bf16", kBackwardMeanBF16);
}

}  // namespace tfperf
