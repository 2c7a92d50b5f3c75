// Products of matrices in bfloat16 by AMX, whose sums are float32.
#include <algorithm>

#include "amx.h"
#include "buffer.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 20;        // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers
constexpr int64_t kManyBlocks = 8;                // for a thread: one more or less is little

// Tiles of a matrix: of tile (i, k) the first row begins at numbers + i * down + k * along, the next a stride later.
struct Tiles {
  const uint16_t* numbers;
  int64_t down, along, stride;
};

// One of the two matrices, the second one as `columns`, and its tiles.
class Operand {
 public:
  Operand(const Matrix& of, bool columns, Buffer& buffer) : of_(of), columns_(columns) {
    in_place_ = !of.transposed && !columns && of.outer % kBlock == 0 && of.inner % kInner == 0;
    const int64_t along = rounded_up(of.inner, kInner) / kInner;
    if (in_place_) {
      tiles_ = {of.numbers, kOuter * of.inner, kInner, of.inner};
    } else {
      packed_ = buffer.of<uint16_t>(2 * blocks() * along * kTile);
      tiles_ = {packed_, along * kTile, kTile, kInner};
    }
  }

  int64_t blocks() const { return rounded_up(of_.outer, kBlock) / kBlock; }

  const Tiles& tiles() const { return tiles_; }

  // Writes the tiles of some blocks, unless they are read where they are.
  void pack(int64_t begin, int64_t end) const {
    if (in_place_) return;
    for (int64_t i = 2 * begin; i < 2 * end; ++i) {
      uint16_t* to = packed_ + i * tiles_.down;
      for (int64_t k = 0; k < of_.inner; k += kInner, to += kTile) pack_tile(of_, i * kOuter, k, columns_, to);
    }
  }

  void pack_all(ffi::ThreadPool& pool) const {
    if (in_place_) return;
    const int64_t worth = parts_worth(pool, of_.outer * of_.inner, kWorthAThreadToPack);
    const int64_t parts = std::max<int64_t>(1, std::min(worth, blocks()));
    in_parallel(pool, parts, [&](int64_t part) { pack(blocks() * part / parts, blocks() * (part + 1) / parts); });
  }

 private:
  Matrix of_;
  bool columns_, in_place_;
  uint16_t* packed_ = nullptr;
  Tiles tiles_;
};

// Computes kBlock rows and columns of the product from the tiles of their rows and columns.
void multiply_block(const Tiles& a, const uint16_t* rows, const Tiles& b, const uint16_t* columns, int64_t tiles,
                    float* product) {
  add_products(tiles, true, product, [=](int64_t k) {
    _tile_loadd(4, rows + k * a.along, 2 * a.stride);
    _tile_loadd(5, rows + k * a.along + a.down, 2 * a.stride);
    _tile_loadd(6, columns + k * b.along, 2 * b.stride);
    _tile_loadd(7, columns + k * b.along + b.down, 2 * b.stride);
  });
}

void multiply(ffi::ThreadPool& pool, const Matrix& a, const Matrix& b, uint16_t* product) {
  static thread_local Buffer of_a, of_b;
  const Operand first_operand(a, false, of_a), second_operand(b, true, of_b);
  const Tiles rows = first_operand.tiles(), columns = second_operand.tiles();
  const int64_t height = a.outer, width = b.outer, tiles = rounded_up(a.inner, kInner) / kInner;
  const int64_t down = first_operand.blocks(), along = second_operand.blocks();
  // Threads share the longer side of the product, and each packs its own of that operand, which saves waiting once
  // more for all. Where that side cannot be shared evenly, they share the blocks of the product.
  const bool by_rows = down > along;
  const Operand &shared = by_rows ? first_operand : second_operand, &whole = by_rows ? second_operand : first_operand;
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const bool packs_own = shared.blocks() % threads == 0 || shared.blocks() >= kManyBlocks * threads;
  const int64_t each = packs_own ? std::max<int64_t>(1, whole.blocks()) : 1;
  const int64_t count = down * along / each, worth = parts_worth(pool, height * width * a.inner, kWorthAThread);
  const int64_t parts = std::max<int64_t>(1, std::min(worth, count));
  whole.pack_all(pool);
  if (!packs_own) shared.pack_all(pool);
  in_parallel(pool, parts, [&](int64_t part) {
    const TilesInUse tiles_in_use;
    alignas(64) float block[kBlock * kBlock];
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    if (packs_own) shared.pack(begin, end);
    for (int64_t at = begin * each; at < end * each; ++at) {
      const int64_t of_shared = at / whole.blocks(), of_whole = at % whole.blocks();
      const int64_t i = by_rows ? of_shared : of_whole, j = by_rows ? of_whole : of_shared;
      multiply_block(rows, rows.numbers + 2 * i * rows.down, columns, columns.numbers + 2 * j * columns.down, tiles,
                     block);
      const __mmask32 there = first(width - j * kBlock);
      for (int64_t row = 0; row < std::min(kBlock, height - i * kBlock); ++row) {
        const __m512 left = _mm512_load_ps(block + row * kBlock), right = _mm512_load_ps(block + row * kBlock + kOuter);
        _mm512_mask_storeu_epi16(product + (i * kBlock + row) * width + j * kBlock, there,
                                 (__m512i)_mm512_cvtne2ps_pbh(right, left));
      }
    }
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
  return told([&] { multiply(pool, rows, columns, numbers_of<uint16_t>(c)); });
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
