// Memory that threads keep from call to call.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace tfperf {

// It begins at a line of the cache. It is kept, as new memory takes longer than many a product; `forget_if_large` gives back
// more than 8 MiB.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Room for numbers, whose values are left from before.
  template <typename T>
  T* of(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + kLine - 1) / kLine * kLine;
    if (bytes > bytes_) {
      forget();
      memory_ = std::aligned_alloc(kLine, bytes);
      if (memory_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

  void forget_if_large() {
    if (bytes_ > kMostKept) forget();
  }

 private:
  static constexpr int64_t kLine = 64, kMostKept = 1 << 23;

  void forget() {
    std::free(memory_);
    memory_ = nullptr;
    bytes_ = 0;
  }

  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tfperf
