// Convolutions by sums in registers, and the gradients of their inputs and kernels, for any strides.
//
// For each place in the kernel it is a product of matrices: of the inputs, places of the images by channels, and of the
// kernel, channels by filters. Sums of some places by some filters stay in registers over channels and places in the
// kernel. For a kernel's gradient they are sums of some channels by some filters over the images. Processors that multiply
// pairs of bfloat16 take two channels at once, and for a kernel's gradient two images.
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
constexpr double kMostUsed = 0.95;           // of what is read, where zeros are worth to be skipped
constexpr int64_t kMostAcross = 256;         // places of an image, of which several are computed together
constexpr int64_t kMostReadAcross = 1 << 18;  // numbers that they read: more would leave the nearer caches
constexpr int64_t kFewSums = 1 << 17;        // of which each part of the images has its own

// Numbers that are multiplied at once: in bfloat16 pairs, which have the bits of a float, where the processor can do that.
#ifdef __AVX512BF16__
template <typename T>
constexpr int kAtOnce = std::is_same_v<T, bfloat16> ? 2 : 1;
#else
template <typename T>
constexpr int kAtOnce = 1;
#endif

template <typename T>
using Multiplied = std::conditional_t<kAtOnce<T> == 2, bfloat16, float>;

inline int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }
inline int64_t rounded_up(int64_t number, int64_t to) { return divided_up(number, to) * to; }

// A place in a kernel along an axis: how far from an output's own input it reads, and its number.
struct Tap {
  int64_t shift, number;
};

// From `begin` on, up to `end`.
struct Range {
  int64_t begin = 0, end = 0;

  int64_t count() const { return std::max<int64_t>(0, end - begin); }
  bool has(int64_t number) const { return begin <= number && number < end; }
  void add(const Range& other) {
    if (other.begin >= other.end) return;
    *this = begin < end ? Range{std::min(begin, other.begin), std::max(end, other.end)} : other;
  }
};

// One axis of a convolution: `outputs` numbers are computed, of which `first` is the first in the result and `step` the
// distance. The inputs of one are `stride` from those of the next. Taps are one behind the other.
struct Axis {
  int64_t size, outputs, first, step, stride;
  std::vector<Tap> taps;

  int64_t low() const { return taps.front().shift; }

  // Inputs that so many outputs read
  int64_t span(int64_t count) const { return (count - 1) * stride + taps.back().shift - low() + 1; }

  Range taps_within(int64_t output) const {
    const int64_t from = output * stride + low();
    return {std::max<int64_t>(0, -from), std::min<int64_t>(taps.size(), size - from)};
  }

  // The share of what is read that is more than zeros
  double used() const {
    int64_t all = 0;
    for (int64_t output = 0; output < outputs; ++output) all += taps_within(output).count();
    return static_cast<double>(all) / (outputs * taps.size());
  }

  bool reads_within(int64_t from, int64_t count) const {
    return from * stride + low() >= 0 && (from + count - 1) * stride + taps.back().shift < size;
  }
};

// A convolution of `images` (rows, columns, channels), or of the phase of one, to (height, width, filters).
struct Convolution {
  Axis rows, columns;
  int64_t images, height, width, channels, filters;
  int64_t channels_in_one, images_in_one;  // whose numbers are multiplied at once
  bool across = false;                     // places of several images are computed together, not those of one

