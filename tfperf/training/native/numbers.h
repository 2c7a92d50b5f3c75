// Numbers in float32 and bfloat16, one at a time and as many as a register holds.
#pragma once

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tfperf {

struct bfloat16 {
  uint16_t bits;
};

inline float widened(float value) { return value; }

inline float widened(bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void narrow(float value, float* to) { *to = value; }

// To the nearest, and to even where two are as near.
inline void narrow(float value, bfloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = static_cast<uint16_t>((is_nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

// N neighbouring numbers, which compilers keep in a register.
template <int N>
struct Neighbours {
  typedef float Vector __attribute__((vector_size(N * sizeof(float))));
  typedef uint32_t Bits __attribute__((vector_size(N * sizeof(uint32_t))));
  typedef uint16_t Halves __attribute__((vector_size(N * sizeof(uint16_t))));
  typedef uint8_t Bytes __attribute__((vector_size(N)));
};

template <int N>
using Vector = typename Neighbours<N>::Vector;

template <int N>
inline Vector<N> load(const float* from) {
  Vector<N> numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return numbers;
}

template <int N>
inline Vector<N> load(const bfloat16* from) {
  using Bits = typename Neighbours<N>::Bits;
  typename Neighbours<N>::Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const Bits bits = __builtin_convertvector(halves, Bits) << 16;
  Vector<N> numbers;
  std::memcpy(&numbers, &bits, sizeof numbers);
  return numbers;
}

template <int N>
inline void store(Vector<N> numbers, float* to) {
  std::memcpy(to, &numbers, sizeof numbers);
}

// Rounded as `narrow` does; processors that do it themselves take numbers below 2^-126 for 0.
template <int N>
inline typename Neighbours<N>::Halves halves_of(Vector<N> numbers) {
#ifdef __AVX512BF16__
  if constexpr (N == 16) return (typename Neighbours<N>::Halves)_mm512_cvtneps_pbh((__m512)numbers);
#endif
  using Bits = typename Neighbours<N>::Bits;
  Bits bits;
  std::memcpy(&bits, &numbers, sizeof bits);
  const Bits rounded = numbers == numbers ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u;
  return __builtin_convertvector(rounded >> 16, typename Neighbours<N>::Halves);
}

template <int N>
inline void store(Vector<N> numbers, bfloat16* to) {
  const auto halves = halves_of<N>(numbers);
  std::memcpy(to, &halves, sizeof halves);
}

// Whole numbers below 256 as bytes, and bytes as whole numbers: by way of halves, as compilers else take them one by one.
template <int N>
inline typename Neighbours<N>::Bytes bytes_of(typename Neighbours<N>::Bits numbers) {
  return __builtin_convertvector(__builtin_convertvector(numbers, typename Neighbours<N>::Halves), typename Neighbours<N>::Bytes);
}

template <int N>
inline typename Neighbours<N>::Bits bits_of(typename Neighbours<N>::Bytes numbers) {
  return __builtin_convertvector(__builtin_convertvector(numbers, typename Neighbours<N>::Halves), typename Neighbours<N>::Bits);
}

// Two bfloat16 have the bits of a float and are passed on as one, a pair.
inline float paired(bfloat16 first, bfloat16 second) {
  const uint32_t bits = first.bits | static_cast<uint32_t>(second.bits) << 16;
  float pair;
  std::memcpy(&pair, &bits, sizeof pair);
  return pair;
}

template <int N>
inline Vector<N> paired(const bfloat16* first, const bfloat16* second) {
  using Bits = typename Neighbours<N>::Bits;
  typename Neighbours<N>::Halves low, high;
  std::memcpy(&low, first, sizeof low);
  std::memcpy(&high, second, sizeof high);
  return (Vector<N>)(__builtin_convertvector(low, Bits) | __builtin_convertvector(high, Bits) << 16);
}

template <int N>
inline Vector<N> paired(Vector<N> first, Vector<N> second) {
  using Bits = typename Neighbours<N>::Bits;
  const Bits low = __builtin_convertvector(halves_of<N>(first), Bits);
  const Bits high = __builtin_convertvector(halves_of<N>(second), Bits);
  return (Vector<N>)(low | high << 16);
}

// Adds products with a number; in bfloat16 those with the first of a pair and those with the second.
template <typename T, int N = kLanes>
inline Vector<N> add_products(Vector<N> sums, float number, Vector<N> numbers) {
  if constexpr (std::is_same_v<T, float>) {
    return sums + number * numbers;
  } else {
#ifdef __AVX512BF16__
    if constexpr (N == 16)
      return (Vector<N>)_mm512_dpbf16_ps((__m512)sums, (__m512bh)numbers, (__m512bh)_mm512_set1_ps(number));
    else
      return (Vector<N>)_mm256_dpbf16_ps((__m256)sums, (__m256bh)numbers, (__m256bh)_mm256_set1_ps(number));
#else
    using Bits = typename Neighbours<N>::Bits;
    const Bits some = (Bits)numbers;
    uint32_t one;
    std::memcpy(&one, &number, sizeof one);
    bfloat16 first{static_cast<uint16_t>(one)}, second{static_cast<uint16_t>(one >> 16)};
    return sums + widened(first) * (Vector<N>)(some << 16) + widened(second) * (Vector<N>)(some & 0xffff0000u);
#endif
  }
}

// Does work(N, at) for all of `count` neighbours, N of them from `at` on at a time; N is a constant.
template <typename Work>
inline void in_registers(int64_t count, const Work& work) {
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) work(std::integral_constant<int, kLanes>(), at);
  for (; at + 4 <= count; at += 4) work(std::integral_constant<int, 4>(), at);
  for (; at < count; ++at) work(std::integral_constant<int, 1>(), at);
}

}  // namespace tfperf
