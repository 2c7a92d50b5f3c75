// Convolutions by a kernel of 3 x 3 with strides of 1, by Winograd's method: a tile of 2 x 2 outputs, from 4 x 4 inputs, takes
// 16 products in place of 36. Also the gradient of the kernel; that of the inputs is such a convolution.
//
// Inputs of a tile, kernel and outputs each have a transform of 4 x 4 numbers. In place of a convolution there are 16 products
// of matrices, one for each of these: tiles by channels, and channels by filters. In bfloat16 transforms of inputs, kernels and
// upstream gradients are rounded to it; sums are in float32.
//
// Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016: F(2 x 2, 3 x 3).
#include <algorithm>
#include <type_traits>
#include <vector>

#include "buffer.h"
#include "panels.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int kPlaces = 4 * 4;                          // of a transform
constexpr int kTaps = 3 * 3;                            // of a kernel
constexpr int64_t kTiles = 8 * kRowsAtOnce;             // that are transformed before they are multiplied
constexpr int64_t kTilesOfGradient = 16 * kRowsAtOnce;  // the same, where products with all of them are summed
constexpr int64_t kNumbersOfKernel = 1 << 20;           // of a kernel's transform that are there at a time
constexpr int64_t kWorthAThread = 1 << 20;              // multiplications
constexpr int64_t kFewSums = 1 << 18;                   // of a kernel's gradient, of which each part of the tiles has its own
constexpr int64_t kManySums = 1 << 20;                  // more are not found at a time
constexpr int64_t kApart = kColumns;                    // numbers between two places: else they share lines of a cache

// What is convolved, (images, height, width, channels), and what comes out, (images, made_height, made_width, filters).
// `above` and `left` are the zeros before the inputs.
struct Form {
  int64_t images, height, width, channels, made_height, made_width, filters, above, left;

  int64_t down() const { return divided_up(made_height, 2); }  // tiles of an image
  int64_t along() const { return divided_up(made_width, 2); }
  int64_t tiles() const { return images * down() * along(); }
};

// Where a tile begins in its image's outputs.
struct Tile {
  int64_t image, row, column;
};

Tile tile_of(const Form& of, int64_t number) {
  const int64_t each = of.down() * of.along(), within = number % each;
  return {number / each, within / of.along() * 2, within % of.along() * 2};
}

// Transforms of some tiles: at each place rows of numbers, a row for each tile. In bfloat16 they are pairs, of neighbours in a
// row, or of two rows.
struct Transforms {
  float* numbers;
  int64_t rows, width;

  float* at(int place, int64_t row = 0) const { return numbers + place * (rows * width + kApart) + row * width; }
  static int64_t size(int64_t rows, int64_t width) { return kPlaces * (rows * width + kApart); }
};

// How many numbers are a pair.
template <typename T>
constexpr int64_t kTogetherAs = std::is_same_v<T, float> ? 1 : 2;

template <int N>
using Square = Vector<N>[4][4];

// Transforms each line of a square along one axis and then along the other: `make` takes four numbers and changes them.
template <int N, typename Make>
inline void along_both(Square<N>& numbers, const Make& make) {
  for (int i = 0; i < 4; ++i) make(numbers[0][i], numbers[1][i], numbers[2][i], numbers[3][i]);
  for (int i = 0; i < 4; ++i) make(numbers[i][0], numbers[i][1], numbers[i][2], numbers[i][3]);
}

// The numbers of a place; in bfloat16 of two squares, in pairs.
template <typename T, int N>
inline Vector<N> together(const Square<N> (&squares)[kTogetherAs<T>], int place) {
  const Vector<N> first = squares[0][place / 4][place % 4];
  if constexpr (kTogetherAs<T> == 1) {
    return first;
  } else {
    return paired<N>(first, squares[1][place / 4][place % 4]);
  }
}

// From inputs to their transform.
const auto kOfInputs = [](auto& a, auto& b, auto& c, auto& d) {
  const auto first = a - c, second = b + c, third = c - b, fourth = b - d;
  a = first, b = second, c = third, d = fourth;
};

// From the transform of outputs to two of them.
const auto kToOutputs = [](auto& a, auto& b, auto& c, auto& d) {
  const auto first = a + b + c, second = b - c - d;
  a = first, b = second;
};

// From the gradients of two outputs to those of their transform.
const auto kOfUpstream = [](auto& a, auto& b, auto& c, auto& d) {
  const auto sum = a + b, difference = a - b;
  d = -b, b = sum, c = difference;
};

