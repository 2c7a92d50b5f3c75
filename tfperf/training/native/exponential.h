// The exponential function, in operations that compilers write for vectors.
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

}  // namespace tfperf
