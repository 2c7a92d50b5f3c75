// Products of matrices in bfloat16 by AMX, whose sums are float32. AMX takes tiles: 16 rows of 32 numbers, and for the
// second matrix 16 columns of 32 numbers, two of a column beside each other.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kOuter = 16, kInner = 32;  // of a tile
constexpr int64_t kTile = kOuter * kInner;   // numbers
constexpr int64_t kBlock = 2 * kOuter;       // rows and columns that are computed at a time, by four tiles
constexpr int64_t kWorthAThread = 1 << 20;        // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers

int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Memory for tiles that begins at a line of the cache. A thread keeps it, unless it is much: new memory takes longer than
// many a product.
class Buffer {
 public:
  ~Buffer() { std::free(numbers_); }

  uint16_t* of_tiles(int64_t count) {
    if (count > count_) {
      forget();
      numbers_ = static_cast<uint16_t*>(std::aligned_alloc(64, count * kTile * sizeof(uint16_t)));
      if (numbers_ == nullptr) throw std::bad_alloc();
      count_ = count;
    }
    return numbers_;
  }

  void forget_if_large() {
    if (count_ > kMostKept) forget();
  }

 private:
  static constexpr int64_t kMostKept = 1 << 13;  // tiles, 8 MiB

  void forget() {
    std::free(numbers_);
    numbers_ = nullptr;
    count_ = 0;
  }

  uint16_t* numbers_ = nullptr;
  int64_t count_ = 0;
};

// A matrix in memory, (outer, inner) or, where it is transposed, (inner, outer). `inner` is what is summed over.
struct Matrix {
  const uint16_t* numbers;
  int64_t outer, inner;
  bool transposed;
};

// Tiles of a matrix: of tile (i, k) the first row begins at numbers + i * down + k * along, the next a stride later.
struct Tiles {
  const uint16_t* numbers;
  int64_t down, along, stride;
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

__mmask32 first(int64_t count) { return count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1; }

// Writes one tile, with zeros where the matrix has ended; `columns`: as AMX takes the second matrix.
void pack_tile(const Matrix& of, int64_t outer, int64_t inner, bool columns, uint16_t* to) {
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
  for (int row = 0; row < 16; ++row) _mm512_storeu_si512(to + row * kInner, rows[row]);
}

// Tiles of a whole matrix, written to a buffer; those of a first matrix that fits are read where they are.
Tiles tiles_of(ffi::ThreadPool& pool, const Matrix& of, bool columns, Buffer& buffer) {
  if (!of.transposed && !columns && of.outer % kBlock == 0 && of.inner % kInner == 0)
    return {of.numbers, kOuter * of.inner, kInner, of.inner};
  const int64_t down = rounded_up(of.outer, kBlock) / kOuter, along = rounded_up(of.inner, kInner) / kInner;
  const int64_t threads = pool.num_threads();
  const int64_t parts = std::max<int64_t>(1, std::min(threads, of.outer * of.inner / kWorthAThreadToPack));
  uint16_t* to = buffer.of_tiles(down * along);
  in_parallel(pool, parts, [&, to](int64_t part) {
    for (int64_t i = down * part / parts; i < down * (part + 1) / parts; ++i)
      for (int64_t k = 0; k < along; ++k)
        pack_tile(of, i * kOuter, k * kInner, columns, to + (i * along + k) * kTile);
  });
  return {to, along * kTile, kTile, kInner};
}

struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Computes kBlock rows and columns of the product from the tiles of their rows and columns.
void multiply_block(const Tiles& a, const uint16_t* rows, const Tiles& b, const uint16_t* columns, int64_t tiles,
                    float* product) {
  asm volatile("" ::: "memory");  // tiles are read from memory, which not all compilers are told
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < tiles; ++k) {
    _tile_loadd(4, rows + k * a.along, 2 * a.stride);
    _tile_loadd(5, rows + k * a.along + a.down, 2 * a.stride);
    _tile_loadd(6, columns + k * b.along, 2 * b.stride);
    _tile_loadd(7, columns + k * b.along + b.down, 2 * b.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, product, kBlock * sizeof(float));
  _tile_stored(1, product + kOuter, kBlock * sizeof(float));
  _tile_stored(2, product + kOuter * kBlock, kBlock * sizeof(float));
  _tile_stored(3, product + kOuter * kBlock + kOuter, kBlock * sizeof(float));
}

void multiply(ffi::ThreadPool& pool, const Matrix& a, const Matrix& b, uint16_t* product) {
  static thread_local Buffer of_a, of_b;
  const Tiles rows = tiles_of(pool, a, false, of_a), columns = tiles_of(pool, b, true, of_b);
  const int64_t height = a.outer, width = b.outer, tiles = rounded_up(a.inner, kInner) / kInner;
  const int64_t down = rounded_up(height, kBlock) / kBlock, along = rounded_up(width, kBlock) / kBlock;
  const int64_t parts = std::max<int64_t>(
      1, std::min({static_cast<int64_t>(pool.num_threads()), down * along, height * width * a.inner / kWorthAThread}));
  in_parallel(pool, parts, [&](int64_t part) {
    static constexpr Configuration configuration;
    _tile_loadconfig(&configuration);
    alignas(64) float block[kBlock * kBlock];
    for (int64_t at = down * along * part / parts; at < down * along * (part + 1) / parts; ++at) {
      const int64_t i = at / along, j = at % along;
      multiply_block(rows, rows.numbers + 2 * i * rows.down, columns, columns.numbers + 2 * j * columns.down, tiles,
                     block);
      const __mmask32 there = first(width - j * kBlock);
      for (int64_t row = 0; row < std::min(kBlock, height - i * kBlock); ++row) {
        const __m512 left = _mm512_load_ps(block + row * kBlock), right = _mm512_load_ps(block + row * kBlock + kOuter);
        _mm512_mask_storeu_epi16(product + (i * kBlock + row) * width + j * kBlock, there,
                                 (__m512i)_mm512_cvtne2ps_pbh(right, left));
      }
    }
    _tile_release();
  });
  of_a.forget_if_large();
  of_b.forget_if_large();
}

ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c,
                   int32_t transposed_first, int32_t transposed_second) {
  const auto of_a = a.dimensions(), of_b = b.dimensions();
  const Matrix rows{numbers_of<uint16_t>(a), of_a[transposed_first ? 1 : 0], of_a[transposed_first ? 0 : 1],
                    transposed_first != 0};
  const Matrix columns{numbers_of<uint16_t>(b), of_b[transposed_second ? 0 : 1], of_b[transposed_second ? 1 : 0],
                       transposed_second == 0};
  try {
    multiply(pool, rows, columns, numbers_of<uint16_t>(c));
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory for the tiles of a product");
  }
  return ffi::Error::Success();
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
      .Attr<int32_t>("transposed_first").Attr<int32_t>("transposed_second");
}

XLA_FFI_DEFINE_HANDLER(kProduct, product, form());

// Asks Linux for AMX's registers, without which a process has none; whether it got them.
bool gets_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return gets_tiles() && register_function("tfperf_matmul_bf16", kProduct);
}

}  // namespace tfperf
