// What every net compiled by XLA needs, from the sources in TensorFlow's wheel. All else is in its libraries.
#define EIGEN_USE_THREADS
#include "tensorflow/compiler/tf2xla/allocator.cc"
#include "tensorflow/compiler/tf2xla/xla_compiled_cpu_function.cc"
#include "unsupported/Eigen/CXX11/Tensor"
#include "xla/backends/cpu/runtime/rng_state_lib.cc"
#include "xla/executable_run_options.cc"
#include "xla_pool.h"

// Here and not beside the net, as its headers take seconds to compile.
struct Pool {
  explicit Pool(int threads) : pool(threads), device(&pool, threads) {}

  Eigen::ThreadPool pool;
  Eigen::ThreadPoolDevice device;
};

Pool* new_pool(int threads) { return new Pool(threads); }

const Eigen::ThreadPoolDevice* device_of(const Pool* pool) { return &pool->device; }

void delete_pool(Pool* pool) { delete pool; }
