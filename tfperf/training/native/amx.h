// Tiles of AMX, which multiplies matrices in bfloat16 and sums in float32: 16 rows of 32 numbers, and of the second matrix
// 16 columns of 32 numbers, two of a column beside each other.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace tfperf {

constexpr int64_t kOuter = 16, kInner = 32;  // of a tile
constexpr int64_t kTile = kOuter * kInner;   // numbers
constexpr int64_t kBlock = 2 * kOuter;       // rows and columns that are computed at a time, by four tiles

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// A matrix in memory, (outer, inner) or, where it is transposed, (inner, outer). `inner` is what is summed over.
struct Matrix {
  const uint16_t* numbers;
  int64_t outer, inner;
  bool transposed;
};

// Exchanges rows and columns of 16 x 16 pairs: of blocks of 1, 2, 4 and 8 those beside the diagonal change places.
inline void transpose(__m512i rows[16]) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
  for (int block = 1; block < 16; block *= 2) {
    const __m512i size = _mm512_set1_epi32(block), crossed = _mm512_xor_si512(lane, size);
    const __mmask16 late = _mm512_test_epi32_mask(lane, size);
    const __m512i second = _mm512_set1_epi32(16);  // in a choice from two registers: of the second one
    const __m512i upper = _mm512_mask_add_epi32(lane, late, crossed, second);
    const __m512i lower = _mm512_mask_add_epi32(crossed, late, lane, second);
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row) {
      if (row & block) continue;
      const __m512i above = rows[row], below = rows[row | block];
      rows[row] = _mm512_permutex2var_epi32(above, upper, below);
      rows[row | block] = _mm512_permutex2var_epi32(above, lower, below);
    }
  }
}

inline __mmask32 first(int64_t count) { return count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1; }

// Writes one tile, with zeros where the matrix has ended; `columns`: as AMX takes the second matrix. Rows are written a
// stride apart.
inline void pack_tile(const Matrix& of, int64_t outer, int64_t inner, bool columns, uint16_t* to,
                      int64_t stride = kInner) {
  __m512i rows[16];
  if (of.transposed) {  // pairs from two neighbouring rows
    const __mmask16 there = static_cast<__mmask16>(first(of.outer - outer));
    for (int pair = 0; pair < 16; ++pair) {
      const int64_t at = inner + 2 * pair;
      const uint16_t* row = of.numbers + at * of.outer + outer;
      const __m256i low = _mm256_maskz_loadu_epi16(at < of.inner ? there : 0, row);
      const __m256i high = _mm256_maskz_loadu_epi16(at + 1 < of.inner ? there : 0, row + of.outer);
      rows[pair] = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
  } else {
    const __mmask32 there = first(of.inner - inner);
    for (int row = 0; row < 16; ++row) {
      const uint16_t* numbers = of.numbers + (outer + row) * of.inner + inner;
      rows[row] = _mm512_maskz_loadu_epi16(outer + row < of.outer ? there : 0, numbers);
    }
  }
  if (of.transposed != columns) transpose(rows);
  for (int row = 0; row < 16; ++row) _mm512_storeu_si512(to + row * stride, rows[row]);
}

struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// AMX's registers as tiles, on this thread and while this lives.
class TilesInUse {
 public:
  TilesInUse() {
    static constexpr Configuration configuration;
    _tile_loadconfig(&configuration);
  }
  ~TilesInUse() { _tile_release(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

// Adds products of two rows of tiles with two columns of them to kBlock x kBlock sums, or begins with them. load(k) loads the
// first row, the second, the first column and the second, at place k of `count`, into the tiles 4 to 7.
template <typename Load>
inline void add_products(int64_t count, bool begins, float* sums, const Load& load) {
  constexpr int64_t kBytes = kBlock * sizeof(float);
  asm volatile("" ::: "memory");  // tiles are read from memory, which not all compilers are told
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kBytes);
    _tile_loadd(1, sums + kOuter, kBytes);
    _tile_loadd(2, sums + kOuter * kBlock, kBytes);
    _tile_loadd(3, sums + kOuter * kBlock + kOuter, kBytes);
  }
  for (int64_t k = 0; k < count; ++k) {
    load(k);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kBytes);
  _tile_stored(1, sums + kOuter, kBytes);
  _tile_stored(2, sums + kOuter * kBlock, kBytes);
  _tile_stored(3, sums + kOuter * kBlock + kOuter, kBytes);
}

// Asks Linux for AMX's registers, without which a process has none; whether it got them.
inline bool gets_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace tfperf
