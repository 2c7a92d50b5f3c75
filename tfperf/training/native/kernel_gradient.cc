// The gradient of a convolution's kernel in bfloat16 by AMX, for strides of 1.
//
// For each place in the kernel it is a product of matrices: of the inputs, channels by places of the images, and of the
// upstream gradients, places by filters. What is multiplied are the same inputs so much further on in the line.
#include <algorithm>
#include <cstring>

#include "amx.h"
#include "bands.h"
#include "buffer.h"
#include "images_in_line.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 20;  // multiplications
constexpr int64_t kTogether = 1024;         // places of small images that are packed together
constexpr int64_t kMostPlaces = 1 << 14;    // of an image that are; larger ones are taken some rows at a time
constexpr int64_t kAtATime = 256;           // places of the images that stay in the nearest cache for all of the kernel
constexpr int64_t kMostSums = 1 << 18;      // for which threads share images alone

struct Sizes : ImagesInLine {
  int64_t channels, filters;

  int64_t all_channels() const { return rounded_up(channels, kBlock); }
  int64_t all_filters() const { return rounded_up(filters, kBlock); }

  // Sums are kept in blocks of channels by filters, those of all places in the kernel beside each other.
  int64_t block() const { return taps() * kBlock * kBlock; }
  int64_t sums_of(int64_t channels) const { return channels / kBlock * (all_filters() / kBlock) * block(); }
  int64_t sums() const { return sums_of(all_channels()); }
};

// A band of the upstream gradients, and some blocks of channels: the first and how many. The last block may have channels
// that are not there.
struct Share : Band {
  int64_t channel, channels;
};

// What a thread works with.
struct Memory {
  Buffer line, rows, upstream, columns;
};

uint16_t* with_zeros(Buffer& buffer, int64_t count) {
  uint16_t* numbers = buffer.of<uint16_t>(rounded_up(count, kTile));
  std::memset(numbers, 0, count * sizeof(uint16_t));
  return numbers;
}

// Adds the products of 32 channels with 32 filters at some places to their sums, or begins with them.
void add_places(const uint16_t* rows, int64_t length, const uint16_t* columns, int64_t down, int64_t tiles, bool begins,
                float* sums) {
  add_products(tiles, begins, sums, [=](int64_t k) {
    _tile_loadd(4, rows + k * kInner, 2 * length);
    _tile_loadd(5, rows + k * kInner + kOuter * length, 2 * length);
    _tile_loadd(6, columns + k * kTile, 2 * kInner);
    _tile_loadd(7, columns + k * kTile + down, 2 * kInner);
  });
}

// Copies rows of places, of whose channels it takes some.
void copy_rows(const uint16_t* from, int64_t rows, int64_t width, int64_t channels, int64_t taken, uint16_t* to,
               int64_t stride) {
  const bool all = taken == channels;
  const int64_t runs = all ? 1 : width, run = all ? width * channels : taken;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t one = 0; one < runs; ++one)
      std::memcpy(to + row * stride + one * run, from + row * width * channels + one * channels,
                  run * sizeof(uint16_t));
}

// Adds what a share contributes to its sums, or begins with it.
void add_share(const Sizes& of, const uint16_t* dy, const uint16_t* x, const Share& share, bool begins, Memory& memory,
               float* sums) {
  const int64_t places = rounded_up((share.images - 1) * of.image() + share.rows * of.row(), kInner);
  const int64_t steps = places / kInner;
  const int64_t length = rounded_up(places + of.reach(), 2 * kInner) + kInner;  // rows lie in unlike lines of the cache
  const int64_t channels = std::min(share.channels, of.channels - share.channel);
  uint16_t* line = with_zeros(memory.line, length * channels);
  uint16_t* upstream = with_zeros(memory.upstream, places * of.filters);
  const int64_t top = share.row - of.above;  // the first row of the inputs that is read, or of the zeros above them
  const int64_t begin = std::max<int64_t>(0, top), end = std::min(of.height, top + share.rows + of.kernel_height - 1);
  for (int64_t image = 0; image < share.images; ++image) {
    const int64_t row = (share.image + image) * of.height + begin, out_row = (share.image + image) * of.out_height;
    copy_rows(x + row * of.width * of.channels + share.channel, end - begin, of.width, of.channels, channels,
              line + (image * of.image() + (begin - top) * of.row() + of.left) * channels, of.row() * channels);
    copy_rows(dy + (out_row + share.row) * of.out_width * of.filters, share.rows, of.out_width, of.filters, of.filters,
              upstream + image * of.image() * of.filters, of.row() * of.filters);
  }
  const Matrix inputs{line, channels, length, true}, gradients{upstream, of.filters, places, true};
  uint16_t* rows = memory.rows.of<uint16_t>(rounded_up(share.channels * length, kTile));
  uint16_t* columns = memory.columns.of<uint16_t>(of.all_filters() * steps * kInner);
  for (int64_t c = 0; c < share.channels; c += kOuter)
    for (int64_t k = 0; k < length; k += kInner) pack_tile(inputs, c, k, false, rows + c * length + k, length);
  for (int64_t f = 0; f < of.all_filters() / kOuter; ++f)
    for (int64_t k = 0; k < steps; ++k)
      pack_tile(gradients, f * kOuter, k * kInner, true, columns + (f * steps + k) * kTile);
  for (int64_t c = 0; c < share.channels; c += kBlock)
    for (int64_t f = 0; f < of.all_filters(); f += kBlock, sums += of.block())
      for (int64_t from = 0; from < steps; from += kAtATime / kInner)
        for (int64_t i = 0; i < of.kernel_height; ++i)
          for (int64_t j = 0; j < of.kernel_width; ++j)
            add_places(rows + c * length + i * of.row() + j + from * kInner, length,
                       columns + (f / kOuter * steps + from) * kTile, steps * kTile,
                       std::min(kAtATime / kInner, steps - from), begins && from == 0,
                       sums + (i * of.kernel_width + j) * kBlock * kBlock);
}

