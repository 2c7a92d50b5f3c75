// Convolutions in bfloat16 by AMX, for strides of 1, and the gradients of their inputs, which are such convolutions too.
//
// For each place in the kernel it is a product of matrices: of the inputs, places of the images by channels, and of the
// kernel, channels by filters. What is multiplied are the same inputs so much further on in the line, 32 channels at a
// time: these are neighbours there, so that tiles are read where the inputs lie.
#include <algorithm>
#include <cstring>
#include <vector>

#include "amx.h"
#include "bands.h"
#include "buffer.h"
#include "images_in_line.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 20;        // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers of the kernel
constexpr int64_t kTogether = 1024;               // places of small images, or of a large one, that are computed together
constexpr int64_t kMostPlaces = 1 << 12;          // of an image that is taken whole; of larger ones some rows are
constexpr int64_t kAtATime = 16;                  // products, whose tiles stay in the nearest cache for all places
constexpr int64_t kManyTiles = 1 << 10;           // of a kernel that few parts are to read

struct Sizes : ImagesInLine {
  int64_t channels, filters;

  int64_t blocks_of_channels() const { return rounded_up(channels, kInner) / kInner; }
  int64_t blocks_of_filters() const { return rounded_up(filters, kBlock) / kBlock; }

  // Products that are added up for a block of filters.
  int64_t products() const { return blocks_of_channels() * taps(); }
};

// The kernel of a convolution (height, width, channels, filters), or, for the gradient of the inputs, turned round: it is
// read from its last place on, and what were filters are channels.
struct Kernel {
  const uint16_t* numbers;
  bool turned;
};

// What a thread works with.
struct Memory {
  Buffer line, sums;
};

// Writes the tiles of a block of filters, those of the places of the kernel behind each other, for 32 channels after the
// other.
void pack_filters(const Sizes& of, const Kernel& kernel, int64_t block, uint16_t* to) {
  for (int64_t c = 0; c < of.blocks_of_channels(); ++c)
    for (int64_t tap = 0; tap < of.taps(); ++tap) {
      const int64_t place = kernel.turned ? of.taps() - 1 - tap : tap;
      const Matrix matrix{kernel.numbers + place * of.channels * of.filters, of.filters, of.channels, !kernel.turned};
      for (int64_t half = 0; half < 2; ++half, to += kTile)
        pack_tile(matrix, block * kBlock + half * kOuter, c * kInner, true, to);
    }
}

// Adds products of 32 places with 32 filters to their sums, or begins with them. `rows` are the inputs of the places,
// which are read at distances, in turn with the tiles in `columns`.
void add_channels(const uint16_t* rows, const int64_t* distances, int64_t count, const uint16_t* columns, bool begins,
                  float* sums) {
  add_products(count, begins, sums, [=](int64_t k) {
    const uint16_t* const from = rows + distances[k];
    _tile_loadd(4, from, 2 * kInner);
    _tile_loadd(5, from + kTile, 2 * kInner);
    _tile_loadd(6, columns + 2 * k * kTile, 2 * kInner);
    _tile_loadd(7, columns + (2 * k + 1) * kTile, 2 * kInner);
  });
}

// Puts the inputs of a band in a line, for every 32 channels one of `length` places.
void put_in_line(const Sizes& of, const uint16_t* x, const Band& band, int64_t length, uint16_t* line) {
  std::memset(line, 0, of.blocks_of_channels() * length * kInner * sizeof(uint16_t));
  const int64_t top = band.row - of.above;  // the first row that is read, or of the zeros above them
  const int64_t begin = std::max<int64_t>(0, top), end = std::min(of.height, top + band.rows + of.kernel_height - 1);
  for (int64_t image = 0; image < band.images; ++image)
    for (int64_t row = begin; row < end; ++row) {
      const uint16_t* const from = x + ((band.image + image) * of.height + row) * of.width * of.channels;
      uint16_t* const to = line + (image * of.image() + (row - top) * of.row() + of.left) * kInner;
      for (int64_t c = 0; c < of.channels; c += kInner) {
        const __mmask32 there = first(of.channels - c);
        for (int64_t column = 0; column < of.width; ++column)
          _mm512_storeu_epi16(to + (c / kInner * length + column) * kInner,
                              _mm512_maskz_loadu_epi16(there, from + column * of.channels + c));
      }
    }
}

