// The random numbers that TensorFlow draws.
#pragma once

#include <cstdint>

#include "numbers.h"

namespace tfperf {

constexpr int kDraws = 16;  // draws at a time, each of four numbers
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
inline void draw(const Stream& stream, uint64_t first, uint32_t* bits) {
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

}  // namespace tfperf
