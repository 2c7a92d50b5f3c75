// Both gradients of a depthwise convolution in one pass: a row of the upstream gradients is read once for both.
#include <algorithm>
#include <vector>

#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 14;  // numbers of the input

struct Sizes {
  int64_t height, width, channels, out_height, out_width, kernel_height, kernel_width, stride, above, left;
};

// What a row of the upstream gradients adds, by kTaps neighbours in a row of the kernel, to the gradients of a row of
// the input and of these neighbours. All of it for N channels, which stay in registers: window[tap] is the gradient
// of what the input in this column gave by that tap.
template <typename T, int kTaps, int N>
void differentiate_channels(const Sizes& of, const float* up, const T* x, const float* kernel, float* dx,
                            float* dkernel) {
  Vector<N> weights[kTaps], sums[kTaps], window[kTaps];
  for (int tap = 0; tap < kTaps; ++tap) {
    weights[tap] = load<N>(kernel + tap * of.channels);
    sums[tap] = Vector<N>{};
    if (tap > 0) window[tap - 1] = load<N>(up + (kTaps - 1 - tap) * of.channels);
  }
  for (int64_t column = 0; column < of.width; ++column) {
    for (int tap = kTaps - 1; tap > 0; --tap) window[tap] = window[tap - 1];
    window[0] = load<N>(up + (column + kTaps - 1) * of.channels);
    const Vector<N> from = load<N>(x + column * of.channels);
    Vector<N> back = load<N>(dx + column * of.channels);
    for (int tap = 0; tap < kTaps; ++tap) {
      back += window[tap] * weights[tap];
      sums[tap] += window[tap] * from;
    }
    store<N>(back, dx + column * of.channels);
  }
  for (int tap = 0; tap < kTaps; ++tap) {
    float* const to = dkernel + tap * of.channels;
    store<N>(load<N>(to) + sums[tap], to);
  }
}

template <typename T, int kTaps>
void differentiate_taps(const Sizes& of, const float* up, const T* x, const float* kernel, float* dx, float* dkernel) {
  in_registers(of.channels, [=](auto lanes, int64_t at) {
    differentiate_channels<T, kTaps, lanes>(of, up + at, x + at, kernel + at, dx + at, dkernel + at);
  });
}

// The same for a whole row of the kernel.
template <typename T>
void differentiate_row(const Sizes& of, const float* up, const T* x, const float* kernel, float* dx, float* dkernel) {
  switch (of.kernel_width) {
    case 3: return differentiate_taps<T, 3>(of, up, x, kernel, dx, dkernel);
    case 5: return differentiate_taps<T, 5>(of, up, x, kernel, dx, dkernel);
    case 7: return differentiate_taps<T, 7>(of, up, x, kernel, dx, dkernel);
  }
  for (int64_t tap = 0; tap < of.kernel_width; ++tap) {
    const int64_t at = tap * of.channels, opposite = (of.kernel_width - 1 - tap) * of.channels;
    differentiate_taps<T, 1>(of, up + opposite, x, kernel + at, dx, dkernel + at);
  }
}

// Rows of the upstream gradients in float32, spread out by the stride and padded with zeros, so that each has a number
// for each column of the input and each tap. As many are kept as rows of the input share.
template <typename T>
class Rows {
 public:
  Rows(const Sizes& of, const T* dy)
      : of_(of), dy_(dy), padded_((of.width + of.kernel_width - 1) * of.channels),
        numbers_(of.kernel_height * padded_), kept_(of.kernel_height, -1) {}

  const float* operator[](int64_t number) {
    const int64_t place = number % of_.kernel_height;
    float* const to = numbers_.data() + place * padded_ + (of_.kernel_width - 1 - of_.left) * of_.channels;
    if (kept_[place] != number) {
      kept_[place] = number;
      const T* from = dy_ + number * of_.out_width * of_.channels;
      for (int64_t column = 0; column < of_.out_width; ++column, from += of_.channels) {
        for (int64_t i = 0; i < of_.channels; ++i) to[column * of_.stride * of_.channels + i] = widened(from[i]);
      }
    }
    return numbers_.data() + place * padded_;
  }

 private:
  const Sizes of_;
  const T* const dy_;
  const int64_t padded_;
  std::vector<float> numbers_;
  std::vector<int64_t> kept_;
};

// From dy (images, out_height, out_width, channels), x (images, height, width, channels) and the kernel
// (kernel_height, kernel_width, channels) to the gradients dx and dkernel. Each row of dx is one thread's alone.
template <typename T>
void differentiate(ffi::ThreadPool& pool, int64_t images, const Sizes& of, const T* dy, const T* x, const T* kernel,
                   T* dx, T* dkernel) {
  const int64_t rows = images * of.height, row = of.width * of.channels;
  const int64_t kernel_row = of.kernel_width * of.channels, weights = of.kernel_height * kernel_row;
  const int64_t parts = parts_worth(pool, rows * row, kWorthAThread);
  std::vector<float> wide(weights), sums(parts * weights);
  for (int64_t i = 0; i < weights; ++i) wide[i] = widened(kernel[i]);
  const float* const wide_kernel = wide.data();
  float* const all_sums = sums.data();
  in_parallel(pool, parts, [=](int64_t part) {
    float* const sums_of_part = all_sums + part * weights;
    Rows<T> upstream(of, dy);
    std::vector<float> back(row);
    for (int64_t number = rows * part / parts; number < rows * (part + 1) / parts; ++number) {
      const int64_t image = number / of.height, place = number % of.height;
      std::fill(back.begin(), back.end(), 0.0f);
      for (int64_t tap = 0; tap < of.kernel_height; ++tap) {
        const int64_t reached = place + of.above - tap;
        if (reached < 0 || reached % of.stride || reached / of.stride >= of.out_height) continue;
        const float* const up = upstream[image * of.out_height + reached / of.stride];
        const int64_t at = tap * kernel_row;
        differentiate_row(of, up, x + number * row, wide_kernel + at, back.data(), sums_of_part + at);
      }
      for (int64_t i = 0; i < row; ++i) narrow(back[i], dx + number * row + i);
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < weights; ++i) sums[i] += sums[part * weights + i];
  for (int64_t i = 0; i < weights; ++i) narrow(sums[i], dkernel + i);
}

template <typename T>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                    ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> dkernel, int32_t stride, int32_t above,
                    int32_t left) {
  const auto out = dy.dimensions(), in = x.dimensions(), taps = kernel.dimensions();
  const Sizes sizes{in[1], in[2], in[3], out[1], out[2], taps[0], taps[1], stride, above, left};
  return told([&] {
    differentiate(pool, in[0], sizes, numbers_of<T>(dy), numbers_of<T>(x), numbers_of<T>(kernel), numbers_of<T>(dx),
                  numbers_of<T>(dkernel));
  });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int32_t>("stride").Attr<int32_t>("above").Attr<int32_t>("left");
}

XLA_FFI_DEFINE_HANDLER(kF32, backward<float>, form());
XLA_FFI_DEFINE_HANDLER(kBF16, backward<bfloat16>, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_depthwise_gradients_f32", kF32) &&
         register_function("tfperf_depthwise_gradients_bf16", kBF16);
}

}  // namespace tfperf
