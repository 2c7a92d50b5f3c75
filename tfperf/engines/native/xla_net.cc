// One net compiled by XLA, behind functions that C can call. net.h is what the compiler wrote for it.
#include <string>

#include "net.h"
#include "xla_pool.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Engine {
  explicit Engine(int threads) : pool(threads == 0 ? nullptr : new_pool(threads)) {
    if (pool != nullptr) net.set_thread_pool(device_of(pool));
  }

  ~Engine() {
    if (pool != nullptr) delete_pool(pool);
  }

  Pool* const pool;
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
