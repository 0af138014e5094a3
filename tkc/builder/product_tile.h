// A product of two matrices of floats, summed tile by tile in vector registers.
//
// TileLang's C target writes loops over arrays, and GCC keeps only some of these in registers: the others are loaded
// and stored at every step of a sum. It keeps what is a vector by type.

#pragma once

#include <cstdint>

namespace tkc {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kSums = 16;  // floats in a register, registers that hold sums
#elif defined(__AVX__)
constexpr int kLanes = 8, kSums = 8;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kSums = 16;
#else
constexpr int kLanes = 4, kSums = 8;
#endif
constexpr int kMostVectors = kSums / 4;  // in a row of a tile, so that one has four rows at least
constexpr int kMostRows = 8;

template <int kWidth>
struct Vector {
  typedef float type __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
};

// `a[i, s]` is at `a[i * row + s * step]`.
struct Left {
  const float* at;
  int64_t row, step;
};

// `b[s, j]` is at `b[s * step + j]`, `c[i, j]` at `c[i * row + j]`.
struct Right {
  const float* at;
  int64_t step;
};

struct Result {
  float* at;
  int64_t row;
  const float* scale;  // of each row of what is there before; null: nothing is
};

template <int kRows, int kVectors, int kWidth>
inline __attribute__((always_inline)) void SumTile(Left a, Right b, Result c, int32_t steps) {
  using Vec = typename Vector<kWidth>::type;
  Vec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Vec{};
  }
  for (int32_t s = 0; s < steps; ++s) {
    Vec right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = *reinterpret_cast<const Vec*>(b.at + s * b.step + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const float left = a.at[i * a.row + s * a.step];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec* at = reinterpret_cast<Vec*>(c.at + i * c.row + v * kWidth);
      *at = c.scale == nullptr ? sums[i][v] : *at * c.scale[i] + sums[i][v];
    }
  }
}

// All rows of `kVectors` vectors of columns, `kRows` at a time, then half as many.
template <int kRows, int kVectors, int kWidth>
inline __attribute__((always_inline)) void SumRows(Left a, Right b, Result c, int32_t rows, int32_t steps) {
  int32_t row = 0;
  for (; row + kRows <= rows; row += kRows) {
    const Result own{c.at + row * c.row, c.row, c.scale == nullptr ? nullptr : c.scale + row};
    SumTile<kRows, kVectors, kWidth>(Left{a.at + row * a.row, a.row, a.step}, b, own, steps);
  }
  if constexpr (kRows > 1) {
    const Result rest{c.at + row * c.row, c.row, c.scale == nullptr ? nullptr : c.scale + row};
    SumRows<kRows / 2, kVectors, kWidth>(Left{a.at + row * a.row, a.row, a.step}, b, rest, rows - row, steps);
  }
}

constexpr int RowsBeside(int vectors) { return kSums / vectors < kMostRows ? kSums / vectors : kMostRows; }

// All columns, `kVectors` vectors of `kWidth` at a time, then half as many.
template <int kVectors, int kWidth>
inline __attribute__((always_inline)) void SumColumns(
    Left a, Right b, Result c, int32_t rows, int32_t columns, int32_t steps) {
  int32_t column = 0;
  for (; column + kVectors * kWidth <= columns; column += kVectors * kWidth) {
    const Right own{b.at + column, b.step};
    SumRows<RowsBeside(kVectors), kVectors, kWidth>(a, own, Result{c.at + column, c.row, c.scale}, rows, steps);
  }
  if constexpr (kVectors * kWidth > 1) {
    constexpr int kFewer = kVectors > 1 ? kVectors / 2 : 1;
    constexpr int kNarrower = kVectors > 1 ? kWidth : kWidth / 2;
    const Right rest{b.at + column, b.step};
    const Result right{c.at + column, c.row, c.scale};
    SumColumns<kFewer, kNarrower>(a, rest, right, rows, columns - column, steps);
  }
}

}  // namespace tkc

// Sums of `a[i, s] * b[s, j]` over `steps`, of `rows` and `columns`, to `c`. Generated code declares it as C.
extern "C" {
static inline __attribute__((always_inline)) void tkc_product_tile(
    float* a, int64_t a_row, int64_t a_step, float* b, int64_t b_step, float* c, int64_t c_row, int32_t rows,
    int32_t columns, int32_t steps) {
  tkc::SumColumns<tkc::kMostVectors, tkc::kLanes>(
      tkc::Left{a, a_row, a_step}, tkc::Right{b, b_step}, tkc::Result{c, c_row, nullptr}, rows, columns, steps);
}

// The same, added to what `c` has times its row's `scale`.
static inline __attribute__((always_inline)) void tkc_add_product_tile(
    float* a, int64_t a_row, int64_t a_step, float* b, int64_t b_step, float* c, int64_t c_row, float* scale,
    int32_t rows, int32_t columns, int32_t steps) {
  tkc::SumColumns<tkc::kMostVectors, tkc::kLanes>(
      tkc::Left{a, a_row, a_step}, tkc::Right{b, b_step}, tkc::Result{c, c_row, scale}, rows, columns, steps);
}
}
