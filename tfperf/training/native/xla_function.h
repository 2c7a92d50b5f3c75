// What functions that XLA calls have in common: operands, and a pool of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

#include "numbers.h"
#include "xla/ffi/api/ffi.h"

extern "C" const XLA_FFI_Api* XLA_FFI_GetApi();  // TensorFlow's

namespace tfperf {

// Runs work(0) ... work(parts - 1) on the pool's threads and on this one. Parts are taken, not given out: nobody waits
// for one that has not begun, so this thread may be one of the pool's own. This thread takes parts from the first on, the
// others from the last on, so that each finds in its cache what it wrote in the call before. What a part throws is thrown
// here when all are done.
template <typename Work>
void in_parallel(xla::ffi::ThreadPool& pool, int64_t parts, const Work& work) {
  if (parts == 1) return work(0);
  struct Progress {
    std::atomic<int64_t> begun{0}, from_end{0}, done{0};
    std::mutex mutex;
    std::condition_variable all_done;
    std::exception_ptr error;
  };
  auto progress = std::make_shared<Progress>();  // threads that come too late find no part, and no `work` any more
  auto take = [progress, parts, &work](bool first) {
    for (int64_t own = 0; progress->begun.fetch_add(1) < parts; ++own) {
      try {
        work(first ? own : parts - 1 - progress->from_end.fetch_add(1));
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
  try {
    for (int64_t thread = 1; thread < std::min(parts, pool.num_threads()); ++thread)
      pool.Schedule([take] { take(false); });
  } catch (const std::bad_alloc&) {  // those that are scheduled and this one do it
  }
  take(true);
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->all_done.wait(lock, [&] { return progress->done.load() == parts; });
  if (progress->error) std::rethrow_exception(progress->error);
}

// How many parts work is worth: one where there is too little for two threads, else several for each. A thread that comes
// late, or that something else holds up, then does fewer.
inline int64_t parts_worth(const xla::ffi::ThreadPool& pool, int64_t work, int64_t worth_a_thread) {
  constexpr int64_t kPartsOfAThread = 4;
  const int64_t threads = std::min(pool.num_threads(), work / worth_a_thread);
  return threads > 1 ? threads * kPartsOfAThread : 1;
}

// What XLA is told when work is done: that it is, or that there was no memory. Nothing is thrown into XLA.
template <typename Work>
xla::ffi::Error told(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kResourceExhausted, "no memory for training in C++");
  }
  return xla::ffi::Error::Success();
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
