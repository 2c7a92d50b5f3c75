// The exponential function and what is computed from it, in operations that compilers write for vectors.
#pragma once

#include <cstdint>
#include <cstring>

namespace tfperf {

// e^x to the last few bits: 2^n e^r, and a polynomial for e^r.
inline float exponential(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it has no places behind the point
  x = x < -87.3f ? -87.3f : x;
  x = x > 89.0f ? 89.0f : x;  // infinity
  const float n = (x * 1.44269504f + kRounder) - kRounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float power = 1.9875691500e-4f;
  power = power * r + 1.3981999507e-3f;
  power = power * r + 8.3334519073e-3f;
  power = power * r + 4.1665795894e-2f;
  power = power * r + 1.6666665459e-1f;
  power = power * r + 5.0000001201e-1f;
  power = power * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return power * scale;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// tanh x, also where it is tiny: Cephes's polynomial near 0, and 1 - 2 / (e^2x + 1) beyond.
inline float hyperbolic_tangent(float x) {
  const float square = x * x;
  float near = -5.70498872745e-3f;
  near = near * square + 2.06390887954e-2f;
  near = near * square - 5.37397155531e-2f;
  near = near * square + 1.33314422036e-1f;
  near = near * square - 3.33332819422e-1f;
  near = near * square * x + x;
  const float far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  return square < 0.390625f ? near : far;
}

}  // namespace tfperf
