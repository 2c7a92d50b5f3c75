// What every net compiled by XLA needs, from the sources in TensorFlow's wheel. All else is in its libraries.
#include "tensorflow/compiler/tf2xla/allocator.cc"
#include "tensorflow/compiler/tf2xla/xla_compiled_cpu_function.cc"
#include "xla/backends/cpu/runtime/rng_state_lib.cc"
#include "xla/executable_run_options.cc"
