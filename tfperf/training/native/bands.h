// Shares of a batch of images that are computed one after the other, and by several threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tfperf {

// Some images, or some rows of the output of one: the first and how many.
struct Band {
  int64_t image, images, row, rows;
};

// The bands that images are taken in: an image of many places is several.
class Bands {
 public:
  // `row` and `image` are the places of a row and of an image, of `height` rows each.
  Bands(int64_t images, int64_t height, int64_t row, int64_t image, int64_t most_places, int64_t places_of_band)
      : images_(images), height_(height), image_(image), none_(height == 0 || image == 0) {
    rows_ = none_ || image <= most_places ? height : std::min(height, places_of_band / row + 1);
    of_image_ = none_ ? 0 : (height + rows_ - 1) / rows_;
  }

  int64_t count() const { return images_ * of_image_; }

  // How many are taken together: small images are.
  int64_t together(int64_t places) const { return of_image_ > 1 || none_ ? 1 : std::max<int64_t>(1, places / image_); }

  // The band of a number, and as many behind it.
  Band from(int64_t number, int64_t count) const {
    const int64_t row = number % of_image_ * rows_;
    return {number / of_image_, count, row, std::min(rows_, height_ - row)};
  }

 private:
  int64_t images_, height_, image_, rows_, of_image_;
  bool none_;
};

}  // namespace tfperf