// From three of a kernel to their transform.
const auto kOfKernel = [](auto& a, auto& b, auto& c, auto& d) {
  const auto ends = 0.5f * (a + c), middle = 0.5f * b;
  d = c, b = ends + middle, c = ends - middle;
};

// From the gradient of a kernel's transform to that of three of the kernel.
const auto kToKernel = [](auto& a, auto& b, auto& c, auto& d) {
  const auto sum = 0.5f * (b + c), difference = 0.5f * (b - c);
  a = a + sum, b = difference, c = sum + d;
};

// Transforms some channels of what tiles read in images of (height, width, all_channels): kSide by kSide places, of which the
// first is `above` and `left` of where the tile begins. Beyond the images are zeros. Each is kept: keep(numbers, place, tile, at).
template <int kSide, typename T, typename Make, typename Keep>
void transform(const Form& of, const T* x, int64_t height, int64_t width, int64_t all_channels, int64_t above, int64_t left,
               int64_t begin, int64_t tiles, int64_t channels, const Make& make, const Keep& keep) {
  constexpr int64_t kTilesAtOnce = Keep::kTilesAtOnce;
  static thread_local Buffer of_zeros;
  T* const zeros = of_zeros.of<T>(channels);
  std::fill(zeros, zeros + channels, T{});
  for (int64_t first = 0; first < tiles; first += kTilesAtOnce) {
    const T* from[kTilesAtOnce][kSide][kSide];
    for (int64_t number = 0; number < kTilesAtOnce; ++number) {
      const Tile tile = tile_of(of, begin + first + number);
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) {
          const int64_t row = tile.row - above + i, column = tile.column - left + j;
          const bool within = row >= 0 && row < height && column >= 0 && column < width && first + number < tiles;
          from[number][i][j] = within ? x + ((tile.image * height + row) * width + column) * all_channels : zeros;
        }
    }
    in_registers(channels, [&](auto lanes, int64_t at) {
      constexpr int N = decltype(lanes)::value;
      Square<N> numbers[kTilesAtOnce] = {};
      for (int64_t number = 0; number < kTilesAtOnce; ++number) {
        for (int i = 0; i < kSide; ++i)
          for (int j = 0; j < kSide; ++j) numbers[number][i][j] = load<N>(from[number][i][j] + at);
        along_both<N>(numbers[number], make);
      }
      keep(lanes, numbers, first, at);
    });
  }
}

// Keeps a row for each tile.
template <typename T>
struct InRows {
  static constexpr int64_t kTilesAtOnce = 1;
  Transforms to;

  InRows(const Transforms& to, int64_t channels) : to(to) {
    if (channels % kTogetherAs<T> == 0) return;
    for (int place = 0; place < kPlaces; ++place)  // nobody else is in a pair with the last channel
      for (int64_t row = 0; row < to.rows; ++row) to.at(place, row)[to.width - 1] = 0.0f;
  }

  template <typename Lanes, int N = Lanes::value>
  void operator()(Lanes, const Square<N> (&numbers)[1], int64_t tile, int64_t at) const {
    for (int place = 0; place < kPlaces; ++place)
      store<N>(numbers[0][place / 4][place % 4], reinterpret_cast<T*>(to.at(place, tile)) + at);
  }
};

// Keeps a row for each tile, or in bfloat16 one for two of them.
template <typename T>
struct InColumns {
  static constexpr int64_t kTilesAtOnce = kTogetherAs<T>;
  Transforms to;

  template <typename Lanes, int N = Lanes::value>
  void operator()(Lanes, const Square<N> (&numbers)[kTilesAtOnce], int64_t tile, int64_t at) const {
    for (int place = 0; place < kPlaces; ++place)
      store<N>(together<T, N>(numbers, place), to.at(place, tile / kTilesAtOnce) + at);
  }
};