// Writes what a band has of a block of filters.
void write(const Sizes& of, const float* sums, const Band& band, int64_t filter, uint16_t* y) {
  const __mmask32 there = first(of.filters - filter);
  for (int64_t image = 0; image < band.images; ++image)
    for (int64_t row = 0; row < band.rows; ++row) {
      const float* const from = sums + (image * of.image() + row * of.row()) * kBlock;
      uint16_t* const to = y + ((band.image + image) * of.out_height + band.row + row) * of.out_width * of.filters + filter;
      for (int64_t column = 0; column < of.out_width; ++column) {
        const __m512 left = _mm512_load_ps(from + column * kBlock), right = _mm512_load_ps(from + column * kBlock + kOuter);
        _mm512_mask_storeu_epi16(to + column * of.filters, there, (__m512i)_mm512_cvtne2ps_pbh(right, left));
      }
    }
}

void convolve_band(const Sizes& of, const uint16_t* x, const uint16_t* tiles, const Band& band, Memory& memory,
                   uint16_t* y) {
  const int64_t places = rounded_up((band.images - 1) * of.image() + band.rows * of.row(), kBlock);
  const int64_t length = places + of.reach();
  uint16_t* const line = memory.line.of<uint16_t>(of.blocks_of_channels() * length * kInner);
  put_in_line(of, x, band, length, line);
  std::vector<int64_t> distances;
  for (int64_t c = 0; c < of.blocks_of_channels(); ++c)
    for (int64_t i = 0; i < of.kernel_height; ++i)
      for (int64_t j = 0; j < of.kernel_width; ++j) distances.push_back((c * length + i * of.row() + j) * kInner);
  const int64_t products = of.products();
  float* const sums = memory.sums.of<float>(places * kBlock);
  for (int64_t f = 0; f < of.blocks_of_filters(); ++f, tiles += 2 * products * kTile) {
    for (int64_t from = 0; from < products; from += kAtATime)
      for (int64_t place = 0; place < places; place += kBlock)
        add_channels(line + place * kInner, distances.data() + from, std::min(kAtATime, products - from),
                     tiles + 2 * from * kTile, from == 0, sums + place * kBlock);
    write(of, sums, band, f * kBlock, y);
  }
}

// From x (images, height, width, channels) to y (images, out_height, out_width, filters). Threads share the images, or
// their bands of rows.
void convolve(ffi::ThreadPool& pool, int64_t images, const Sizes& of, const uint16_t* x, const Kernel& kernel,
              uint16_t* y) {
  static thread_local Buffer packed;
  const int64_t blocks = of.blocks_of_filters(), of_block = 2 * of.products() * kTile;
  uint16_t* const tiles = packed.of<uint16_t>(blocks * of_block);
  const int64_t worth = parts_worth(pool, blocks * of_block, kWorthAThreadToPack);
  const int64_t to_pack = std::max<int64_t>(1, std::min(blocks, worth));
  in_parallel(pool, to_pack, [&](int64_t part) {
    for (int64_t f = blocks * part / to_pack; f < blocks * (part + 1) / to_pack; ++f)
      pack_filters(of, kernel, f, tiles + f * of_block);
  });
  const Bands bands(images, of.out_height, of.row(), of.image(), kMostPlaces, kTogether);
  const int64_t multiplications = images * of.image() * blocks * of_block;
  int64_t parts = parts_worth(pool, multiplications, kWorthAThread);
  if (blocks * of_block > kManyTiles * kTile) parts = std::min(parts, pool.num_threads());
  parts = std::max<int64_t>(1, std::min(parts, bands.count()));
  in_parallel(pool, parts, [&](int64_t part) {
    static thread_local Memory memory;
    const TilesInUse tiles_in_use;
    const int64_t end = bands.count() * (part + 1) / parts, step = bands.together(kTogether);
    for (int64_t band = bands.count() * part / parts; band < end; band += step)
      convolve_band(of, x, tiles, bands.from(band, std::min(step, end - band)), memory, y);
    memory.line.forget_if_large();
    memory.sums.forget_if_large();
  });
  packed.forget_if_large();
}

ffi::Error computed(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::Result<ffi::AnyBuffer> y,
                    int32_t above, int32_t left, int32_t turned) {
  const auto in = x.dimensions(), taps = kernel.dimensions(), out = y->dimensions();
  const Sizes sizes{{in[1], in[2], out[1], out[2], taps[0], taps[1], above, left}, in[3], out[3]};
  const Kernel given{numbers_of<uint16_t>(kernel), turned != 0};
  return told([&] { convolve(pool, in[0], sizes, numbers_of<uint16_t>(x), given, numbers_of<uint16_t>(y)); });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>().Attr<int32_t>("above").Attr<int32_t>("left").Attr<int32_t>("turned");
}

XLA_FFI_DEFINE_HANDLER(kConvolution, computed, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return gets_tiles() && register_function("tfperf_convolution_bf16", kConvolution);
}

}  // namespace tfperf
