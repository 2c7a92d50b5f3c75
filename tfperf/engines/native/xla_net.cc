// One net compiled by XLA, behind functions that C can call. net.h is what the compiler wrote for it.
#define EIGEN_USE_THREADS
#include <memory>
#include <string>

#include "net.h"
#include "unsupported/Eigen/CXX11/Tensor"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Engine {
  explicit Engine(int threads) {
    if (threads == 0) return;
    pool = std::make_unique<Eigen::ThreadPool>(threads);
    device = std::make_unique<Eigen::ThreadPoolDevice>(pool.get(), threads);
    net.set_thread_pool(device.get());
  }

  std::unique_ptr<Eigen::ThreadPool> pool;
  std::unique_ptr<Eigen::ThreadPoolDevice> device;
  Net net;
};

}  // namespace

// threads: of the pool; 0: none, all is done by the caller's thread.
EXPORTED Engine* tfperf_open(int threads) { return new Engine(threads); }

// Where an input is to be written before each run; null: the net does not use it.
EXPORTED void* tfperf_input(Engine* engine, const char* name) {
  const int index = engine->net.LookupArgIndex(std::string("feed_") + name);
  return index < 0 ? nullptr : engine->net.arg_data(index);
}

// Where each run leaves an output; null: there is none of this name.
EXPORTED const void* tfperf_output(Engine* engine, const char* name) {
  const int index = engine->net.LookupResultIndex(std::string("fetch_") + name);
  return index < 0 ? nullptr : engine->net.result_data(index);
}

// 0: done.
EXPORTED int tfperf_run(Engine* engine) { return engine->net.Run() ? 0 : 1; }

EXPORTED void tfperf_close(Engine* engine) { delete engine; }
