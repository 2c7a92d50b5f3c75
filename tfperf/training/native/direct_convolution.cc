// Convolutions by sums in registers, and the gradients of their inputs and kernels, for any strides.
//
// For each place in the kernel it is a product of matrices: of the inputs, places of the images by channels, and of the
// kernel, channels by filters. Sums of some places by some filters stay in registers over channels and places in the
// kernel. For a kernel's gradient they are sums of some channels by some filters over the images.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "bands.h"
#include "buffer.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int kRows = kLanes == 16 ? 8 : 6;  // of sums: what is left of the registers holds two vectors and a number
constexpr int kVectors = 2;                  // of sums in each row
constexpr int64_t kWorthAThread = 1 << 20;   // multiplications
constexpr int64_t kWorthAThreadToPack = 1 << 15;  // numbers of the kernel
constexpr int64_t kTogether = 512;           // places at most that are computed together
constexpr int64_t kSummed = 256;             // places that are added up for a kernel's gradient before others are read
constexpr int64_t kWorthACopy = 512;         // products with each number that is copied
constexpr int64_t kAtATime = 256;            // numbers that are added up before the next sums have their turn
constexpr int64_t kFewSums = 1 << 16;        // of which each part of the images has its own

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// A place in a kernel along an axis: how far from an output's own input it reads, and its number.
struct Tap {
  int64_t shift, number;
};

// One axis of a convolution: `outputs` numbers are computed, of which `first` is the first in the result and `step` the
// distance. The inputs of one are `stride` from those of the next. Taps are one behind the other.
struct Axis {
  int64_t size, outputs, first, step, stride;
  std::vector<Tap> taps;

  int64_t low() const { return taps.front().shift; }

  // Inputs that so many outputs read
  int64_t span(int64_t count) const { return (count - 1) * stride + taps.back().shift - low() + 1; }

  bool reads_within(int64_t from, int64_t count) const {
    return from * stride + low() >= 0 && (from + count - 1) * stride + taps.back().shift < size;
  }
};

// A convolution of `images` (rows, columns, channels), or of the phase of one, to (height, width, filters).
struct Convolution {
  Axis rows, columns;
  int64_t images, height, width, channels, filters;

  int64_t taps() const { return rows.taps.size() * columns.taps.size(); }
  int64_t places() const { return rows.outputs * columns.outputs; }
  int64_t numbers() const { return taps() * channels; }  // that are added up for an output
  int64_t blocks() const { return (filters + kVectors * kLanes - 1) / (kVectors * kLanes); }
  int64_t products() const { return images * places() * numbers() * filters; }
  Bands bands(int64_t together) const {
    return {images, rows.outputs, columns.outputs, places(), 2 * together, together};
  }
};

// What XLA tells: sides of inputs, outputs and kernel, strides, and zeros before the inputs.
struct Side {
  int64_t inputs, outputs, taps, stride, before;

  Axis forward() const {
    Axis axis{inputs, outputs, 0, 1, stride, {}};
    for (int64_t tap = 0; tap < taps; ++tap) axis.taps.push_back({tap - before, tap});
    return axis;
  }

  // From the outputs' gradients to every `stride`th of the inputs', from `phase` on.
  Axis backward(int64_t phase) const {
    Axis axis{outputs, std::max<int64_t>(0, (inputs - phase + stride - 1) / stride), phase, stride, 1, {}};
    const int64_t begin = (phase + before) % stride, last = (phase + before) / stride;
    for (int64_t tap = (taps - begin + stride - 1) / stride - 1; tap >= 0; --tap)
      axis.taps.push_back({last - tap, begin + tap * stride});
    return axis;
  }
};

// What the places of a band read: numbers in memory, and how many places are from row to row and from image to image.
struct Reading {
  const float* numbers;
  int64_t row, image;
};