// Writes the outputs of some tiles, for some filters from `filter` on.
template <typename T>
void finish(const Form& of, const Transforms& from, int64_t begin, int64_t filter, const T* bias, T* y) {
  for (int64_t number = 0; number < from.rows; ++number) {
    const Tile tile = tile_of(of, begin + number);
    T* const to = y + ((tile.image * of.made_height + tile.row) * of.made_width + tile.column) * of.filters + filter;
    const int64_t rows = std::min<int64_t>(2, of.made_height - tile.row);
    const int64_t columns = std::min<int64_t>(2, of.made_width - tile.column);
    in_registers(from.width, [&](auto lanes, int64_t at) {
      constexpr int N = decltype(lanes)::value;
      Square<N> numbers;
      for (int place = 0; place < kPlaces; ++place) numbers[place / 4][place % 4] = load<N>(from.at(place, number) + at);
      along_both<N>(numbers, kToOutputs);
      const Vector<N> offset = load<N>(bias + filter + at);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          store<N>(numbers[i][j] + offset, to + (i * of.made_width + j) * of.filters + at);
    });
  }
}

// A kernel, number (tap, row, column) of which is at numbers + tap * taps + row * rows + column * columns: (3, 3, channels,
// filters) as it is, or as the gradient of the inputs takes it, with channels and filters exchanged and the last tap first.
template <typename T>
struct Kernel {
  const T* numbers;
  int64_t taps, rows, columns;

  static Kernel plain(const T* numbers, int64_t channels, int64_t filters) {
    return {numbers, channels * filters, filters, 1};
  }
  static Kernel turned(const T* numbers, int64_t channels, int64_t filters) {
    return {numbers + (kTaps - 1) * channels * filters, -channels * filters, 1, filters};
  }
};

// Numbers that are so far apart, side by side.
template <typename T>
void gather(const T* from, int64_t apart, int64_t count, float* to) {
  if (apart == 1)
    return in_registers(count, [&](auto lanes, int64_t at) { store<lanes>(load<lanes>(from + at), to + at); });
  for (int64_t j = 0; j < count; ++j) to[j] = widened(from[j * apart]);
}

// Transforms a panel of the columns of a kernel that has so many rows; the panels of a place are `apart` from those of the next.
template <typename T>
void transform_panel(const Kernel<T>& kernel, int64_t rows, int64_t first, int64_t panel, const Panels& to, int64_t apart) {
  const T* const from = kernel.numbers + (first + panel * kColumns) * kernel.columns;
  const int64_t width = to.width(panel);
  alignas(64) float some[kTogetherAs<T>][kTaps][kColumns] = {};
  for (int64_t row = 0; row < to.rows; ++row) {
    for (int64_t number = 0; number < kTogetherAs<T>; ++number) {
      const int64_t of_kernel = row * kTogetherAs<T> + number;
      for (int tap = 0; tap < kTaps; ++tap)
        if (of_kernel < rows) {
          gather(from + of_kernel * kernel.rows + tap * kernel.taps, kernel.columns, width, some[number][tap]);
        } else {
          std::fill(some[number][tap], some[number][tap] + kColumns, 0.0f);
        }
    }
    for (int at = 0; at < kColumns; at += kLanes) {
      Square<kLanes> numbers[kTogetherAs<T>] = {};
      for (int64_t number = 0; number < kTogetherAs<T>; ++number) {
        for (int tap = 0; tap < kTaps; ++tap) numbers[number][tap / 3][tap % 3] = load<kLanes>(some[number][tap] + at);
        along_both<kLanes>(numbers[number], kOfKernel);
      }
      for (int place = 0; place < kPlaces; ++place)
        store<kLanes>(together<T, kLanes>(numbers, place), to.at(panel, row) + place * apart + at);
    }
  }
}

// Does work(begin, count) for the tiles of a part, some at a time.
template <typename Work>
void for_tiles(int64_t begin, int64_t end, int64_t at_a_time, const Work& work) {
  for (; begin < end; begin += at_a_time) work(begin, std::min(at_a_time, end - begin));
}

int64_t parts_of(ffi::ThreadPool& pool, const Form& of) {
  const int64_t products = of.tiles() * kPlaces * of.channels * of.filters;
  return std::max<int64_t>(1, std::min(parts_worth(pool, products, kWorthAThread), divided_up(of.tiles(), kRowsAtOnce)));
}

// Where a part of the tiles begins.
int64_t begin_of(const Form& of, int64_t part, int64_t parts) {
  return std::min(of.tiles(), divided_up(of.tiles(), kRowsAtOnce) * part / parts * kRowsAtOnce);
}

