// Sums over all channels: a tile of pixels and of vectors of output channels stays in registers.

#pragma once

#include "products_plan.h"

namespace {

// Pixels in a tile of so many vectors: 10 of 16 registers, and 24 of 32 are sums.
constexpr int PixelsOf(int vectors) {
  if (TKC_LANES < 16) return vectors == 2 ? 6 : 10;
  return vectors == 4 ? 6 : vectors == 3 ? 8 : 12;
}
constexpr int64_t kLine = 16;          // floats of a cache line
constexpr int64_t kStreamed = 1 << 16; // floats of a weight, from which on it does not stay in the caches from call to call
constexpr int64_t kPixelBlock = 240;   // whose pointers are made at once
constexpr int64_t kChunk = 1024;       // steps of a sum whose weights stay in the cache
constexpr int64_t kLineChannels = 32;  // of an image, up to which a line of the filter is one run

// A run of the channels of one tap, or of a line of taps, in a sum.
struct Segment {
  int tap;
  int64_t begin, end;
};

// Adds up `segments` for P pixels and V vectors, and `from`, the sums of earlier ones, if there are any; `pixels[tap * pitch + p]` is
// where a pixel's channels are for a tap. The sums of a pixel lie together in `from`, and `stride` apart from those of the next in `to`.
// Takes `step` of the vectors at `channel`, if there is one. Has a line at `ahead` brought to the second cache in each step, if it `kFetches`. Loops are unrolled by name: GCC keeps the sums on
// the stack otherwise, and stores and loads them at the end.
template <int P, int V, bool kFetches>
void Tile(const Segment* segments, int count, const float* const* pixels, int64_t pitch, const float* weight, const float* from,
          float* to, int64_t stride, const float* ahead, const InRegisters* step, int64_t channel) {
  Vec sum[P][V];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[p][v] = Vec{};
  }
  for (int s = 0; s < count; ++s) {
    const float* x[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) x[p] = pixels[segments[s].tap * pitch + p];
    for (int64_t c = segments[s].begin; c < segments[s].end; ++c) {
      Vec w[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) w[v] = Load(weight + v * kLanes);
      weight += V * kLanes;
      if constexpr (kFetches) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += kLine;
      }
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        Vec value = All(x[p][c]);
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sum[p][v] += value * w[v];
      }
    }
  }
  if (from != nullptr) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[p][v] += Load(from + (p * V + v) * kLanes);
    }
  }
  if (step != nullptr) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      int64_t at = channel + v * kLanes;
      Vec shift = Load(step->shift + at);
      if (step->normalizes) {
        Vec mean = Load(step->mean + at), scale = Load(step->scale + at);
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[p][v] = (sum[p][v] - mean) * scale + shift;
      } else {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[p][v] += shift;
      }
    }
    if (step->relu) {
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sum[p][v] = Relu(sum[p][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) Store(to + p * stride + v * kLanes, sum[p][v]);
  }
}

using TileFunction = void (*)(const Segment*, int, const float* const*, int64_t, const float*, const float*, float*, int64_t,
                              const float*, const InRegisters*, int64_t);

template <int P, int V, bool kFetches>
constexpr TileFunction TileIfAny() {
  if constexpr (V <= kVectors && P <= PixelsOf(V)) return Tile<P, V, kFetches>;
  return nullptr;
}

template <int P>
struct Row {
  static constexpr TileFunction of[2][4] = {
      {TileIfAny<P, 1, false>(), TileIfAny<P, 2, false>(), TileIfAny<P, 3, false>(), TileIfAny<P, 4, false>()},
      {TileIfAny<P, 1, true>(), TileIfAny<P, 2, true>(), TileIfAny<P, 3, true>(), TileIfAny<P, 4, true>()}};
};

TileFunction TileOf(int pixels, int vectors, bool fetches) {
  static constexpr const TileFunction(*tiles[kPixels])[4] = {Row<1>::of, Row<2>::of,  Row<3>::of,  Row<4>::of,  Row<5>::of,
                                                            Row<6>::of, Row<7>::of,  Row<8>::of,  Row<9>::of,  Row<10>::of,
                                                            Row<11>::of, Row<12>::of};
  return tiles[pixels - 1][fetches][vectors - 1];
}