// Whether what a band reads are its inputs alone, where they lie.
template <typename T>
bool reads_in_place(const Convolution& of, const Band& band) {
  return std::is_same_v<T, float> && of.rows.reads_within(band.row, band.rows) &&
         of.columns.reads_within(0, of.columns.outputs);
}

// Copies some channels of what a band reads, with zeros around the inputs; behind the last one.
template <typename T>
float* copy(const Convolution& of, const T* x, const Band& band, int64_t channel, int64_t channels, float* to) {
  const int64_t height = of.rows.span(band.rows), width = of.columns.span(of.columns.outputs);
  const int64_t top = band.row * of.rows.stride + of.rows.low(), left = of.columns.low();
  const int64_t begin = std::max<int64_t>(0, left), end = std::max(begin, std::min(of.columns.size, left + width));
  const auto zeros = [&](int64_t count) { to = std::fill_n(to, count * channels, 0.0f); };
  for (int64_t image = band.image; image < band.image + band.images; ++image)
    for (int64_t row = top; row < top + height; ++row) {
      if (row < 0 || row >= of.rows.size || begin == end) {
        zeros(width);
        continue;
      }
      zeros(begin - left);
      const T* from = x + ((image * of.rows.size + row) * of.columns.size + begin) * of.channels + channel;
      for (int64_t column = begin; column < end; ++column, from += of.channels)
        for (int64_t i = 0; i < channels; ++i) *to++ = widened(from[i]);
      zeros(left + width - end);
    }
  return to;
}

// Where the places of a band begin to read.
std::vector<int64_t> reads_of(const Convolution& of, const Reading& reading, const Band& band) {
  std::vector<int64_t> reads;
  for (int64_t image = 0; image < band.images; ++image)
    for (int64_t row = 0; row < band.rows; ++row)
      for (int64_t column = 0; column < of.columns.outputs; ++column)
        reads.push_back(image * reading.image + row * of.rows.stride * reading.row + column * of.columns.stride);
  return reads;
}

// Does work(place, to) for the places of a band in the same order, `to` numbers behind the first of the result.
template <typename Work>
void for_results(const Convolution& of, const Band& band, const Work& work) {
  int64_t place = 0;
  for (int64_t image = band.image; image < band.image + band.images; ++image)
    for (int64_t row = band.row; row < band.row + band.rows; ++row)
      for (int64_t column = 0; column < of.columns.outputs; ++column) {
        const int64_t down = of.rows.first + row * of.rows.step, along = of.columns.first + column * of.columns.step;
        work(place++, ((image * of.height + down) * of.width + along) * of.filters);
      }
}

// Does work(vectors, filter) for the filters of a part, as many from `filter` on as the vectors hold; `vectors` is a
// constant.
template <typename Work>
void for_filters(const Convolution& of, int64_t part, int64_t parts, const Work& work) {
  for (int64_t block = of.blocks() * part / parts; block < of.blocks() * (part + 1) / parts; ++block) {
    const int64_t filter = block * kVectors * kLanes;
    if (filter + kLanes < of.filters)
      work(std::integral_constant<int, kVectors>(), filter);
    else
      work(std::integral_constant<int, 1>(), filter);
  }
}

int64_t filters_in_vectors(int64_t filters) { return rounded_up(filters, kLanes); }

// Neighbouring numbers, `distance` behind where a place begins to read, and their weights' number. They are of a tap down.
struct Stretch {
  int64_t distance, count, weights, down;
};

// Taps down that read more than zeros, from the first to the last.
struct Taps {
  int64_t first, last;
};

// Places whose sums the registers hold, where each has so many vectors of them.
template <int kOfThem>
constexpr int places_of() {
  return kRows * kVectors / kOfThem;
}

