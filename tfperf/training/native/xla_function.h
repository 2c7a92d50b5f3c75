// What functions that XLA calls have in common: operands, and a pool of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "numbers.h"
#include "xla/ffi/api/ffi.h"

extern "C" const XLA_FFI_Api* XLA_FFI_GetApi();  // TensorFlow's

namespace tfperf {

// Runs work(0) ... work(parts - 1) on the pool's threads and on this one. Parts are taken, not given out: nobody waits
// for one that has not begun, so this thread may be one of the pool's own. What a part throws is thrown here, after all.
template <typename Work>
void in_parallel(xla::ffi::ThreadPool& pool, int64_t parts, const Work& work) {
  if (parts == 1) return work(0);
  struct Progress {
    std::atomic<int64_t> begun{0}, done{0};
    std::mutex mutex;
    std::condition_variable all_done;
    std::exception_ptr error;
  };
  auto progress = std::make_shared<Progress>();  // threads that come too late find no part, and no `work` any more
  auto take = [progress, parts, &work] {
    for (int64_t part; (part = progress->begun.fetch_add(1)) < parts;) {
      try {
        work(part);
      } catch (...) {
        std::lock_guard<std::mutex> lock(progress->mutex);
        progress->error = std::current_exception();
      }
      if (progress->done.fetch_add(1) + 1 == parts) {
        std::lock_guard<std::mutex> lock(progress->mutex);
        progress->all_done.notify_one();
      }
    }
  };
  for (int64_t thread = 1; thread < parts; ++thread) pool.Schedule(decltype(take)(take));
  take();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->all_done.wait(lock, [&] { return progress->done.load() == parts; });
  if (progress->error) std::rethrow_exception(progress->error);
}

template <typename T>
const T* numbers_of(const xla::ffi::AnyBuffer& buffer) {
  return static_cast<const T*>(buffer.untyped_data());
}

template <typename T>
T* numbers_of(xla::ffi::Result<xla::ffi::AnyBuffer>& buffer) {
  return static_cast<T*>(buffer->untyped_data());
}

// Has XLA find a function by its name; whether it now does.
inline bool register_function(const char* name, XLA_FFI_Handler* handler) {
  return xla::ffi::Ffi::RegisterStaticHandler(XLA_FFI_GetApi(), name, "Host", handler) == nullptr;
}

}  // namespace tfperf
