// Dropout with the random numbers that TensorFlow draws, which are drawn again for the gradient in place of being kept.
#include <algorithm>
#include <array>

#include "random.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 14;  // numbers

// y = x * scale where a draw is not below the threshold, else 0.
template <typename T>
void drop(ffi::ThreadPool& pool, const Stream& stream, int64_t count, const T* x, T* y, uint32_t threshold, float scale) {
  const int64_t blocks = (count + kNumbers - 1) / kNumbers;
  const int64_t parts = parts_worth(pool, count, kWorthAThread);
  in_parallel(pool, parts, [=](int64_t part) {
    std::array<uint32_t, kNumbers> bits;
    for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      draw(stream, block * kDraws, bits.data());
      const int64_t begin = block * kNumbers, here = std::min<int64_t>(kNumbers, count - begin);
#pragma omp simd
      for (int64_t i = 0; i < here; ++i) {
        const float kept = widened(x[begin + i]) * scale;
        narrow((bits[i] & kMantissa<T>) >= threshold ? kept : 0.0f, y + begin + i);
      }
    }
  });
}

template <typename T>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::U64> key, ffi::Buffer<ffi::U64> counter,
                   ffi::Result<ffi::AnyBuffer> y, int32_t threshold, float scale) {
  const Stream stream{key.typed_data()[0], counter.typed_data()[0], counter.typed_data()[1]};
  return told([&] {
    drop(pool, stream, x.element_count(), numbers_of<T>(x), numbers_of<T>(y), threshold, scale);
  });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::Buffer<ffi::U64>>()
      .Arg<ffi::Buffer<ffi::U64>>().Ret<ffi::AnyBuffer>().Attr<int32_t>("threshold").Attr<float>("scale");
}

XLA_FFI_DEFINE_HANDLER(kF32, forward<float>, form());
XLA_FFI_DEFINE_HANDLER(kBF16, forward<bfloat16>, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_dropout_f32", kF32) && register_function("tfperf_dropout_bf16", kBF16);
}

}  // namespace tfperf
