// Convolutions of each channel by itself, and means of channels: a tile of pixels of one vector of channels.

#pragma once

#include "products_plan.h"

namespace {

template <int W>
struct Part {
  typedef float Type __attribute__((vector_size(4 * W), aligned(4), may_alias));
};

// Which taps of one axis are inside of the image.
struct Range {
  int64_t begin, end;

  // Those of a filter of `kernel` taps from `first` on.
  static Range Of(int64_t first, int64_t kernel, int64_t dilation, int64_t size) {
    int64_t begin = first >= 0 ? 0 : std::min(kernel, (-first + dilation - 1) / dilation);
    int64_t end = first >= size ? begin : std::min(kernel, (size - first + dilation - 1) / dilation);
    return {begin, std::max(begin, end)};
  }
};

// Where a tile's pixels are read: floats between lines, taps and pixels.
struct View {
  const float* at;
  int64_t of_line, of_tap, of_pixel;
};

// P pixels of one vector of channels, over the taps in `rows` and `columns`, which are the same for each of them. The filter is K taps
// wide, all of which are summed; K is 0 where that is not known. S is the stride of a filter without gaps, whose pixels share what they
// read; 0 for others.
template <int P, int W, int K, int S>
inline void Depth(const Plan& plan, View view, const float* weight, Range rows, Range columns, float* sums, int64_t stride) {
  using Values = typename Part<W>::Type;
  Values sum[P];
  for (int p = 0; p < P; ++p) sum[p] = Values{};
  if constexpr (K > 0 && S > 0) {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const float* from = view.at + i * view.of_line;
      Values w[K];
#pragma GCC unroll 16
      for (int j = 0; j < K; ++j) w[j] = *reinterpret_cast<const Values*>(weight + (i * K + j) * plan.channels);
#pragma GCC unroll 32
      for (int x = 0; x < (P - 1) * S + K; ++x) {
        Values value = *reinterpret_cast<const Values*>(from + x * view.of_tap);
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
          if (x - p * S >= 0 && x - p * S < K) sum[p] += value * w[x - p * S];
        }
      }
    }
  } else {
    if (K) columns = {0, K};
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const float* from = view.at + i * view.of_line + columns.begin * view.of_tap;
      const float* taps = weight + (i * plan.kernel[1] + columns.begin) * plan.channels;
      for (int64_t j = columns.begin; j < columns.end; ++j, from += view.of_tap, taps += plan.channels) {
        Values w = *reinterpret_cast<const Values*>(taps);
        for (int p = 0; p < P; ++p) sum[p] += *reinterpret_cast<const Values*>(from + p * view.of_pixel) * w;
      }
    }
  }
  for (int p = 0; p < P; ++p) *reinterpret_cast<Values*>(sums + p * stride) = sum[p];
}

constexpr int kDepthPixels = 7;  // in a tile: images are often multiples of it
constexpr int kMostLines = 7;    // of a filter whose windows are copied at the edges

template <int W, int K, int S>
void DepthRowOf(const Plan& plan, const float* weight, const float* image, int64_t row, int64_t pixel, int64_t channel) {
  alignas(64) float room[kDepthPixels * kLanes], window[K > 0 && S > 0 ? kMostLines * ((kDepthPixels - 1) * S + K) * W : 1];
  int64_t y = row * plan.stride[0] - plan.padding[0];
  Range rows = Range::Of(y, plan.kernel[0], plan.dilation[0], plan.rows);
  int64_t reach = (plan.kernel[1] - 1) * plan.dilation[1];
  weight += channel;
  image += channel;
  View view{nullptr, plan.dilation[0] * plan.columns * plan.channels, plan.dilation[1] * plan.channels, plan.stride[1] * plan.channels};
  auto sum = [&](auto depth, View view, int64_t at, int count, Range columns) {
    float* to = plan.result + (pixel + at) * plan.outputs + channel;
    if (W == kLanes) {
      depth(plan, view, weight, rows, columns, to, plan.outputs);
      Apply(plan.steps, 0, to, count, kLanes, plan.outputs, pixel + at, channel, kLanes);
      return;
    }
    std::memset(room, 0, sizeof room);
    depth(plan, view, weight, rows, columns, room, kLanes);
    Apply(plan.steps, 0, room, count, kLanes, kLanes, pixel + at, channel, W);
    for (int p = 0; p < count; ++p) std::memcpy(to + p * plan.outputs, room + p * kLanes, W * sizeof(float));
  };
  for (int64_t at = 0; at < plan.out[1];) {
    int64_t left = plan.out[1] - at, x = at * plan.stride[1] - plan.padding[1];
    int count = left >= kDepthPixels ? kDepthPixels : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    auto tile = [&](View view) {
      Range all{0, plan.kernel[1]};
      switch (count) {
        case kDepthPixels: sum(Depth<kDepthPixels, W, K, S>, view, at, count, all); break;
        case 4: sum(Depth<4, W, K, S>, view, at, count, all); break;
        case 2: sum(Depth<2, W, K, S>, view, at, count, all); break;
        default: sum(Depth<1, W, K, S>, view, at, count, all);
      }
    };
    view.at = image + (y * plan.columns + x) * plan.channels;
    if (x >= 0 && x + (count - 1) * plan.stride[1] + reach < plan.columns) {
      tile(view);
    } else if (K > 0 && S > 0 && plan.kernel[0] <= kMostLines) {  // with zeros where the image ends
      int64_t wide = (count - 1) * S + K;
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        for (int64_t j = 0; j < wide; ++j) {
          float* to = window + (i * wide + j) * W;
          bool inside = x + j >= 0 && x + j < plan.columns;
          inside ? std::memcpy(to, view.at + i * view.of_line + j * plan.channels, W * sizeof(float)) : std::memset(to, 0, W * sizeof(float));
        }
      }
      tile({window, wide * W, W, S * W});
    } else {
      count = 1;
      sum(Depth<1, W, 0, 0>, view, at, count, Range::Of(x, plan.kernel[1], plan.dilation[1], plan.columns));
    }
    at += count;
  }
}