// How an image is read: in runs of the channels of one tap from each source, or, where these are few, of the taps of one line of the
// filter, which lie behind each other, too.
struct Runs {
  explicit Runs(const Plan& plan)
      : lines(plan.kernel[1] > 1 && plan.dilation[1] == 1 && plan.channels <= kLineChannels && plan.dense()),
        wide(lines ? 1 : plan.kernel[1]),
        sources(static_cast<int64_t>(plan.sources.size())),
        count(plan.kernel[0] * wide * sources),
        longest(lines ? plan.kernel[1] * plan.channels : plan.channels) {
    for (int64_t column = 0; lines && column < plan.out[1]; ++column) {
      int64_t x = column * plan.stride[1] - plan.padding[1];
      edges += x < 0 || x + plan.kernel[1] > plan.columns;
    }
  }

  // Floats that are copied for `pixels` neighbouring pixels at most: lines that stick out of the image.
  int64_t copied(const Plan& plan, int64_t pixels) const {
    return lines ? std::min(pixels, (pixels / plan.out[1] + 2) * edges) * count * longest : 0;
  }

  int64_t length(const Plan& plan, int64_t run) const { return lines ? longest : plan.sources[run % sources].channels; }

  const bool lines;
  const int64_t wide, sources, count, longest;
  int64_t edges = 0;  // of a row's pixels
};

// Where each pixel's runs are: `zeros` where the filter is outside of the image. Lines that are so in part are copied.
void Point(const Plan& plan, const Runs& runs, int64_t begin, int64_t end, const float* zeros, float* copies, const float** pointers,
           int64_t pitch) {
  if (plan.flat()) {
    for (const Source& source : plan.sources) {
      for (int64_t pixel = begin; pixel < end; ++pixel) pointers[pixel - begin] = source.values + pixel * source.pitch;
      pointers += pitch;
    }
    return;
  }
  int64_t reach = runs.lines ? plan.kernel[1] : 1;
  for (int64_t pixel = begin; pixel < end;) {  // a row of the result, or what is left of it
    int64_t image = pixel / (plan.out[0] * plan.out[1]), of_image = pixel % (plan.out[0] * plan.out[1]);
    int64_t out_row = of_image / plan.out[1], first = of_image % plan.out[1], last = std::min(plan.out[1], first + end - pixel);
    const float** to = pointers + (pixel - begin) - first;
    for (int64_t i = 0; i < plan.kernel[0]; ++i) {
      int64_t y = out_row * plan.stride[0] - plan.padding[0] + i * plan.dilation[0];
      int64_t line_at = (image * plan.rows + y) * plan.columns;
      for (int64_t run = 0; run < runs.wide * runs.sources; ++run, to += pitch) {
        const Source& source = plan.sources[run % runs.sources];
        int64_t j = run / runs.sources;
        if (y < 0 || y >= plan.rows) {
          std::fill(to + first, to + last, zeros);
          continue;
        }
        int64_t offset = j * plan.dilation[1] - plan.padding[1], room = plan.columns - reach - offset;
        const float* line = source.values + line_at * source.pitch;
        int64_t from = std::clamp(offset < 0 ? (plan.stride[1] - 1 - offset) / plan.stride[1] : 0, first, last);
        int64_t until = std::clamp(room < 0 ? 0 : room / plan.stride[1] + 1, from, last);
        auto outside = [&](int64_t column) {
          to[column] = zeros;
          if (!runs.lines) return;
          int64_t x = column * plan.stride[1] + offset, left = std::clamp<int64_t>(-x, 0, reach);
          int64_t right = std::clamp<int64_t>(plan.columns - x, left, reach);
          std::memset(copies, 0, runs.longest * sizeof(float));
          if (right > left) {
            std::memcpy(copies + left * plan.channels, line + (x + left) * plan.channels, (right - left) * plan.channels * sizeof(float));
          }
          to[column] = copies;
          copies += runs.longest;
        };
        for (int64_t column = first; column < from; ++column) outside(column);
        int64_t step = plan.stride[1] * source.pitch;
        const float* at = line + from * step + offset * source.pitch;
        for (int64_t column = from; column < until; ++column, at += step) to[column] = at;
        for (int64_t column = until; column < last; ++column) outside(column);
      }
    }
    pixel += last - first;
  }
}

// The steps behind `rows` pixels' sums, which lie `width` apart, and the result of them.
void Write(const Plan& plan, float* values, int rows, int width, int64_t pixel, int64_t channel) {
  int columns = static_cast<int>(std::min<int64_t>(width, plan.outputs - channel));
  Apply(plan.steps, 0, values, rows, width, width, pixel, channel, columns);
  for (int row = 0; row < rows; ++row) {
    std::memcpy(plan.result + (pixel + row) * plan.outputs + channel, values + row * width, columns * sizeof(float));
  }
}