// Adds products of what neighbouring places read with weights to their sums, or begins with them.
template <int kVectors>
void add_up(const float* x, const int64_t* reads, const Stretch* first, const Stretch* last, const Taps& taps,
            const float* weights, bool begins, float* sums) {
  constexpr int kPlaces = places_of<kVectors>();
  Vector<kLanes> all[kPlaces][kVectors];
  const float* from[kPlaces];
#pragma GCC unroll 16
  for (int row = 0; row < kPlaces; ++row) {
    from[row] = x + reads[row];
#pragma GCC unroll 2
    for (int one = 0; one < kVectors; ++one)
      all[row][one] = begins ? Vector<kLanes>{} : load<kLanes>(sums + (row * kVectors + one) * kLanes);
  }
  for (; first != last; ++first) {
    if (first->down < taps.first || first->down > taps.last) continue;
    const float* next = weights + first->weights * kVectors * kLanes;
    for (int64_t at = first->distance; at < first->distance + first->count; ++at, next += kVectors * kLanes) {
      Vector<kLanes> columns[kVectors];
#pragma GCC unroll 2
      for (int one = 0; one < kVectors; ++one) columns[one] = load<kLanes>(next + one * kLanes);
#pragma GCC unroll 16
      for (int row = 0; row < kPlaces; ++row) {
#pragma GCC unroll 2
        for (int one = 0; one < kVectors; ++one) all[row][one] += columns[one] * from[row][at];
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kPlaces; ++row) {
#pragma GCC unroll 2
    for (int one = 0; one < kVectors; ++one) store<kLanes>(all[row][one], sums + (row * kVectors + one) * kLanes);
  }
}

// The kernel of a convolution (height, width, channels, filters), or, where it is turned round, with what were filters for
// channels.
template <typename T>
struct Kernel {
  const T* numbers;
  int64_t width;
  bool turned;

  // Writes what is read at one place in the kernel for filters from `filter` on, for one channel after the other.
  void pack(const Convolution& of, int64_t tap, int64_t filter, int64_t count, int64_t pitch, float* to) const {
    const T* const from = numbers + tap * of.channels * of.filters;
    for (int64_t channel = 0; channel < of.channels; ++channel, to += pitch) {
      for (int64_t i = 0; i < pitch; ++i) {
        const int64_t at = turned ? (filter + i) * of.channels + channel : channel * of.filters + filter + i;
        to[i] = i < count ? widened(from[at]) : 0.0f;
      }
    }
  }
};

// What a place of a band reads, in the order of the weights, in stretches of which some make kAtATime numbers.
std::vector<Stretch> stretches_of(const Convolution& of, const Reading& reading) {
  std::vector<Stretch> stretches;
  const int64_t along = of.columns.taps.size() * of.channels;
  for (int64_t down = 0; down < static_cast<int64_t>(of.rows.taps.size()); ++down)
    for (int64_t from = 0; from < along; from += kAtATime)
      stretches.push_back({down * reading.row * of.channels + from, std::min(kAtATime, along - from), down * along + from,
                           down});
  return stretches;
}

// The taps down that read more than zeros, for every kRows places.
std::vector<Taps> taps_of(const Convolution& of, const Band& band) {
  std::vector<Taps> taps;
  const int64_t all = of.rows.taps.size(), places = band.rows * of.columns.outputs;
  for (int64_t first = 0; first < band.images * places; first += kRows) {
    const int64_t last = std::min(first + kRows, band.images * places) - 1;
    Taps those{all, -1};
    for (int64_t row = first / of.columns.outputs; row <= last / of.columns.outputs; ++row) {
      const int64_t reads = (band.row + row % band.rows) * of.rows.stride + of.rows.low();
      those.first = std::min(those.first, std::max<int64_t>(0, -reads));
      those.last = std::max(those.last, std::min(all, of.rows.size - reads) - 1);
    }
    taps.push_back(those);
  }
  return taps;
}

// Writes the results of a band; `weights` are those of all filters, in the order of the taps.
template <typename T>
void convolve_band(const Convolution& of, const T* x, const float* weights, const Band& band, Buffer& memory, Buffer& all,
                   T* y) {
  Reading reading{nullptr, of.columns.size, of.rows.size * of.columns.size};
  if (reads_in_place<T>(of, band)) {
    const int64_t top = band.row * of.rows.stride + of.rows.low();
    reading.numbers = reinterpret_cast<const float*>(x) +
                      (band.image * reading.image + top * reading.row + of.columns.low()) * of.channels;
  } else {
    reading.row = of.columns.span(of.columns.outputs);
    reading.image = of.rows.span(band.rows) * reading.row;
    float* const to = memory.of<float>(band.images * reading.image * of.channels);
    copy(of, x, band, 0, of.channels, to);
    reading.numbers = to;
  }
  std::vector<int64_t> reads = reads_of(of, reading, band);
  for (int64_t& read : reads) read *= of.channels;
  const int64_t places = reads.size();
  reads.resize(rounded_up(places, places_of<1>()), reads.back());
  const std::vector<Stretch> stretches = stretches_of(of, reading);
  const std::vector<Taps> taps = taps_of(of, band);
  const Stretch* const end = stretches.data() + stretches.size();
  float* const sums = all.of<float>(reads.size() * kVectors * kLanes);
  for_filters(of, 0, 1, [&](auto vectors, int64_t filter) {
    constexpr int64_t kPitch = vectors * kLanes, kPlaces = places_of<vectors>();
    for (const Stretch *first = stretches.data(), *last; first != end; first = last) {
      last = first;
      int64_t numbers = 0;
      do numbers += last++->count;
      while (last != end && numbers + last->count <= kAtATime);
      for (int64_t place = 0; place < places; place += kPlaces) {
        const Taps& begin = taps[place / kRows];
        const Taps& end = taps[std::min<size_t>((place + kPlaces - 1) / kRows, taps.size() - 1)];
        add_up<vectors>(reading.numbers, reads.data() + place, first, last,
                        {std::min(begin.first, end.first), std::max(begin.last, end.last)},
                        weights + filter * of.numbers(), first == stretches.data(), sums + place * kPitch);
      }
    }
    for_results(of, band, [&](int64_t place, int64_t to) {
      in_registers(std::min(kPitch, of.filters - filter), [&](auto lanes, int64_t one) {
        store<lanes>(load<lanes>(sums + place * kPitch + one), y + to + filter + one);
      });
    });
  });
}

// Does work(band) for those of a part.
template <typename Work>
void for_bands(const Bands& bands, int64_t together, int64_t part, int64_t parts, const Work& work) {
  const int64_t end = bands.count() * (part + 1) / parts, step = bands.together(together);
  for (int64_t band = bands.count() * part / parts; band < end; band += step)
    work(bands.from(band, std::min(step, end - band)));
}

// From x (images, rows, columns, channels) to y (images, height, width, filters). Threads share the images, or their rows.
template <typename T>
void convolve(ffi::ThreadPool& pool, const Convolution& of, const T* x, const Kernel<T>& kernel, T* y) {
  int64_t parts = parts_worth(pool, of.products(), kWorthAThread);
  const int64_t each = of.images * of.places() / parts;
  const int64_t together = std::max<int64_t>(1, std::min(kTogether, rounded_up(each, places_of<1>())));
  const Bands bands = of.bands(together);
  if (bands.count() == 0) return;
  if (of.taps() == 0) {  // nothing is read: strides are larger than the kernel
    for (int64_t band = 0; band < bands.count(); ++band)
      for_results(of, bands.from(band, 1), [&](int64_t, int64_t to) { std::fill_n(y + to, of.filters, T{}); });
    return;
  }
  static thread_local Buffer packed;
  float* const weights = packed.of<float>(filters_in_vectors(of.filters) * of.numbers());
  const int64_t to_pack = std::min(of.blocks(), parts_worth(pool, of.numbers() * of.filters, kWorthAThreadToPack));
  in_parallel(pool, to_pack, [&](int64_t part) {
    for_filters(of, part, to_pack, [&](auto vectors, int64_t filter) {
      constexpr int64_t kPitch = vectors * kLanes;
      float* to = weights + filter * of.numbers();
      for (const Tap& down : of.rows.taps)
        for (const Tap& along : of.columns.taps) {
          const int64_t tap = down.number * kernel.width + along.number;
          kernel.pack(of, tap, filter, std::min(kPitch, of.filters - filter), kPitch, to);
          to += of.channels * kPitch;
        }
    });
  });
  parts = std::min(parts, bands.count());
  in_parallel(pool, parts, [&](int64_t part) {
    static thread_local Buffer inputs, sums;
    for_bands(bands, together, part, parts, [&](const Band& band) { convolve_band(of, x, weights, band, inputs, sums, y); });
    inputs.forget_if_large();
    sums.forget_if_large();
  });
  packed.forget_if_large();
}

// A place of a band, and where it begins to read.
struct Pair {
  int64_t read, place;
};

// For each tap down the places that read more than zeros.
std::vector<std::vector<Pair>> pairs_of(const Convolution& of, const Reading& reading, const Band& band) {
  std::vector<std::vector<Pair>> pairs(of.rows.taps.size());
  const std::vector<int64_t> reads = reads_of(of, reading, band);
  for (int64_t place = 0; place < static_cast<int64_t>(reads.size()); ++place) {
    const int64_t top = (band.row + place / of.columns.outputs % band.rows) * of.rows.stride;
    for (size_t down = 0; down < pairs.size(); ++down) {
      const int64_t row = top + of.rows.taps[down].shift;
      if (0 <= row && row < of.rows.size) pairs[down].push_back({reads[place], place});
    }
  }
  return pairs;
}

// Adds products of what all places read, kChannels numbers each, with upstream gradients to their sums.
template <int kChannels, int kVectors>
void add_gradients(const float* x, const std::vector<Pair>& pairs, const float* upstream, float* sums) {
  Vector<kLanes> all[kChannels][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kChannels; ++row) {
#pragma GCC unroll 2
    for (int one = 0; one < kVectors; ++one) all[row][one] = load<kLanes>(sums + (row * kVectors + one) * kLanes);
  }
  for (const Pair& pair : pairs) {
    Vector<kLanes> columns[kVectors];
#pragma GCC unroll 2
    for (int one = 0; one < kVectors; ++one)
      columns[one] = load<kLanes>(upstream + (pair.place * kVectors + one) * kLanes);
    const float* const from = x + pair.read * kChannels;
#pragma GCC unroll 8
    for (int row = 0; row < kChannels; ++row) {
#pragma GCC unroll 2
      for (int one = 0; one < kVectors; ++one) all[row][one] += columns[one] * from[row];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kChannels; ++row) {
#pragma GCC unroll 2
    for (int one = 0; one < kVectors; ++one) store<kLanes>(all[row][one], sums + (row * kVectors + one) * kLanes);
  }
}

// Does work(count, channel) for all channels, as many from `channel` on, in steps that are alike; `count` is a constant.
template <int kMost = kRows, typename Work>
void for_channels(int64_t channels, const Work& work, int64_t begin = 0, int64_t steps = 0) {
  if (steps == 0) steps = (channels + kRows - 1) / kRows;
  if constexpr (kMost > 0) {
    while (begin < channels && (channels - begin + steps - 1) / steps == kMost) {
      work(std::integral_constant<int, kMost>(), begin);
      begin += kMost;
      --steps;
    }
    if (begin < channels) for_channels<kMost - 1>(channels, work, begin, steps);
  }
}

// A share of the work of a kernel's gradient: some filters.
struct Share {
  int64_t part, parts;
};

// Adds what a band gives to some filters' gradients, whose sums lie as the weights do that `convolve_band` takes. What is
// read lies together for those channels that are computed together.
template <typename T>
void differentiate_band(const Convolution& of, const T* x, const T* dy, const Band& band, const Share& share,
                        Buffer& memory, Buffer& block, float* sums) {
  const int64_t width = of.columns.span(of.columns.outputs), height = of.rows.span(band.rows);
  float* const inputs = memory.of<float>(band.images * height * width * of.channels);
  float* to = inputs;
  for_channels(of.channels, [&](auto count, int64_t channel) { to = copy(of, x, band, channel, count, to); });
  const Reading reading{inputs, width, height * width};
  const std::vector<std::vector<Pair>> pairs = pairs_of(of, reading, band);
  float* const upstream = block.of<float>(band.images * band.rows * of.columns.outputs * kVectors * kLanes);
  for_filters(of, share.part, share.parts, [&](auto vectors, int64_t filter) {
    constexpr int64_t kPitch = vectors * kLanes;
    const int64_t there = std::min(kPitch, of.filters - filter);
    for_results(of, band, [&](int64_t place, int64_t from) {
      float* const to = upstream + place * kPitch;
      in_registers(there, [&](auto lanes, int64_t one) { store<lanes>(load<lanes>(dy + from + filter + one), to + one); });
      std::fill(to + there, to + kPitch, 0.0f);
    });
    for_channels(of.channels, [&](auto count, int64_t channel) {
      const float* const block_of_inputs = inputs + band.images * reading.image * channel;
      float* to = sums + filter * of.numbers() + channel * kPitch;
      for (size_t down = 0; down < of.rows.taps.size(); ++down)
        for (size_t along = 0; along < of.columns.taps.size(); ++along, to += of.channels * kPitch)
          add_gradients<count, vectors>(block_of_inputs + (down * reading.row + along) * count, pairs[down], upstream, to);
    });
  });
}

// From x (images, rows, columns, channels) and dy (images, height, width, filters) to a kernel's gradient. Threads share the
// images, each with sums of its own, which are added up, or, where sums are many or images few, the filters.
template <typename T>
void differentiate(ffi::ThreadPool& pool, const Convolution& of, const T* x, const T* dy, T* dkernel) {
  static thread_local Buffer of_sums;
  const Bands bands = of.bands(kSummed);
  const int64_t all = filters_in_vectors(of.filters) * of.numbers();
  const int64_t parts = parts_worth(pool, of.products(), kWorthAThread);
  const bool by_filters = all > kFewSums || bands.count() < parts;
  const int64_t worth = std::max(pool.num_threads(), of.taps() * of.filters / kWorthACopy);
  const int64_t of_filters = by_filters ? std::min({parts, of.blocks(), worth}) : 1, of_images = by_filters ? 1 : parts;
  float* const sums = of_sums.of<float>(of_images * all);
  const auto write = [&](const Share& share) {
    for_filters(of, share.part, share.parts, [&](auto vectors, int64_t filter) {
      constexpr int64_t kPitch = vectors * kLanes;
      const float* from = sums + filter * of.numbers();
      for (int64_t number = 0; number < of.numbers(); ++number, from += kPitch)
        in_registers(std::min(kPitch, of.filters - filter), [&](auto lanes, int64_t one) {
          Vector<lanes> sum = load<lanes>(from + one);
          for (int64_t part = 1; part < of_images; ++part) sum += load<lanes>(from + part * all + one);
          store<lanes>(sum, dkernel + number * of.filters + filter + one);
        });
    });
  };
  in_parallel(pool, of_images * of_filters, [&](int64_t part) {
    static thread_local Buffer inputs, block;
    const Share share{part % of_filters, of_filters};
    float* const own = sums + part / of_filters * all;
    for_filters(of, share.part, share.parts, [&](auto vectors, int64_t filter) {
      std::fill_n(own + filter * of.numbers(), vectors * kLanes * of.numbers(), 0.0f);
    });
    for_bands(bands, kSummed, part / of_filters, of_images,
              [&](const Band& band) { differentiate_band(of, x, dy, band, share, inputs, block, own); });
    if (of_images == 1) write(share);
    inputs.forget_if_large();
    block.forget_if_large();
  });
  if (of_images > 1) write({0, 1});
  of_sums.forget_if_large();
}

// The sides of what is convolved: height and width.
struct Sides {
  Side down, along;
};

template <typename Dimensions>
Sides sides_of(const Dimensions& in, const Dimensions& out, const Dimensions& taps, int32_t stride_down,
               int32_t stride_along, int32_t above, int32_t left) {
  return {{in[1], out[1], taps[0], stride_down, above}, {in[2], out[2], taps[1], stride_along, left}};
}

template <typename T>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::Result<ffi::AnyBuffer> y,
                   int32_t stride_down, int32_t stride_along, int32_t above, int32_t left) {
  return told([&] {
    const auto in = x.dimensions(), out = y->dimensions(), taps = kernel.dimensions();
    const Sides sides = sides_of(in, out, taps, stride_down, stride_along, above, left);
    const Convolution of{sides.down.forward(), sides.along.forward(), in[0], out[1], out[2], in[3], out[3]};
    convolve(pool, of, numbers_of<T>(x), Kernel<T>{numbers_of<T>(kernel), taps[1], false}, numbers_of<T>(y));
  });
}

template <typename T>
ffi::Error of_inputs(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer kernel, ffi::Result<ffi::AnyBuffer> dx,
                     int32_t stride_down, int32_t stride_along, int32_t above, int32_t left) {
  return told([&] {
    const auto in = dx->dimensions(), out = dy.dimensions(), taps = kernel.dimensions();
    const Sides sides = sides_of(in, out, taps, stride_down, stride_along, above, left);
    for (int64_t down = 0; down < stride_down; ++down)
      for (int64_t along = 0; along < stride_along; ++along) {
        const Convolution of{sides.down.backward(down), sides.along.backward(along), in[0], in[1], in[2], out[3], in[3]};
        convolve(pool, of, numbers_of<T>(dy), Kernel<T>{numbers_of<T>(kernel), taps[1], true}, numbers_of<T>(dx));
      }
  });
}

template <typename T>
ffi::Error of_kernel(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dkernel,
                     int32_t stride_down, int32_t stride_along, int32_t above, int32_t left) {
  return told([&] {
    const auto in = x.dimensions(), out = dy.dimensions(), taps = dkernel->dimensions();
    const Sides sides = sides_of(in, out, taps, stride_down, stride_along, above, left);
    const Convolution of{sides.down.forward(), sides.along.forward(), in[0], out[1], out[2], in[3], out[3]};
    differentiate(pool, of, numbers_of<T>(x), numbers_of<T>(dy), numbers_of<T>(dkernel));
  });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
      .Attr<int32_t>("stride_down").Attr<int32_t>("stride_along").Attr<int32_t>("above").Attr<int32_t>("left");
}

XLA_FFI_DEFINE_HANDLER(kForwardF32, forward<float>, form());
XLA_FFI_DEFINE_HANDLER(kForwardBF16, forward<bfloat16>, form());
XLA_FFI_DEFINE_HANDLER(kOfInputsF32, of_inputs<float>, form());
XLA_FFI_DEFINE_HANDLER(kOfInputsBF16, of_inputs<bfloat16>, form());
XLA_FFI_DEFINE_HANDLER(kOfKernelF32, of_kernel<float>, form());
XLA_FFI_DEFINE_HANDLER(kOfKernelBF16, of_kernel<bfloat16>, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_direct_convolution_f32", kForwardF32) &&
         register_function("tfperf_direct_convolution_bf16", kForwardBF16) &&
         register_function("tfperf_direct_convolution_of_inputs_f32", kOfInputsF32) &&
         register_function("tfperf_direct_convolution_of_inputs_bf16", kOfInputsBF16) &&
         register_function("tfperf_direct_convolution_of_kernel_f32", kOfKernelF32) &&
         register_function("tfperf_direct_convolution_of_kernel_bf16", kOfKernelBF16);
}

}  // namespace tfperf
