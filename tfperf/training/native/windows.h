// Windows of images of which the largest number or the mean is taken, some channels at a time.
#pragma once

#include <type_traits>

#include "numbers.h"

namespace tfperf {

struct Window {
  int64_t height, width;   // places, at most 2^16 in all
  int64_t row, channels;   // numbers from a row of the images to the next, and from a column to the next

  int64_t places() const { return height * width; }

  // Does work(at, number) for each place in the order of memory, `at` numbers behind the first.
  template <typename Work>
  void for_places(const Work& work) const {
    if (height == 2 && width == 2) {  // which nearly all have: numbers stay in registers
      work(0, 0u);
      work(channels, 1u);
      work(row, 2u);
      work(row + channels, 3u);
      return;
    }
    uint32_t number = 0;
    for (int64_t down = 0; down < height; ++down) {
      for (int64_t along = 0; along < width; ++along) work(down * row + along * channels, number++);
    }
  }
};

// Whole numbers as wide as T, N of them, which stand for numbers that nothing is computed with.
template <typename T, int N>
using Wholes = std::conditional_t<sizeof(T) == 2, typename Neighbours<N>::Halves, typename Neighbours<N>::Bits>;

// The largest numbers of a window of N channels, and the first places where they are. What is no number is largest.
template <typename T, int N>
struct Largest {
  using Bits = typename Neighbours<N>::Bits;
  static constexpr uint8_t kNowhere = 255;  // the place of what a ReLU cut off, where windows have fewer places

  Vector<N> numbers;
  Bits places = {};

  Largest(const Window& window, const T* x, bool relu = false) : numbers(load<N>(x)) {
    window.for_places([&](int64_t at, uint32_t number) {
      const Vector<N> next = load<N>(x + at);
      const auto larger = (next > numbers) | ((next != next) & (numbers == numbers));
      numbers = larger ? next : numbers;
      places = larger ? number : places;
    });
    if (relu) {
      places = numbers > 0.0f ? places : places | kNowhere;
      numbers = numbers < 0.0f ? Vector<N>{} : numbers;
    }
  }

  // Writes upstream gradients to the places where they belong, and zeros to all others of the window.
  static void spread(const Window& window, const T* upstream, Bits places, T* to) {
    using Whole = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    const auto narrow_places = __builtin_convertvector(places, Wholes<T, N>);
    Wholes<T, N> moved;
    std::memcpy(&moved, upstream, sizeof moved);
    window.for_places([=](int64_t at, uint32_t number) {
      const Wholes<T, N> there = narrow_places == static_cast<Whole>(number) ? moved : Wholes<T, N>{};
      std::memcpy(to + at, &there, sizeof there);
    });
  }

  // The same, from the numbers of the window.
  static void spread(const Window& window, const T* upstream, const T* x, T* to) {
    spread(window, upstream, Largest(window, x).places, to);
  }
};

// The means of a window of N channels, and which of its first 8 places have a part in them, a bit for each: those that the
// ReLU did not cut off.
template <typename T, int N>
struct Mean {
  using Bits = typename Neighbours<N>::Bits;

  Vector<N> numbers = {};
  Bits places = {};

  Mean(const Window& window, const T* x, bool relu = false) {
    window.for_places([&](int64_t at, uint32_t number) {
      const Vector<N> next = load<N>(x + at);
      const Bits bit = number < 8 ? Bits{} + (1u << number) : Bits{};
      places |= relu ? (next > 0.0f ? bit : Bits{}) : bit;
      numbers += relu ? (next < 0.0f ? Vector<N>{} : next) : next;
    });
    numbers /= static_cast<float>(window.places());
  }

  // Writes equal shares of upstream gradients to the places that have a part, and zeros to all others of the window, which
  // has at most 8.
  static void spread(const Window& window, const T* upstream, Bits places, T* to) {
    const Wholes<T, N> share = share_of(window, upstream), bits = __builtin_convertvector(places, Wholes<T, N>);
    window.for_places([=](int64_t at, uint32_t number) {
      const Wholes<T, N> there = (bits >> number & 1) != 0 ? share : Wholes<T, N>{};
      std::memcpy(to + at, &there, sizeof there);
    });
  }

  // The same without a ReLU, to all places.
  static void spread(const Window& window, const T* upstream, const T*, T* to) {
    const Wholes<T, N> share = share_of(window, upstream);
    window.for_places([=](int64_t at, uint32_t) { std::memcpy(to + at, &share, sizeof share); });
  }

 private:
  static Wholes<T, N> share_of(const Window& window, const T* upstream) {
    T numbers[N];
    store<N>(load<N>(upstream) / static_cast<float>(window.places()), numbers);
    Wholes<T, N> share;
    std::memcpy(&share, numbers, sizeof share);
    return share;
  }
};

}  // namespace tfperf
