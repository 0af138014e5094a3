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

// `a[i, k]` is at `a[i * row_stride + k * depth_stride]`.
struct Left {
  const float* at;
  int64_t row_stride, depth_stride;
  Left From(int32_t row) const { return {at + row * row_stride, row_stride, depth_stride}; }
};

// `b[k, j]` is at `b[k * depth_stride + j]`.
struct Right {
  const float* at;
  int64_t depth_stride;
  Right From(int32_t column) const { return {at + column, depth_stride}; }
};

// `c[i, j]` is at `c[i * row_stride + j]`.
struct Result {
  float* at;
  int64_t row_stride;
  const float* scale;  // of each row of what is there before; null: nothing is
  Result From(int32_t row, int32_t column) const {
    return {at + row * row_stride + column, row_stride, scale == nullptr ? nullptr : scale + row};
  }
};

template <int kRows, int kVectors, int kWidth>
inline __attribute__((always_inline)) void SumTile(Left a, Right b, Result c, int32_t depth) {
  using Vec = typename Vector<kWidth>::type;
  Vec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Vec{};
  }
  for (int32_t k = 0; k < depth; ++k) {
    Vec right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = *reinterpret_cast<const Vec*>(b.at + k * b.depth_stride + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const float left = a.at[i * a.row_stride + k * a.depth_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec* at = reinterpret_cast<Vec*>(c.at + i * c.row_stride + v * kWidth);
      *at = c.scale == nullptr ? sums[i][v] : *at * c.scale[i] + sums[i][v];
    }
  }
}

// All rows of `kVectors` vectors of columns, `kRows` at a time, then half as many.
template <int kRows, int kVectors, int kWidth>
inline __attribute__((always_inline)) void SumRows(Left a, Right b, Result c, int32_t rows, int32_t depth) {
  int32_t row = 0;
  for (; row + kRows <= rows; row += kRows) {
    SumTile<kRows, kVectors, kWidth>(a.From(row), b, c.From(row, 0), depth);
  }
  if constexpr (kRows > 1) {
    SumRows<kRows / 2, kVectors, kWidth>(a.From(row), b, c.From(row, 0), rows - row, depth);
  }
}

constexpr int RowsBeside(int vectors) { return kSums / vectors < kMostRows ? kSums / vectors : kMostRows; }

// All columns, `kVectors` vectors of `kWidth` at a time, then half as many.
template <int kVectors, int kWidth>
inline __attribute__((always_inline)) void SumColumns(
    Left a, Right b, Result c, int32_t rows, int32_t columns, int32_t depth) {
  int32_t column = 0;
  for (; column + kVectors * kWidth <= columns; column += kVectors * kWidth) {
    SumRows<RowsBeside(kVectors), kVectors, kWidth>(a, b.From(column), c.From(0, column), rows, depth);
  }
  if constexpr (kVectors * kWidth > 1) {
    constexpr int kFewer = kVectors > 1 ? kVectors / 2 : 1;
    constexpr int kNarrower = kVectors > 1 ? kWidth : kWidth / 2;
    SumColumns<kFewer, kNarrower>(a, b.From(column), c.From(0, column), rows, columns - column, depth);
  }
}

}  // namespace tkc

// Sums of `a[i, k] * b[k, j]` over `depth`, of `rows` and `columns`, to `c`. Generated code declares it as C.
extern "C" {
static inline __attribute__((always_inline)) void tkc_product_tile(
    float* a, int64_t a_row_stride, int64_t a_depth_stride, float* b, int64_t b_depth_stride, float* c,
    int64_t c_row_stride, int32_t rows, int32_t columns, int32_t depth) {
  const tkc::Left left{a, a_row_stride, a_depth_stride};
  const tkc::Right right{b, b_depth_stride};
  const tkc::Result result{c, c_row_stride, nullptr};
  tkc::SumColumns<tkc::kMostVectors, tkc::kLanes>(left, right, result, rows, columns, depth);
}

// The same, added to what `c` has times its row's `scale`.
static inline __attribute__((always_inline)) void tkc_add_product_tile(
    float* a, int64_t a_row_stride, int64_t a_depth_stride, float* b, int64_t b_depth_stride, float* c,
    int64_t c_row_stride, float* scale, int32_t rows, int32_t columns, int32_t depth) {
  const tkc::Left left{a, a_row_stride, a_depth_stride};
  const tkc::Right right{b, b_depth_stride};
  const tkc::Result result{c, c_row_stride, scale};
  tkc::SumColumns<tkc::kMostVectors, tkc::kLanes>(left, right, result, rows, columns, depth);
}
}