// How many places are packed together at least: enough that the sums are not read and written for few products.
int64_t together(const Sizes& of, int64_t channels, int64_t least) {
  const int64_t for_sums = of.sums_of(channels) * sizeof(float) / (sizeof(uint16_t) * (channels + of.all_filters()));
  return std::max(least, for_sums);
}

// Threads share the images, or their bands of rows, each with sums of its own, which are added up. Where sums are many, or
// bands few, they share the channels, and the bands where threads are left over.
void differentiate(ffi::ThreadPool& pool, int64_t images, const Sizes& of, const uint16_t* dy, const uint16_t* x,
                   uint16_t* dkernel) {
  static thread_local Buffer of_sums;
  const int64_t multiplications = images * of.image() * of.sums();
  const int64_t threads =
      std::max<int64_t>(1, std::min(static_cast<int64_t>(pool.num_threads()), multiplications / kWorthAThread));
  const int64_t blocks = of.all_channels() / kBlock;
  const Bands bands(images, of.out_height, of.row(), of.image(), kMostPlaces,
                    together(of, of.all_channels(), kMostPlaces));
  const int64_t of_channels = of.sums() <= kMostSums && threads <= bands.count() ? 1 : std::min(threads, blocks);
  const int64_t of_images = std::min(threads / of_channels, bands.count());
  float* sums = of_sums.of<float>(of_images * of.sums());
  in_parallel(pool, of_images * of_channels, [&, sums](int64_t part) {
    static thread_local Memory memory;
    const TilesInUse tiles_in_use;
    const int64_t i = part / of_channels, j = part % of_channels;
    const int64_t begin = bands.count() * i / of_images, end = bands.count() * (i + 1) / of_images;
    const int64_t channel = blocks * j / of_channels * kBlock;
    const int64_t channels = blocks * (j + 1) / of_channels * kBlock - channel;
    const int64_t step = bands.together(together(of, channels, kTogether));
    for (int64_t band = begin; band < end; band += step) {
      const Share share{bands.from(band, std::min(step, end - band)), channel, channels};
      add_share(of, dy, x, share, band == begin, memory, sums + i * of.sums() + of.sums_of(channel));
    }
    for (Buffer* buffer : {&memory.line, &memory.rows, &memory.upstream, &memory.columns}) buffer->forget_if_large();
  });
  in_parallel(pool, of_channels, [&, sums](int64_t part) {
    const int64_t end = std::min(of.channels, blocks * (part + 1) / of_channels * kBlock);
    for (int64_t place = 0; place < of.taps(); ++place)
      for (int64_t c = blocks * part / of_channels * kBlock; c < end; ++c) {
        uint16_t* to = dkernel + (place * of.channels + c) * of.filters;
        for (int64_t f = 0; f < of.filters; f += kOuter) {
          const float* from = sums + of.sums_of(c) + f / kBlock * of.block() + place * kBlock * kBlock +
                              c % kBlock * kBlock + f % kBlock;
          __m512 sum = _mm512_setzero_ps();
          for (int64_t i = 0; i < of_images; ++i) sum = _mm512_add_ps(sum, _mm512_loadu_ps(from + i * of.sums()));
          const __mmask16 there = static_cast<__mmask16>(first(of.filters - f));
          _mm256_mask_storeu_epi16(to + f, there, (__m256i)_mm512_cvtneps_pbh(sum));
        }
      }
  });
  of_sums.forget_if_large();
}

ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dkernel,
                    int32_t above, int32_t left) {
  const auto out = dy.dimensions(), in = x.dimensions(), taps = dkernel->dimensions();
  const Sizes sizes{{in[1], in[2], out[1], out[2], taps[0], taps[1], above, left}, in[3], out[3]};
  return told([&] {
    differentiate(pool, in[0], sizes, numbers_of<uint16_t>(dy), numbers_of<uint16_t>(x), numbers_of<uint16_t>(dkernel));
  });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>().Attr<int32_t>("above").Attr<int32_t>("left");
}

XLA_FFI_DEFINE_HANDLER(kBackward, backward, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return gets_tiles() && register_function("tfperf_kernel_gradient_bf16", kBackward);
}

}  // namespace tfperf
