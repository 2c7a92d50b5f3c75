// Images that lie in one line, rows behind rows, with the zeros of a padding between them: a place in the kernel of a
// convolution with strides of 1 is then a distance.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tfperf {

struct ImagesInLine {
  int64_t height, width, out_height, out_width, kernel_height, kernel_width, above, left;

  // Places from row to row, and from image to image: zeros behind one are those before the next.
  int64_t row() const { return width + std::max(left, out_width - 1 + kernel_width - left - width); }
  int64_t image() const { return (height + std::max(above, out_height - 1 + kernel_height - above - height)) * row(); }

  // How much further on the last place in the kernel is than the first.
  int64_t reach() const { return (kernel_height - 1) * row() + kernel_width - 1; }
  int64_t taps() const { return kernel_height * kernel_width; }
};

}  // namespace tfperf