// So many filters at a time that their transform stays in the cache that all cores share.
template <typename T>
void convolve(ffi::ThreadPool& pool, const Form& of, const T* x, const Kernel<T>& kernel, const T* bias, T* y) {
  static thread_local Buffer of_kernel;
  const int64_t parts = parts_of(pool, of), width = divided_up(of.channels, kTogetherAs<T>);
  const int64_t at_a_time = std::max<int64_t>(1, kNumbersOfKernel / (kPlaces * width * kColumns)) * kColumns;
  for (int64_t filter = 0; filter < of.filters; filter += at_a_time) {
    const int64_t filters = std::min(at_a_time, of.filters - filter), apart = Panels::size(width, filters);
    const Panels panels{of_kernel.of<float>(kPlaces * apart), width, filters};
    in_parallel(pool, panels.count(),
                [&](int64_t panel) { transform_panel(kernel, of.channels, filter, panel, panels, apart); });
    in_parallel(pool, parts, [&](int64_t part) {
      static thread_local Buffer of_inputs, of_outputs;
      for_tiles(begin_of(of, part, parts), begin_of(of, part + 1, parts), kTiles, [&](int64_t begin, int64_t count) {
        const Transforms inputs{of_inputs.of<float>(Transforms::size(count, width)), count, width};
        const Transforms outputs{of_outputs.of<float>(Transforms::size(count, filters)), count, filters};
        transform<4>(of, x, of.height, of.width, of.channels, of.above, of.left, begin, count, of.channels, kOfInputs,
                     InRows<T>(inputs, of.channels));
        for (int place = 0; place < kPlaces; ++place)
          multiply_panels<T>({inputs.at(place), width, 1}, count, {panels.numbers + place * apart, width, filters},
                             outputs.at(place), filters, false, [](int64_t) { return kAsItIs; });
        finish(of, outputs, begin, filter, bias, y);
      });
      of_inputs.forget_if_large();
      of_outputs.forget_if_large();
    });
  }
  of_kernel.forget_if_large();
}

// What some tiles add to the gradient of a kernel's transform, for some filters: (places, channels, filters).
template <typename T>
void add_tiles(const Form& of, const T* x, const T* dy, int64_t begin, int64_t end, int64_t filter, int64_t filters,
               float* sums) {
  static thread_local Buffer of_inputs, of_upstream;
  std::fill(sums, sums + kPlaces * of.channels * filters, 0.0f);
  for_tiles(begin, end, kTilesOfGradient, [&](int64_t first, int64_t count) {
    const int64_t rows = divided_up(count, kTogetherAs<T>);
    const Transforms inputs{of_inputs.of<float>(Transforms::size(rows, of.channels)), rows, of.channels};
    const Transforms upstream{of_upstream.of<float>(Transforms::size(rows, filters)), rows, filters};
    transform<4>(of, x, of.height, of.width, of.channels, of.above, of.left, first, count, of.channels, kOfInputs,
                 InColumns<T>{inputs});
    transform<2>(of, dy + filter, of.made_height, of.made_width, of.filters, 0, 0, first, count, filters, kOfUpstream,
                 InColumns<T>{upstream});
    for (int place = 0; place < kPlaces; ++place)
      multiply_transposed<T>(inputs.at(place), of.channels, upstream.at(place), filters, rows, of.channels, filters,
                             sums + place * of.channels * filters, filters, true);
  });
  of_inputs.forget_if_large();
  of_upstream.forget_if_large();
}

// The gradient of a kernel from that of its transform, as `parts` sums of it, for some filters of one channel.
template <typename T>
void finish_kernel(const Form& of, const float* sums, int64_t parts, int64_t channel, int64_t filter, int64_t filters,
                   T* dkernel) {
  const int64_t size = of.channels * filters;
  in_registers(filters, [&](auto lanes, int64_t at) {
    constexpr int N = decltype(lanes)::value;
    Square<N> numbers = {};
    for (int64_t part = 0; part < parts; ++part)
      for (int place = 0; place < kPlaces; ++place)
        numbers[place / 4][place % 4] += load<N>(sums + (part * kPlaces + place) * size + channel * filters + at);
    along_both<N>(numbers, kToKernel);
    for (int tap = 0; tap < kTaps; ++tap)
      store<N>(numbers[tap / 3][tap % 3], dkernel + (tap * of.channels + channel) * of.filters + filter + at);
  });
}

