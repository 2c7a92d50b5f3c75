// Windows of images over which a maximum is taken, some channels at a time.
#pragma once

#include <type_traits>

#include "numbers.h"

namespace tfperf {

struct Window {
  int64_t height, width;   // places, fewer than 2^16 in all
  int64_t row, channels;   // numbers from a row of the images to the next, and from a column to the next

  // Does work(at, number) for each place in the order of memory, `at` numbers behind the first.
  template <typename Work>
  void for_places(const Work& work) const {
    uint32_t number = 0;
    for (int64_t down = 0; down < height; ++down) {
      for (int64_t along = 0; along < width; ++along) work(down * row + along * channels, number++);
    }
  }
};

// The largest numbers of a window of N channels, and the first places where they are. What is no number is largest.
template <typename T, int N>
struct Largest {
  Vector<N> numbers;
  typename Neighbours<N>::Bits places = {};

  Largest(const Window& window, const T* x) : numbers(load<N>(x)) {
    window.for_places([&](int64_t at, uint32_t number) {
      const Vector<N> next = load<N>(x + at);
      const auto larger = (next > numbers) | ((next != next) & (numbers == numbers));
      numbers = larger ? next : numbers;
      places = larger ? number : places;
    });
  }
};

// Writes N numbers to the places where they belong, and zeros to all others of the window. Whole numbers of the same width
// stand for them, as nothing is computed.
template <typename T, int N>
void spread(const Window& window, const T* numbers, typename Neighbours<N>::Bits places, T* to) {
  using Whole = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  using Wholes = std::conditional_t<sizeof(T) == 2, typename Neighbours<N>::Halves, typename Neighbours<N>::Bits>;
  const Wholes narrow_places = __builtin_convertvector(places, Wholes);
  Wholes moved;
  std::memcpy(&moved, numbers, sizeof moved);
  window.for_places([=](int64_t at, uint32_t number) {
    const Wholes there = narrow_places == static_cast<Whole>(number) ? moved : Wholes{};
    std::memcpy(to + at, &there, sizeof there);
  });
}

}  // namespace tfperf
