// Activations and their gradients, number by number, in one pass each.
#include <algorithm>
#include <cmath>
#include <string>

#include "exponential.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 15;  // numbers

// Each: what it makes of a number, and its slope there. Those that cut off are told of their result, which is there
// anyway and has the same slope.
struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }
  static float slope(float y) { return y > 0.0f ? 1.0f : 0.0f; }
};

struct Relu6 {
  static float value(float x) {
    x = Relu::value(x);
    return x > 6.0f ? 6.0f : x;
  }
  static float slope(float y) { return y > 0.0f && y < 6.0f ? 1.0f : 0.0f; }
};

struct HardSilu {
  static float value(float x) { return x * (Relu6::value(x + 3.0f) * (1.0f / 6.0f)); }
  static float slope(float x) {
    const float between = x > -3.0f && x < 3.0f ? x * (1.0f / 6.0f) : 0.0f;
    return Relu6::value(x + 3.0f) * (1.0f / 6.0f) + between;
  }
};

struct Silu {
  static float value(float x) { return x * sigmoid(x); }
  static float slope(float x) {
    const float share = sigmoid(x);
    return share * (1.0f + x * (1.0f - share));
  }
};

// The normal distribution below x, within 2e-7: Abramowitz and Stegun, 7.1.26. `density` is sqrt(2 pi) times its own.
inline float normal_below(float x, float density) {
  const float size = std::fabs(x);
  const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * size);
  float tail = 1.061405429f;
  tail = tail * t - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = tail * t + 0.254829592f;
  tail = 0.5f * tail * t * density;
  return x < 0.0f ? tail : 1.0f - tail;
}

struct Gelu {
  static float value(float x) { return x * normal_below(x, exponential(-0.5f * x * x)); }
  static float slope(float x) {
    const float density = exponential(-0.5f * x * x), near = x < -14.0f ? -14.0f : x > 14.0f ? 14.0f : x;
    return normal_below(x, density) + near * density * 0.39894228f;
  }
};

template <typename Work>
ffi::Error in_pieces(ffi::ThreadPool& pool, int64_t count, const Work& work) {
  const int64_t parts = parts_worth(pool, count, kWorthAThread);
  return told([&] {
    in_parallel(pool, parts, [=](int64_t part) { work(count * part / parts, count * (part + 1) / parts); });
  });
}

template <typename T, typename Function>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  const T* const from = numbers_of<T>(x);
  T* const to = numbers_of<T>(y);
  return in_pieces(pool, x.element_count(), [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) narrow(Function::value(widened(from[i])), to + i);
  });
}

template <typename T, typename Function>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dx) {
  const T* const upstream = numbers_of<T>(dy);
  const T* const from = numbers_of<T>(x);
  T* const to = numbers_of<T>(dx);
  return in_pieces(pool, x.element_count(), [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      narrow(widened(upstream[i]) * Function::slope(widened(from[i])), to + i);
    }
  });
}

auto forward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>();
}

auto backward_form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>();
}

// Has XLA find a function and its gradient, in both types, by names that end in `name`; whether it now does.
template <typename T, typename Function>
bool register_both(const std::string& name) {
  XLA_FFI_DEFINE_HANDLER(there, (forward<T, Function>), forward_form());
  XLA_FFI_DEFINE_HANDLER(back, (backward<T, Function>), backward_form());
  return register_function(("tfperf_" + name).c_str(), there) &&
         register_function(("tfperf_gradient_of_" + name).c_str(), back);
}

template <typename Function>
bool register_all(const std::string& name) {
  return register_both<float, Function>(name + "_f32") && register_both<bfloat16, Function>(name + "_bf16");
}

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_all<Gelu>("gelu") && register_all<HardSilu>("hard_silu") && register_all<Relu>("relu") &&
         register_all<Relu6>("relu6") && register_all<Silu>("silu");
}

}  // namespace tfperf
