// Products of matrices in bfloat16 by AMX, whose sums are float32.
#include <algorithm>

#include "amx.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 20;        // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers

// Tiles of a matrix: of tile (i, k) the first row begins at numbers + i * down + k * along, the next a stride later.
struct Tiles {
  const uint16_t* numbers;
  int64_t down, along, stride;
};

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

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return gets_tiles() && register_function("tfperf_matmul_bf16", kProduct);
}

}  // namespace tfperf