  int64_t taps() const { return rows.taps.size() * columns.taps.size(); }
  int64_t places() const { return rows.outputs * columns.outputs; }
  int64_t read() const { return divided_up(channels, channels_in_one); }  // numbers of a place, or pairs
  int64_t numbers() const { return taps() * read(); }                     // that are added up for an output
  int64_t blocks() const { return divided_up(filters, kVectors * kLanes); }
  int64_t products() const { return divided_up(images, images_in_one) * places() * numbers() * filters; }
  int64_t first_image(int64_t one) const { return one * images_in_one; }
  bool has_second(int64_t one) const { return first_image(one) + 1 < images; }
  int64_t input(int64_t image, int64_t row, int64_t column) const {
    return ((image * rows.size + row) * columns.size + column) * channels;
  }
  Bands bands(int64_t together) const {
    return {divided_up(images, images_in_one), rows.outputs, columns.outputs, places(), 2 * together, together};
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

// What the places of a band read: numbers in memory, and how many of them are from image to image, row to row, and column to
// column.
struct Reading {
  const float* numbers;
  int64_t image, row, column;
};

// A place of a band in the result; the image is that of the inputs.
struct Place {
  int64_t image, row, column;
};

// In the order that they are computed in.
std::vector<Place> places_of(const Convolution& of, const Band& band) {
  std::vector<Place> places;
  places.reserve(band.images * band.rows * of.columns.outputs);
  const int64_t outer = of.across ? 1 : band.images, inner = of.across ? band.images : 1;
  for (int64_t first = 0; first < outer; ++first)
    for (int64_t row = 0; row < band.rows; ++row)
      for (int64_t column = 0; column < of.columns.outputs; ++column)
        for (int64_t image = first; image < first + inner; ++image)
          places.push_back({band.image + image, band.row + row, column});
  return places;
}

// Whether what a band reads are its inputs alone, where they lie.
template <typename T>
bool reads_in_place(const Convolution& of, const Band& band) {
  const bool as_it_is = std::is_same_v<T, float> || (kAtOnce<T> == 2 && of.channels % 2 == 0);
  return as_it_is && of.rows.reads_within(band.row, band.rows) && of.columns.reads_within(0, of.columns.outputs);
}

// Has write(image, row, column, to) copy those inputs that a band reads, with zeros around them, so many numbers of a place.
template <typename Write>
void copy(const Convolution& of, const Band& band, const Reading& reading, int64_t numbers, float* to, const Write& write) {
  const int64_t height = of.rows.span(band.rows), width = of.columns.span(of.columns.outputs);
  const int64_t top = band.row * of.rows.stride + of.rows.low(), left = of.columns.low();
  for (int64_t image = 0; image < band.images; ++image)
    for (int64_t down = 0, row = top; down < height; ++down, ++row)
      for (int64_t along = 0, column = left; along < width; ++along, ++column) {
        float* const place = to + image * reading.image + down * reading.row + along * reading.column;
        if (0 <= row && row < of.rows.size && 0 <= column && column < of.columns.size)
          write(band.image + image, row, column, place);
        else
          std::fill_n(place, numbers, 0.0f);
      }
}

// All channels of what a band reads.
template <typename T>
void copy(const Convolution& of, const T* x, const Band& band, const Reading& reading, float* to) {
  copy(of, band, reading, of.read(), to, [&](int64_t image, int64_t row, int64_t column, float* to) {
    const T* const from = x + of.input(image, row, column);
    if constexpr (kAtOnce<T> == 1) {
      for (int64_t i = 0; i < of.channels; ++i) to[i] = widened(from[i]);
    } else {
      std::memcpy(to, from, of.channels / 2 * sizeof(float));
      if (of.channels % 2 == 1) to[of.channels / 2] = paired(from[of.channels - 1], bfloat16{});
    }
  });
}

// Some channels of what a band reads, for a kernel's gradient.
template <typename T>
void copy(const Convolution& of, const T* x, const Band& band, const Reading& reading, int64_t channel, int64_t channels,
          float* to) {
  copy(of, band, reading, channels, to, [&](int64_t image, int64_t row, int64_t column, float* to) {
    const T* const from = x + of.input(of.first_image(image), row, column) + channel;
    [[maybe_unused]] const int64_t next = of.has_second(image) ? of.input(1, 0, 0) : 0;
    for (int64_t i = 0; i < channels; ++i) {
      if constexpr (kAtOnce<T> == 1)
        to[i] = widened(from[i]);
      else
        to[i] = paired(from[i], next > 0 ? from[next + i] : bfloat16{});
    }
  });
}

// Where places begin to read.
std::vector<int64_t> reads_of(const Convolution& of, const Reading& reading, const std::vector<Place>& places) {
  std::vector<int64_t> reads;
  const Place first = places.front();
  for (const Place& place : places)
    reads.push_back((place.image - first.image) * reading.image + (place.row - first.row) * of.rows.stride * reading.row +
                    place.column * of.columns.stride * reading.column);
  return reads;
}

// Does work(number, to) for all places, which are `to` numbers behind the first of the result.
template <typename Work>
void for_results(const Convolution& of, const std::vector<Place>& places, const Work& work) {
  for (int64_t number = 0; number < static_cast<int64_t>(places.size()); ++number) {
    const Place& place = places[number];
    const int64_t down = of.rows.first + place.row * of.rows.step;
    const int64_t along = of.columns.first + place.column * of.columns.step;
    work(number, ((of.first_image(place.image) * of.height + down) * of.width + along) * of.filters);
  }
}

// Vectors of sums that lie beside each other, and places whose sums the registers hold where each has so many.
template <int kOf, int kCount>
struct Columns {
  static constexpr int kNumbers = kOf, kVectors = kCount, kWidth = kOf * kCount;
  static constexpr int kPlaces = kCount > 1 ? kRows : 2 * kRows;
};

constexpr int kHalf = 8;  // numbers at least that are computed together: half a register where those hold 16
constexpr int64_t kMostPlaces = Columns<kLanes, 1>::kPlaces;

// Does work(columns, filter) for the filters of a part, as many from `filter` on as the columns hold.
template <typename Work>
void for_filters(const Convolution& of, int64_t part, int64_t parts, const Work& work) {
  for (int64_t block = of.blocks() * part / parts; block < of.blocks() * (part + 1) / parts; ++block) {
    const int64_t filter = block * kVectors * kLanes, left = of.filters - filter;
    if (left > kLanes + kHalf)
      work(Columns<kLanes, 2>(), filter);
    else if (left > kLanes)
      work(Columns<kHalf, kLanes / kHalf + 1>(), filter);
    else if (left > kHalf)
      work(Columns<kLanes, 1>(), filter);
    else
      work(Columns<kHalf, 1>(), filter);
  }
}

int64_t filters_in_vectors(int64_t filters) { return rounded_up(filters, kHalf); }

// Neighbouring numbers, `distance` behind where a place begins to read, and their weights' number. They are of a tap down, of
// whose numbers they begin at `from`.
struct Stretch {
  int64_t distance, count, weights, down, from;
};

// From the first to the last of those that read more than zeros: taps down, and numbers of each.
struct Taps {
  Range down, numbers;

  void add(const Taps& others) {
    down.add(others.down);
    numbers.add(others.numbers);
  }
};

// Adds products of what neighbouring places read with weights to their sums, or begins with them. Within another function
// compilers would have no registers left for where places read.
template <typename T, typename Columns>
__attribute__((noinline)) void add_up(const float* x, const int64_t* reads, const Stretch* first, const Stretch* last,
                                      const Taps& taps, const float* weights, bool begins, float* sums) {
  constexpr int kNumbers = Columns::kNumbers, kVectors = Columns::kVectors, kPlaces = Columns::kPlaces;
  Vector<kNumbers> all[kPlaces][kVectors];
  const float* from[kPlaces];
#pragma GCC unroll 16
  for (int row = 0; row < kPlaces; ++row) {
    from[row] = x + reads[row];
#pragma GCC unroll 3
    for (int one = 0; one < kVectors; ++one)
      all[row][one] = begins ? Vector<kNumbers>{} : load<kNumbers>(sums + (row * kVectors + one) * kNumbers);
  }
  for (; first != last; ++first) {
    if (!taps.down.has(first->down)) continue;
    const int64_t begin = std::max<int64_t>(0, taps.numbers.begin - first->from);
    const int64_t end = std::min(first->count, taps.numbers.end - first->from);
    const float* next = weights + (first->weights + begin) * Columns::kWidth;
    for (int64_t at = first->distance + begin; at < first->distance + end; ++at, next += Columns::kWidth) {
      Vector<kNumbers> columns[kVectors];
#pragma GCC unroll 3
      for (int one = 0; one < kVectors; ++one) columns[one] = load<kNumbers>(next + one * kNumbers);
#pragma GCC unroll 16
      for (int row = 0; row < kPlaces; ++row) {
#pragma GCC unroll 3
        for (int one = 0; one < kVectors; ++one)
          all[row][one] = add_products<Multiplied<T>, kNumbers>(all[row][one], from[row][at], columns[one]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kPlaces; ++row) {
#pragma GCC unroll 3
    for (int one = 0; one < kVectors; ++one) store<kNumbers>(all[row][one], sums + (row * kVectors + one) * kNumbers);
  }
}

// The kernel of a convolution (height, width, channels, filters), or, where it is turned round, with what were filters for
// channels.
template <typename T>
struct Kernel {
  const T* numbers;
  int64_t width;
  bool turned;

  // Writes what is read at one place in the kernel for filters from `filter` on, for one channel after the other, or for two.
  void pack(const Convolution& of, int64_t tap, int64_t filter, int64_t count, int64_t pitch, float* to) const {
    const T* const from = numbers + tap * of.channels * of.filters;
    const auto weight = [&](int64_t channel, int64_t i) {
      return from[turned ? (filter + i) * of.channels + channel : channel * of.filters + filter + i];
    };
    for (int64_t channel = 0; channel < of.channels; channel += kAtOnce<T>, to += pitch) {
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (kAtOnce<T> == 1)
          to[i] = widened(weight(channel, i));
        else
          to[i] = paired(weight(channel, i), channel + 1 < of.channels ? weight(channel + 1, i) : bfloat16{});
      }
      std::fill(to + count, to + pitch, 0.0f);
    }
  }
};

// What a place reads, in the order of the weights, in stretches of which some make kAtATime numbers.
std::vector<Stretch> stretches_of(const Convolution& of, const Reading& reading) {
  std::vector<Stretch> stretches;
  const int64_t along = of.columns.taps.size() * of.read();
  for (int64_t down = 0; down < static_cast<int64_t>(of.rows.taps.size()); ++down)
    for (int64_t from = 0; from < along; from += kAtATime)
      stretches.push_back({down * reading.row + from, std::min(kAtATime, along - from), down * along + from, down, from});
  return stretches;
}

// The taps that read more than zeros, for every kRows places.
std::vector<Taps> taps_of(const Convolution& of, const std::vector<Place>& places) {
  std::vector<Taps> taps;
  for (size_t first = 0; first < places.size(); first += kRows) {
    Taps those;
    for (size_t number = first; number < std::min(first + kRows, places.size()); ++number) {
      those.down.add(of.rows.taps_within(places[number].row));
      those.numbers.add(of.columns.taps_within(places[number].column));
    }
    those.numbers.begin *= of.read();
    those.numbers.end *= of.read();
    taps.push_back(those);
  }
  return taps;
}

// What a band reads: the inputs where they lie, or a copy in memory, where places that are computed together are neighbours.
template <typename T>
Reading reading_of(const Convolution& of, const T* x, const Band& band, Buffer& memory) {
  const int64_t read = of.read();
  if (reads_in_place<T>(of, band)) {
    const int64_t top = band.row * of.rows.stride + of.rows.low(), row = of.columns.size * read;
    const float* const numbers = reinterpret_cast<const float*>(x + of.input(band.image, top, of.columns.low()));
    return {numbers, of.rows.size * row, row, read};
  }
  const int64_t row = of.columns.span(of.columns.outputs) * read, rows = of.rows.span(band.rows);
  float* const numbers = memory.of<float>(band.images * rows * row);
  const Reading reading = of.across ? Reading{numbers, row, band.images * row, read} : Reading{numbers, rows * row, row, read};
  copy(of, x, band, reading, numbers);
  return reading;
}

// Writes the results of a band; `weights` are those of all filters, in the order of the taps.
template <typename T>
void convolve_band(const Convolution& of, const T* x, const float* weights, const Band& band, Buffer& memory, Buffer& all,
                   T* y) {
  const std::vector<Place> places = places_of(of, band);
  const Reading reading = reading_of(of, x, band, memory);
  std::vector<int64_t> reads = reads_of(of, reading, places);
  reads.resize(rounded_up(reads.size(), kMostPlaces), reads.back());
  const std::vector<Stretch> stretches = stretches_of(of, reading);
  const std::vector<Taps> taps = taps_of(of, places);
  const Stretch* const end = stretches.data() + stretches.size();
  float* const sums = all.of<float>(reads.size() * kVectors * kLanes);
  for_filters(of, 0, 1, [&](auto columns, int64_t filter) {
    constexpr int64_t kPitch = columns.kWidth, kPlaces = columns.kPlaces;
    for (const Stretch *first = stretches.data(), *last; first != end; first = last) {
      last = first;
      int64_t numbers = 0;
      do numbers += last++->count;
      while (last != end && numbers + last->count <= kAtATime);
      for (size_t place = 0; place < places.size(); place += kPlaces) {
        Taps those = taps[place / kRows];
        those.add(taps[std::min<size_t>((place + kPlaces - 1) / kRows, taps.size() - 1)]);
        add_up<T, decltype(columns)>(reading.numbers, reads.data() + place, first, last, those,
                                     weights + filter * of.numbers(), first == stretches.data(), sums + place * kPitch);
      }
    }
    for_results(of, places, [&](int64_t place, int64_t to) {
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

// Whether places of kRows small images are to be computed together, as many taps of theirs read zeros.
bool is_worth_going_across(const Convolution& of) {
  const bool small = of.places() <= kMostAcross && kRows * of.rows.size * of.columns.size * of.read() <= kMostReadAcross;
  return small && of.rows.used() * of.columns.used() < kMostUsed;
}

// Images whose places are computed together, such that no thread has many more of them than others.
int64_t images_across(int64_t images, int64_t parts) {
  int64_t best = kRows, least = images;
  for (int64_t count = kRows; count < 2 * kRows; ++count) {
    const int64_t most = divided_up(divided_up(images, count), parts) * count;
    if (most < least) best = count, least = most;
  }
  return best;
}

// From x (images, rows, columns, channels) to y (images, height, width, filters). Threads share the images, or their rows.
template <typename T>
void convolve(ffi::ThreadPool& pool, Convolution of, const T* x, const Kernel<T>& kernel, T* y) {
  int64_t parts = parts_worth(pool, of.products(), kWorthAThread);
  of.across = of.taps() > 0 && of.images >= parts * kRows && is_worth_going_across(of);
  const int64_t each = of.images * of.places() / parts;
  const int64_t few = std::max<int64_t>(1, std::min(kTogether, rounded_up(each, kMostPlaces)));
  const int64_t together = of.across ? images_across(of.images, parts) * of.places() : few;
  const Bands bands = of.bands(together);
  if (bands.count() == 0) return;
  if (of.taps() == 0) {  // nothing is read: strides are larger than the kernel
    for (int64_t band = 0; band < bands.count(); ++band)
      for_results(of, places_of(of, bands.from(band, 1)), [&](int64_t, int64_t to) { std::fill_n(y + to, of.filters, T{}); });
    return;
  }
  static thread_local Buffer packed;
  float* const weights = packed.of<float>(filters_in_vectors(of.filters) * of.numbers());
  const int64_t to_pack = std::min(of.blocks(), parts_worth(pool, of.numbers() * of.filters, kWorthAThreadToPack));
  in_parallel(pool, to_pack, [&](int64_t part) {
    for_filters(of, part, to_pack, [&](auto columns, int64_t filter) {
      constexpr int64_t kPitch = columns.kWidth;
      float* to = weights + filter * of.numbers();
      for (const Tap& down : of.rows.taps)
        for (const Tap& along : of.columns.taps) {
          const int64_t tap = down.number * kernel.width + along.number;
          kernel.pack(of, tap, filter, std::min(kPitch, of.filters - filter), kPitch, to);
          to += of.read() * kPitch;
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
std::vector<std::vector<Pair>> pairs_of(const Convolution& of, const Reading& reading, const std::vector<Place>& places) {
  std::vector<std::vector<Pair>> pairs(of.rows.taps.size());
  const std::vector<int64_t> reads = reads_of(of, reading, places);
  for (size_t place = 0; place < places.size(); ++place) {
    const Range taps = of.rows.taps_within(places[place].row);
    for (int64_t down = taps.begin; down < taps.end; ++down) pairs[down].push_back({reads[place], static_cast<int64_t>(place)});
  }
  return pairs;
}

// Adds products of what all places read, kChannels numbers each, with upstream gradients to their sums.
template <typename T, int kChannels, typename Columns>
void add_gradients(const float* x, const std::vector<Pair>& pairs, const float* upstream, float* sums) {
  constexpr int kNumbers = Columns::kNumbers, kVectors = Columns::kVectors;
  Vector<kNumbers> all[kChannels][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kChannels; ++row) {
#pragma GCC unroll 3
    for (int one = 0; one < kVectors; ++one) all[row][one] = load<kNumbers>(sums + (row * kVectors + one) * kNumbers);
  }
  for (const Pair& pair : pairs) {
    Vector<kNumbers> columns[kVectors];
#pragma GCC unroll 3
    for (int one = 0; one < kVectors; ++one)
      columns[one] = load<kNumbers>(upstream + (pair.place * kVectors + one) * kNumbers);
    const float* const from = x + pair.read * kChannels;
#pragma GCC unroll 8
    for (int row = 0; row < kChannels; ++row) {
#pragma GCC unroll 3
      for (int one = 0; one < kVectors; ++one)
        all[row][one] = add_products<Multiplied<T>, kNumbers>(all[row][one], from[row], columns[one]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kChannels; ++row) {
#pragma GCC unroll 3
    for (int one = 0; one < kVectors; ++one) store<kNumbers>(all[row][one], sums + (row * kVectors + one) * kNumbers);
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

// In place of an image that is not there.
template <typename T>
const T kZeros[kVectors * kLanes] = {};

// Adds what a band gives to some filters' gradients, whose sums lie as the weights do that `convolve_band` takes. What is
// read lies together for those channels that are computed together.
template <typename T>
void differentiate_band(const Convolution& of, const T* x, const T* dy, const Band& band, const Share& share,
                        Buffer& memory, Buffer& block, float* sums) {
  const int64_t width = of.columns.span(of.columns.outputs), height = of.rows.span(band.rows);
  float* const inputs = memory.of<float>(band.images * height * width * of.channels);
  const int64_t read = band.images * height * width;  // places, whose numbers lie together for channels that are computed so
  for_channels(of.channels, [&](auto count, int64_t channel) {
    copy(of, x, band, {nullptr, height * width * count, width * count, count}, channel, count, inputs + read * channel);
  });
  const std::vector<Place> places = places_of(of, band);
  const Reading reading{inputs, height * width, width, 1};
  const std::vector<std::vector<Pair>> pairs = pairs_of(of, reading, places);
  float* const upstream = block.of<float>(band.images * band.rows * of.columns.outputs * kVectors * kLanes);
  for_filters(of, share.part, share.parts, [&](auto columns, int64_t filter) {
    constexpr int64_t kPitch = columns.kWidth;
    const int64_t there = std::min(kPitch, of.filters - filter);
    for_results(of, places, [&](int64_t place, int64_t from) {
      float* const to = upstream + place * kPitch;
      const T* const first = dy + from + filter;
      [[maybe_unused]] const bool has_second = of.has_second(places[place].image);
      [[maybe_unused]] const T* const second = has_second ? first + of.places() * of.filters : kZeros<T>;
      in_registers(there, [&](auto lanes, int64_t one) {
        if constexpr (kAtOnce<T> == 1)
          store<lanes>(load<lanes>(first + one), to + one);
        else
          store<lanes>(paired<lanes>(first + one, second + one), to + one);
      });
      std::fill(to + there, to + kPitch, 0.0f);
    });
    for_channels(of.channels, [&](auto count, int64_t channel) {
      const float* const block_of_inputs = inputs + read * channel;
      float* to = sums + filter * of.numbers() + channel * kPitch;
      for (size_t down = 0; down < of.rows.taps.size(); ++down)
        for (size_t along = 0; along < of.columns.taps.size(); ++along, to += of.channels * kPitch)
          add_gradients<T, count, decltype(columns)>(block_of_inputs + (down * reading.row + along) * count, pairs[down],
                                                     upstream, to);
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
    for_filters(of, share.part, share.parts, [&](auto columns, int64_t filter) {
      constexpr int64_t kPitch = columns.kWidth;
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
    for_filters(of, share.part, share.parts, [&](auto columns, int64_t filter) {
      std::fill_n(own + filter * of.numbers(), columns.kWidth * of.numbers(), 0.0f);
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
    const Convolution of{sides.down.forward(), sides.along.forward(), in[0], out[1], out[2], in[3], out[3], kAtOnce<T>, 1};
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
        const Axis rows = sides.down.backward(down), columns = sides.along.backward(along);
        const Convolution of{rows, columns, in[0], in[1], in[2], out[3], in[3], kAtOnce<T>, 1};
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
    const Convolution of{sides.down.forward(), sides.along.forward(), in[0], out[1], out[2], in[3], out[3], 1, kAtOnce<T>};
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
