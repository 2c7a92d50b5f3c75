// Max pooling by windows that do not overlap, and its gradient, each in one pass.
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
template <typename T>
void pool_row(const Sizes& of, const T* x, T* y) {
  for (int64_t column = 0; column < of.out_width(); ++column) {
    const T* const from = x + column * of.window_width * of.channels;
    T* const to = y + column * of.channels;
    in_registers(of.channels, [=](auto lanes, int64_t at) {
      store<lanes>(Largest<T, lanes>(of.window(), from + at).numbers, to + at);
    });
  }
}

// The gradients of as many rows of the input as a window has.
template <typename T>
void spread_row(const Sizes& of, const T* dy, const T* x, T* dx) {
  for (int64_t column = 0; column < of.out_width(); ++column) {
    const int64_t first = column * of.window_width * of.channels;
    const T* const upstream = dy + column * of.channels;
    in_registers(of.channels, [=](auto lanes, int64_t at) {
      spread<T, lanes>(of.window(), upstream + at, Largest<T, lanes>(of.window(), x + first + at).places, dx + first + at);
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
template <typename T>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y, int32_t window_height,
                   int32_t window_width) {
  const auto in = x.dimensions();
  const Sizes of{in[1], in[2], in[3], window_height, window_width};
  const T* const from = numbers_of<T>(x);
  T* const to = numbers_of<T>(y);
  return for_rows(pool, in[0], of, [=](int64_t out, int64_t first, int64_t) { pool_row(of, from + first, to + out); });
}

// From dy, as y, and x to dx, as x.
template <typename T>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dx,
                    int32_t window_height, int32_t window_width) {
  const auto in = x.dimensions();
  const Sizes of{in[1], in[2], in[3], window_height, window_width};
  const T *const upstream = numbers_of<T>(dy), *const from = numbers_of<T>(x);
  T* const to = numbers_of<T>(dx);
  return for_rows(pool, in[0], of, [=](int64_t out, int64_t first, int64_t row) {
    spread_row(of, upstream + out, from + first, to + first);
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

XLA_FFI_DEFINE_HANDLER(kForwardF32, forward<float>, forward_form());
XLA_FFI_DEFINE_HANDLER(kForwardBF16, forward<bfloat16>, forward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardF32, backward<float>, backward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardBF16, backward<bfloat16>, backward_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_max_pooling_f32", kForwardF32) &&
         register_function("tfperf_max_pooling_bf16", kForwardBF16) &&
         register_function("tfperf_max_pooling_gradient_f32", kBackwardF32) &&
         register_function("tfperf_max_pooling_gradient_bf16", kBackwardBF16);
}

}  // namespace tfperf
