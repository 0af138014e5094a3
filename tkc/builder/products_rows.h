// Linear layers of few rows, whose weights [outputs, channels] are read as they lie: packing them takes longer than it gains.

#pragma once

#include "products_dense.h"

namespace {

constexpr int64_t kFew = 64;                      // rows at most
constexpr int kRows = 6;                          // that are summed at a time
constexpr int kAtOnce = TKC_LANES == 16 ? 4 : 2;  // outputs that are

template <int N>
struct Half {
  typedef float Type __attribute__((vector_size(4 * N), aligned(4), may_alias));
};

// The sum of the N floats of a vector, half by half.
template <int N>
inline float Total(typename Half<N>::Type x) {
  if constexpr (N == 1) {
    return x[0];
  } else {
    typename Half<N / 2>::Type low, high;
    std::memcpy(&low, &x, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
    return Total<N / 2>(low + high);
  }
}

// P rows of `x` by `some` outputs of the weight at `weight`.
template <int P>
void RowsByOutputs(const Plan& plan, const float* x, const float* weight, int some, float* sums, int width) {
  int64_t depth = plan.channels, whole = depth / kLanes * kLanes;
  const float* w[kAtOnce];
  for (int j = 0; j < kAtOnce; ++j) w[j] = weight + std::min(j, some - 1) * depth;
  Vec sum[P][kAtOnce];
  for (int p = 0; p < P; ++p) {
    for (int j = 0; j < kAtOnce; ++j) sum[p][j] = Vec{};
  }
  for (int64_t k = 0; k < whole; k += kLanes) {
    Vec of[kAtOnce];
    for (int j = 0; j < kAtOnce; ++j) of[j] = Load(w[j] + k);
    for (int p = 0; p < P; ++p) {
      Vec value = Load(x + p * depth + k);
      for (int j = 0; j < kAtOnce; ++j) sum[p][j] += value * of[j];
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int j = 0; j < some; ++j) {
      float total = Total<kLanes>(sum[p][j]);
      for (int64_t k = whole; k < depth; ++k) total += x[p * depth + k] * w[j][k];
      sums[p * width + j] = total;
    }
  }
}

using RowsFunction = void (*)(const Plan&, const float*, const float*, int, float*, int);
constexpr RowsFunction kRowsFunctions[kRows] = {RowsByOutputs<1>, RowsByOutputs<2>, RowsByOutputs<3>,
                                                RowsByOutputs<4>, RowsByOutputs<5>, RowsByOutputs<6>};

bool IsFew(const Plan& plan) { return plan.flat() && plan.dense() && !plan.transposed && plan.pixels <= kFew; }

// The blocks of output channels [first, last).
void Few(const Plan& plan, int64_t first, int64_t last) {
  alignas(64) float sums[kFew * kBlock];
  int rows = static_cast<int>(plan.pixels), parts = (rows + kRows - 1) / kRows;
  for (int64_t n = first; n < last; ++n) {
    int64_t channel = FirstChannel(plan, n);
    int width = static_cast<int>(FirstChannel(plan, n + 1) - channel);
    int count = static_cast<int>(std::min<int64_t>(width, plan.outputs - channel));
    if (count < width) std::memset(sums, 0, sizeof sums);  // steps compute what stands beyond, too
    for (int j = 0; j < count; j += kAtOnce) {
      const float* weight = plan.weight + (channel + j) * plan.channels;
      for (int part = 0; part < parts; ++part) {
        int at = part * rows / parts, some = (part + 1) * rows / parts - at;
        kRowsFunctions[some - 1](plan, plan.image + at * plan.channels, weight, std::min(kAtOnce, count - j),
                                 sums + at * width + j, width);
      }
    }
    for (int at = 0; at < rows; at += kPixels) Write(plan, sums + at * width, std::min(kPixels, rows - at), width, at, channel);
  }
}

}  // namespace
