// Dropout with the random numbers that TensorFlow draws, which are drawn again for the gradient in place of being kept.
#include <algorithm>
#include <array>

#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 14;  // numbers
constexpr int kDraws = 16;                  // draws at a time, each of four numbers
constexpr int kNumbers = 4 * kDraws;

template <typename T>
constexpr uint32_t kMantissa = 0;  // the bits of a draw that make a number from 0 to 1
template <>
constexpr uint32_t kMantissa<float> = 0x7fffff;
template <>
constexpr uint32_t kMantissa<bfloat16> = 0x7f;

struct Stream {
  uint64_t key, low, high;  // low and high: of the counter
};

// The bits of numbers 4 * first to 4 * first + 63 of a stream: Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011, Philox of four words and ten rounds.
void draw(const Stream& stream, uint64_t first, uint32_t* bits) {
  uint32_t words[4][kDraws];
#pragma omp simd
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t low = stream.low + first + i, high = stream.high + (low < stream.low);
    words[0][i] = low;
    words[1][i] = low >> 32;
    words[2][i] = high;
    words[3][i] = high >> 32;
  }
  uint32_t key[2] = {static_cast<uint32_t>(stream.key), static_cast<uint32_t>(stream.key >> 32)};
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t one = uint64_t{0xD2511F53} * words[0][i], other = uint64_t{0xCD9E8D57} * words[2][i];
      words[0][i] = static_cast<uint32_t>(other >> 32) ^ words[1][i] ^ key[0];
      words[1][i] = other;
      words[2][i] = static_cast<uint32_t>(one >> 32) ^ words[3][i] ^ key[1];
      words[3][i] = one;
    }
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  for (int i = 0; i < kDraws; ++i) {
    for (int word = 0; word < 4; ++word) bits[4 * i + word] = words[word][i];
  }
}

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