// Threads share the tiles, each with sums of its own; where these are many they share the filters, some at a time.
template <typename T>
void find_kernel(ffi::ThreadPool& pool, const Form& of, const T* x, const T* dy, T* dkernel) {
  static thread_local Buffer of_sums;
  const int64_t size = kPlaces * of.channels * of.filters, worth = std::min(pool.num_threads(), parts_of(pool, of));
  if (size <= kFewSums) {
    float* const sums = of_sums.of<float>(worth * size);
    in_parallel(pool, worth, [&](int64_t part) {
      add_tiles(of, x, dy, begin_of(of, part, worth), begin_of(of, part + 1, worth), 0, of.filters, sums + part * size);
    });
    for (int64_t channel = 0; channel < of.channels; ++channel)
      finish_kernel(of, sums, worth, channel, 0, of.filters, dkernel);
    return of_sums.forget_if_large();
  }
  const int64_t panels = divided_up(of.filters, kColumns), parts = std::min(std::max(worth, divided_up(size, kManySums)), panels);
  in_parallel(pool, parts, [&](int64_t part) {
    static thread_local Buffer of_own;
    const int64_t filter = panels * part / parts * kColumns;
    const int64_t filters = std::min(panels * (part + 1) / parts * kColumns, of.filters) - filter;
    float* const own = of_own.of<float>(kPlaces * of.channels * filters);
    add_tiles(of, x, dy, 0, of.tiles(), filter, filters, own);
    for (int64_t channel = 0; channel < of.channels; ++channel) finish_kernel(of, own, 1, channel, filter, filters, dkernel);
    of_own.forget_if_large();
  });
}

Form form_of(const ffi::AnyBuffer& x, ffi::AnyBuffer::Dimensions made, int32_t above, int32_t left) {
  const auto sizes = x.dimensions();
  return {sizes[0], sizes[1], sizes[2], sizes[3], made[1], made[2], made[3], above, left};
}

template <typename T>
ffi::Error convolution(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::AnyBuffer bias,
                       ffi::Result<ffi::AnyBuffer> y, int32_t above, int32_t left) {
  const Form of = form_of(x, y->dimensions(), above, left);
  return told([&] {
    convolve(pool, of, numbers_of<T>(x), Kernel<T>::plain(numbers_of<T>(kernel), of.channels, of.filters), numbers_of<T>(bias),
             numbers_of<T>(y));
  });
}

// The outputs' gradients are convolved: `above` and `left` are the zeros before them.
template <typename T>
ffi::Error input_gradient(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer kernel, ffi::Result<ffi::AnyBuffer> dx,
                          int32_t above, int32_t left) {
  const Form of = form_of(dy, dx->dimensions(), above, left);
  return told([&] {
    const std::vector<T> zeros(of.filters);
    convolve(pool, of, numbers_of<T>(dy), Kernel<T>::turned(numbers_of<T>(kernel), of.filters, of.channels), zeros.data(),
             numbers_of<T>(dx));
  });
}

template <typename T>
ffi::Error kernel_gradient(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dkernel,
                           int32_t above, int32_t left) {
  const Form of = form_of(x, dy.dimensions(), above, left);
  return told([&] { find_kernel(pool, of, numbers_of<T>(x), numbers_of<T>(dy), numbers_of<T>(dkernel)); });
}

auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>().Attr<int32_t>("above").Attr<int32_t>("left");
}

auto gradient_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
      .Attr<int32_t>("above").Attr<int32_t>("left");
}

XLA_FFI_DEFINE_HANDLER(kForwardF32, convolution<float>, form());
XLA_FFI_DEFINE_HANDLER(kForwardBF16, convolution<bfloat16>, form());
XLA_FFI_DEFINE_HANDLER(kInputGradientF32, input_gradient<float>, gradient_form());
XLA_FFI_DEFINE_HANDLER(kInputGradientBF16, input_gradient<bfloat16>, gradient_form());
XLA_FFI_DEFINE_HANDLER(kKernelGradientF32, kernel_gradient<float>, gradient_form());
XLA_FFI_DEFINE_HANDLER(kKernelGradientBF16, kernel_gradient<bfloat16>, gradient_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_winograd_f32", kForwardF32) &&
         register_function("tfperf_winograd_bf16", kForwardBF16) &&
         register_function("tfperf_winograd_of_inputs_f32", kInputGradientF32) &&
         register_function("tfperf_winograd_of_inputs_bf16", kInputGradientBF16) &&
         register_function("tfperf_winograd_of_kernel_f32", kKernelGradientF32) &&
         register_function("tfperf_winograd_of_kernel_bf16", kKernelGradientBF16);
}

}  // namespace tfperf