template <int W, int K>
void DepthRowBy(const Plan& plan, const float* weight, const float* image, int64_t row, int64_t pixel, int64_t channel) {
  int64_t stride = plan.dilation[1] == 1 ? plan.stride[1] : 0;
  auto run = stride == 1 ? DepthRowOf<W, K, 1> : stride == 2 ? DepthRowOf<W, K, 2> : DepthRowOf<W, K, 0>;
  run(plan, weight, image, row, pixel, channel);
}

template <int W>
void DepthRow(const Plan& plan, const float* weight, const float* image, int64_t row, int64_t pixel, int64_t channel) {
  auto run = DepthRowOf<W, 0, 0>;
  if constexpr (W >= 8 || W == kLanes) {  // others are what is left of channels
    int64_t wide = plan.kernel[1];
    run = wide == 3 ? DepthRowBy<W, 3> : wide == 5 ? DepthRowBy<W, 5> : wide == 7 ? DepthRowBy<W, 7> : run;
  }
  run(plan, weight, image, row, pixel, channel);
}

// Rows [begin, end) of all images.
void Depthwise(const Plan& plan, const float* weight, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    int64_t batch = row / plan.out[0], at = row % plan.out[0];
    const float* image = plan.image + batch * plan.rows * plan.columns * plan.channels;
    int64_t pixel = row * plan.out[1], c = 0;
    for (; c + kLanes <= plan.channels; c += kLanes) DepthRow<kLanes>(plan, weight, image, at, pixel, c);
    if constexpr (kLanes == 16) {
      for (; c + 8 <= plan.channels; c += 8) DepthRow<8>(plan, weight, image, at, pixel, c);
    }
    if constexpr (kLanes >= 8) {
      for (; c + 4 <= plan.channels; c += 4) DepthRow<4>(plan, weight, image, at, pixel, c);
    }
    for (; c < plan.channels; ++c) DepthRow<1>(plan, weight, image, at, pixel, c);
  }
}

// The means of `V` vectors of W channels of one image, row by row.
template <int V, int W>
void MeansOf(const Plan& plan, const float* image, float* to) {
  using Values = typename Part<W>::Type;
  Values total[V], line[V];
  for (int v = 0; v < V; ++v) total[v] = Values{};
  for (int64_t y = 0; y < plan.rows; ++y) {
    for (int v = 0; v < V; ++v) line[v] = Values{};
    for (int64_t x = 0; x < plan.columns; ++x, image += plan.channels) {
      for (int v = 0; v < V; ++v) line[v] += *reinterpret_cast<const Values*>(image + v * W);
    }
    for (int v = 0; v < V; ++v) total[v] += line[v];
  }
  float count = static_cast<float>(plan.rows * plan.columns);
  for (int v = 0; v < V; ++v) *reinterpret_cast<Values*>(to + v * W) = total[v] / count;
}

// The means of each channel of images [begin, end).
void Means(const Plan& plan, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; ++at) {
    const float* image = plan.image + at * plan.rows * plan.columns * plan.channels;
    float* to = plan.result + at * plan.channels;
    int64_t c = 0;
    for (; c + 4 * kLanes <= plan.channels; c += 4 * kLanes) MeansOf<4, kLanes>(plan, image + c, to + c);
    for (; c + kLanes <= plan.channels; c += kLanes) MeansOf<1, kLanes>(plan, image + c, to + c);
    for (; c + 4 <= plan.channels; c += 4) MeansOf<1, 4>(plan, image + c, to + c);
    for (; c < plan.channels; ++c) MeansOf<1, 1>(plan, image + c, to + c);
  }
}

}  // namespace