// The sums of one call, cut into chunks.
struct Sums {
  Sums(const Plan& plan, const Runs& runs) {
    int64_t steps = 0;
    for (int run = 0; run < runs.count; ++run) {
      int64_t length = runs.length(plan, run);
      for (int64_t c = 0; c < length;) {
        int64_t count = std::min(length - c, kChunk - steps);
        segments.push_back({run, c, c + count});
        c += count;
        steps += count;
        if (steps == kChunk) {
          chunks.push_back(static_cast<int>(segments.size()));
          steps = 0;
        }
      }
    }
    if (chunks.back() != static_cast<int>(segments.size())) chunks.push_back(static_cast<int>(segments.size()));
  }

  std::vector<Segment> segments;
  std::vector<int> chunks{0};  // where each begins in `segments`
};

// Pixels [begin, end) of the blocks of output channels [first, last). Where there is no packed `weight`, each block is packed for them.
void Dense(const Plan& plan, const float* weight, int64_t begin, int64_t end, int64_t first, int64_t last) {
  if (begin >= end || first >= last) return;
  const Runs runs(plan);
  const Sums sums(plan, runs);
  int64_t depth = plan.taps() * plan.channels, most = std::min<int64_t>(kPixelBlock, end - begin);
  std::vector<const float*> pointers(runs.count * most);
  std::vector<float> zeros(runs.longest, 0.0f);
  int64_t chunks = static_cast<int64_t>(sums.chunks.size()) - 1;
  Aligned copies(runs.copied(plan, most)), partial(chunks > 1 ? most * kBlock : 0), own(weight == nullptr ? depth * kBlock : 0);
  alignas(64) float edge[kPixels * kBlock];
  const InRegisters in_registers(plan.steps);
  bool streams = depth * plan.outputs > kStreamed;
  auto pixels_of = [&](int64_t block, int64_t n, const float* from) {
    int64_t count = std::min(end - block, most), channel = FirstChannel(plan, n);
    int width = static_cast<int>(FirstChannel(plan, n + 1) - channel);
    bool whole = channel + width <= plan.outputs;
    int64_t pixels = PixelsOf(width / kLanes), tiles = (count + pixels - 1) / pixels;
    for (int64_t chunk = 0; chunk < chunks; ++chunk, from += kChunk * width) {
      const Segment* segments = sums.segments.data() + sums.chunks[chunk];
      int number = sums.chunks[chunk + 1] - sums.chunks[chunk];
      int64_t steps = std::min(depth - chunk * kChunk, kChunk);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        int64_t at = tile * count / tiles;
        int rows = static_cast<int>((tile + 1) * count / tiles - at);
        float* held = partial.values + at * width;
        // The first tiles of a chunk have the weights of the next one brought along, which would wait for memory otherwise.
        bool fetches = streams && tile * kLine < width;
        const float* ahead = from + steps * (width + tile * kLine);
        auto sum = [&](float* to, int64_t stride, const InRegisters* step = nullptr) {
          TileOf(rows, width / kLanes, fetches)(segments, number, pointers.data() + at, most, from, chunk > 0 ? held : nullptr, to,
                                                stride, ahead, step, channel);
        };
        if (chunk + 1 < chunks) {
          sum(held, width);
        } else if (whole) {
          float* to = plan.result + (block + at) * plan.outputs + channel;
          sum(to, plan.outputs, in_registers.any() ? &in_registers : nullptr);
          Apply(plan.steps, in_registers.any(), to, rows, width, plan.outputs, block + at, channel, width);
        } else {
          sum(edge, width);
          Write(plan, edge, rows, width, block + at, channel);
        }
      }
    }
  };
  auto point = [&](int64_t block) {
    Point(plan, runs, block, std::min(end, block + most), zeros.data(), copies.values, pointers.data(), most);
  };
  if (weight != nullptr) {
    for (int64_t block = begin; block < end; block += most) {
      point(block);
      for (int64_t n = first; n < last; ++n) pixels_of(block, n, weight + FirstChannel(plan, n) * depth);
    }
    return;
  }
  for (int64_t n = first; n < last; ++n) {
    PackBlock(plan, n, own.values);
    for (int64_t block = begin; block < end; block += most) {
      if (n == first || end - begin > most) point(block);
      pixels_of(block, n, own.values);
    }
  }
}

}  // namespace
