// Vectors of floats, and the functions of them that follow sums.

#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#ifndef TKC_LANES
#define TKC_LANES 4
#endif

namespace {

constexpr int kLanes = TKC_LANES;
typedef float Vec __attribute__((vector_size(4 * TKC_LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * TKC_LANES), aligned(4), may_alias));

inline Vec Load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void Store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }
inline Vec All(float value) { return value - Vec{}; }  // less zero, which is no instruction: zero and -0 are -0

struct Aligned {
  explicit Aligned(size_t count) : values(static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64))) {
    if (values == nullptr) throw std::bad_alloc();
  }
  ~Aligned() { std::free(values); }
  Aligned(const Aligned&) = delete;
  float* values;
};

// The greater, the less of a number and `x`; `x` if that is no number.
inline Vec AtLeast(float number, Vec x) {
#if TKC_LANES == 16 && defined(__AVX512F__)
  return (Vec)_mm512_max_ps(_mm512_set1_ps(number), (__m512)x);
#elif TKC_LANES == 8 && defined(__AVX2__)
  return (Vec)_mm256_max_ps(_mm256_set1_ps(number), (__m256)x);
#else
  return x < number ? All(number) : x;
#endif
}

inline Vec AtMost(float number, Vec x) {
#if TKC_LANES == 16 && defined(__AVX512F__)
  return (Vec)_mm512_min_ps(_mm512_set1_ps(number), (__m512)x);
#elif TKC_LANES == 8 && defined(__AVX2__)
  return (Vec)_mm256_min_ps(_mm256_set1_ps(number), (__m256)x);
#else
  return x > number ? All(number) : x;
#endif
}

// `x` times two to the power of `n`, an integer from -150 to 128.
inline Vec Scaled(Vec x, Vec n) {
#if TKC_LANES == 16 && defined(__AVX512F__)
  return (Vec)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  Ints whole = __builtin_convertvector(n == n ? n : Vec{}, Ints);
  Ints half = whole >> 1, rest = whole - half;  // twice, as a power of two of -150 is none
  return x * (Vec)((half + 127) << 23) * (Vec)((rest + 127) << 23);
#endif
}

inline Vec Exp(Vec x) {
  x = AtMost(89.0f, AtLeast(-104.0f, x));  // infinity and zero
  Vec shifted = x * 1.44269504f + 12582912.0f;  // rounds to an integer
  Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return Scaled(p, n);
}

inline Vec Sigmoid(Vec x) { return 1.0f / (1.0f + Exp(-x)); }

inline Vec Tanh(Vec x) {
  Vec magnitude = x < 0.0f ? -x : x;
  Vec e = Exp(-2.0f * magnitude);
  Vec large = (1.0f - e) / (1.0f + e);
  Vec s = x * x;  // near zero, where one minus nearly one loses digits
  Vec p = -5.70498872745e-3f * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  Vec small = p * s * x + x;
  return x != x ? x : magnitude < 0.625f ? small : x < 0.0f ? -large : large;
}

// As Eigen's: a quotient of polynomials, right to 2 units in the last place.
inline Vec Erf(Vec x) {
  Vec c = AtLeast(-4.0f, AtMost(4.0f, x));
  Vec s = c * c;
  Vec p = -2.72614225801306e-10f * s + 2.77068142495902e-08f;
  p = p * s - 2.10102402082508e-06f;
  p = p * s - 5.69250639462346e-05f;
  p = p * s - 7.34990630326855e-04f;
  p = p * s - 2.95459980854025e-03f;
  p = p * s - 1.60960333262415e-02f;
  Vec q = -1.45660718464996e-05f * s - 2.13374055278905e-04f;
  q = q * s - 1.68282697438203e-03f;
  q = q * s - 7.37332916720468e-03f;
  q = q * s - 1.42647390514189e-02f;
  return c * p / q;
}

inline Vec Relu(Vec x) { return AtLeast(0.0f, x); }

}  // namespace
