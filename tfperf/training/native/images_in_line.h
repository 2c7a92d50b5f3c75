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

// Some images, or some rows of the output of one: the first and how many.
struct Band {
  int64_t image, images, row, rows;
};

// The bands that images are taken in: an image of many places is several.
class Bands {
 public:
  Bands(const ImagesInLine& of, int64_t images, int64_t most_places, int64_t places_of_band)
      : images_(images), out_height_(of.out_height), none_(of.out_height == 0 || of.image() == 0) {
    rows_ = none_ || of.image() <= most_places ? of.out_height : std::min(of.out_height, places_of_band / of.row() + 1);
    of_image_ = none_ ? 0 : (of.out_height + rows_ - 1) / rows_;
    image_ = of.image();
  }

  int64_t count() const { return images_ * of_image_; }

  // How many are taken together: small images are.
  int64_t together(int64_t places) const { return of_image_ > 1 || none_ ? 1 : std::max<int64_t>(1, places / image_); }

  // The band of a number, and as many behind it.
  Band from(int64_t number, int64_t count) const {
    const int64_t row = number % of_image_ * rows_;
    return {number / of_image_, count, row, std::min(rows_, out_height_ - row)};
  }

 private:
  int64_t images_, out_height_, rows_, of_image_, image_;
  bool none_;
};

}  // namespace tfperf
