// Convolutions and linear layers of float32 on the CPU, whose images have their channels last, with what follows them element by element.
//
// An indirect convolution (Dukhan, "The Indirect Convolution Algorithm", 2019): a tile of pixels and of vectors of output channels stays
// in registers over the whole sum, and reads its pixels through pointers, one for each tap of the filter, or zeros where the filter
// sticks out of the image. Pixels of an image count on through rows and batches, so that only the last tile is smaller. A linear layer
// is a filter of one tap. Depthwise convolutions sum a tile of pixels of one vector of channels.
//
// Weights are packed in blocks of four vectors of output channels. Those that cannot change are packed once, into what the runtime
// hands over before a call (tkc/runtime/packed_products.py); others for each call.
//
// Sums are in the order of the filter's taps and channels, whatever the tile: a row has the same bits among any number of rows.
//
// Nothing here depends on the model. It is compiled once for each vector width (TKC_LANES), and linked into code that calls it.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#ifndef TKC_LANES
#define TKC_LANES 4
#endif

using LaunchBody = int (*)(int task, void* env, void* data);
extern "C" int tkc_launch(LaunchBody body, void* data, int num_task);
extern "C" int tkc_threads();

namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Shape;
using tvm::ffi::Tensor;

constexpr int kLanes = TKC_LANES;
typedef float Vec __attribute__((vector_size(4 * TKC_LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * TKC_LANES), aligned(4), may_alias));

constexpr int kVectors = TKC_LANES == 4 ? 2 : TKC_LANES == 8 ? 2 : 4;  // of output channels in a block
// Pixels in a tile of so many vectors: 10 of 16 registers, and 24 of 32 are sums.
constexpr int PixelsOf(int vectors) {
  if (TKC_LANES < 16) return vectors == 2 ? 5 : 10;
  return vectors == 4 ? 6 : vectors == 3 ? 8 : 12;
}
constexpr int kPixels = 12;  // in any tile
constexpr int kBlock = kVectors * kLanes;
constexpr int kPixelBlock = 240;  // whose pointers are made at once
constexpr int kChunk = 1024;               // steps of a sum whose weights stay in the cache
constexpr int64_t kMeanAxes = 3;           // "axes" of a plan that has the means of the channels computed, and no product
constexpr int64_t kSerial = 1 << 17;       // products that are sooner done than another thread is awake

inline Vec Load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void Store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }
inline Vec All(float value) { return Vec{} + value; }

// What follows a sum, element by element. Of `Plan` each step is three numbers: the operation, the operand's place, and a float's bits.
enum Operation : int64_t {
  kAddChannel, kSubtractChannel, kMultiplyChannel,  // by a vector of output channels
  kAddTensor, kMultiplyTensor,                      // by a tensor like the result
  kAddNumber, kMultiplyNumber, kDivideNumber, kMaximum, kMinimum, kLeaky,
  kRelu, kSigmoid, kSilu, kGelu, kGeluTanh, kTanh,
  kSave, kMultiplySaved,                            // the value as it is, to multiply with later on
  // Several of the above, in one pass (`Joined`).
  kNormalize,   // subtract, multiply and add a vector of channels each
  kNormalizeRelu,
  kAddChannelRelu,
  kAddTensorRelu,
  kHardSwish,
};

struct Step {
  int64_t operation;
  const float* operand;
  float number;
  const float* more[2];  // operands of joined steps
};

inline Vec Exp(Vec x) {
  Vec clamped = x > 88.7228394f ? All(88.7228394f) : x;
  clamped = clamped < -103.972084f ? All(-103.972084f) : clamped;
  Vec shifted = clamped * 1.44269504f + 12582912.0f;  // rounds to an integer
  Vec n = shifted - 12582912.0f;
  Vec r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints whole = __builtin_convertvector(n == n ? n : Vec{}, Ints);
  Ints half = whole >> 1, rest = whole - half;  // twice, as a power of two of -150 is none
  Vec low = (Vec)((half + 127) << 23), high = (Vec)((rest + 127) << 23);
  Vec result = p * low * high;
  return x > 88.7228394f ? All(std::numeric_limits<float>::infinity()) : x != x ? x : result;
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
  Vec c = x > 4.0f ? All(4.0f) : x;
  c = c < -4.0f ? All(-4.0f) : c;
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

// `steps` with those that often follow each other joined.
std::vector<Step> Joined(const std::vector<Step>& steps) {
  std::vector<Step> joined;
  auto is = [&](size_t i, int64_t operation) { return i < steps.size() && steps[i].operation == operation; };
  auto of = [&](size_t i, int64_t operation, float number) { return is(i, operation) && steps[i].number == number; };
  for (size_t i = 0; i < steps.size();) {
    Step step = steps[i];
    if (is(i, kSubtractChannel) && is(i + 1, kMultiplyChannel) && is(i + 2, kAddChannel)) {
      step = {kNormalize, steps[i].operand, 0.0f, {steps[i + 1].operand, steps[i + 2].operand}};
      i += 3;
    } else if (is(i, kSave) && of(i + 1, kAddNumber, 3.0f) && of(i + 2, kMaximum, 0.0f) && of(i + 3, kMinimum, 6.0f) &&
               is(i + 4, kMultiplySaved) && of(i + 5, kDivideNumber, 6.0f)) {
      step = {kHardSwish, nullptr, 0.0f, {}};
      i += 6;
    } else {
      i += 1;
    }
    if (is(i, kRelu)) {
      int64_t with = step.operation == kNormalize ? kNormalizeRelu
                     : step.operation == kAddChannel ? kAddChannelRelu
                     : step.operation == kAddTensor  ? kAddTensorRelu
                                                     : step.operation;
      if (with != step.operation) {
        step.operation = with;
        i += 1;
      }
    }
    joined.push_back(step);
  }
  return joined;
}

// A vector of channels' operands, of which `columns` of `width` count; `room` is where it lies if these are not all.
inline const float* Whole(const float* operand, int columns, int width, float* room) {
  if (columns == width) return operand;
  std::memcpy(room, operand, columns * sizeof(float));
  return room;
}

inline Vec Relu(Vec x) { return x < 0.0f ? Vec{} : x; }

template <typename F>
inline void Each(float* values, int count, F apply) {
  for (int i = 0; i < count; i += kLanes) Store(values + i, apply(Load(values + i)));
}

// `rows` rows of `width` values (whole vectors, of which `columns` count) that lie `stride` apart; the first is of pixel `pixel` and
// output channel `channel` of a result of `channels`. What stands beyond `columns` is computed and not read.
void Apply(const std::vector<Step>& steps, float* values, int rows, int width, int64_t pixel, int64_t channel, int columns,
           int64_t channels) {
  if (steps.empty()) return;
  alignas(64) float room[3][kBlock], saved[kPixels * kBlock];
  if (columns < width) std::memset(room, 0, sizeof room);
  int all = rows * width;
  for (const Step& step : steps) {
    float number = step.number;
    switch (step.operation) {
      case kAddChannel: case kSubtractChannel: case kMultiplyChannel: case kAddChannelRelu: {
        const float* operand = Whole(step.operand + channel, columns, width, room[0]);
        for (int v = 0; v < width; v += kLanes) {
          Vec by = Load(operand + v);
          for (float* at = values + v; at < values + all; at += width) {
            Vec x = Load(at);
            switch (step.operation) {
              case kAddChannel: x += by; break;
              case kSubtractChannel: x -= by; break;
              case kMultiplyChannel: x *= by; break;
              default: x = Relu(x + by);
            }
            Store(at, x);
          }
        }
        break;
      }
      case kNormalize: case kNormalizeRelu: {
        const float* mean = Whole(step.operand + channel, columns, width, room[0]);
        const float* scale = Whole(step.more[0] + channel, columns, width, room[1]);
        const float* shift = Whole(step.more[1] + channel, columns, width, room[2]);
        for (int v = 0; v < width; v += kLanes) {
          Vec m = Load(mean + v), s = Load(scale + v), t = Load(shift + v);
          for (float* at = values + v; at < values + all; at += width) {
            Vec x = (Load(at) - m) * s + t;
            Store(at, step.operation == kNormalize ? x : Relu(x));
          }
        }
        break;
      }
      case kAddTensor: case kMultiplyTensor: case kAddTensorRelu:
        for (int row = 0; row < rows; ++row) {
          const float* operand = Whole(step.operand + (pixel + row) * channels + channel, columns, width, room[0]);
          float* at = values + row * width;
          for (int v = 0; v < width; v += kLanes) {
            Vec x = Load(at + v), by = Load(operand + v);
            x = step.operation == kMultiplyTensor ? x * by : x + by;
            Store(at + v, step.operation == kAddTensorRelu ? Relu(x) : x);
          }
        }
        break;
      case kAddNumber: Each(values, all, [=](Vec x) { return x + number; }); break;
      case kMultiplyNumber: Each(values, all, [=](Vec x) { return x * number; }); break;
      case kDivideNumber: Each(values, all, [=](Vec x) { return x / number; }); break;
      case kMaximum: Each(values, all, [=](Vec x) { return x < number ? All(number) : x; }); break;
      case kMinimum: Each(values, all, [=](Vec x) { return x > number ? All(number) : x; }); break;
      case kLeaky: Each(values, all, [=](Vec x) { return x < 0.0f ? x * number : x; }); break;
      case kRelu: Each(values, all, Relu); break;
      case kHardSwish:
        Each(values, all, [](Vec x) {
          Vec gate = x + 3.0f;
          gate = gate < 0.0f ? Vec{} : gate;
          gate = gate > 6.0f ? All(6.0f) : gate;
          return x * gate * (1.0f / 6.0f);
        });
        break;
      case kSigmoid: Each(values, all, [](Vec x) { return Sigmoid(x); }); break;
      case kSilu: Each(values, all, [](Vec x) { return x / (1.0f + Exp(-x)); }); break;
      case kGelu: Each(values, all, [](Vec x) { return 0.5f * x * (1.0f + Erf(x * 0.70710678118f)); }); break;
      case kGeluTanh:
        Each(values, all, [](Vec x) { return 0.5f * x * (1.0f + Tanh(0.7978845608f * (x + 0.044715f * x * x * x))); });
        break;
      case kTanh: Each(values, all, [](Vec x) { return Tanh(x); }); break;
      case kSave: std::memcpy(saved, values, all * sizeof(float)); break;
      case kMultiplySaved:
        for (int i = 0; i < all; i += kLanes) Store(values + i, Load(values + i) * Load(saved + i));
        break;
    }
  }
}

// A run of channels of one tap, in a sum.
struct Segment {
  int tap;
  int64_t begin, end;
};

// Adds up `segments` for P pixels and V vectors; `pixels[tap * pitch + p]` is where a pixel's channels are for a tap.
template <int P, int V>
void Tile(const Segment* segments, int count, const float* const* pixels, int64_t pitch, const float* weight, float* sums, bool begun) {
  Vec sum[P][V];
  for (int p = 0; p < P; ++p) {
    for (int v = 0; v < V; ++v) sum[p][v] = begun ? Load(sums + (p * V + v) * kLanes) : Vec{};
  }
  for (int s = 0; s < count; ++s) {
    const float* x[P];
    for (int p = 0; p < P; ++p) x[p] = pixels[segments[s].tap * pitch + p];
    for (int64_t c = segments[s].begin; c < segments[s].end; ++c) {
      Vec w[V];
      for (int v = 0; v < V; ++v) w[v] = Load(weight + v * kLanes);
      weight += V * kLanes;
      for (int p = 0; p < P; ++p) {
        Vec value = All(x[p][c]);
        for (int v = 0; v < V; ++v) sum[p][v] += value * w[v];
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int v = 0; v < V; ++v) Store(sums + (p * V + v) * kLanes, sum[p][v]);
  }
}

using TileFunction = void (*)(const Segment*, int, const float* const*, int64_t, const float*, float*, bool);

template <int P, int V>
constexpr TileFunction TileIfAny() {
  if constexpr (V <= kVectors && P <= PixelsOf(V)) return Tile<P, V>;
  return nullptr;
}

template <int P>
struct Row {
  static constexpr TileFunction of[4] = {TileIfAny<P, 1>(), TileIfAny<P, 2>(), TileIfAny<P, 3>(), TileIfAny<P, 4>()};
};

TileFunction TileOf(int pixels, int vectors) {
  static constexpr const TileFunction* tiles[kPixels] = {Row<1>::of, Row<2>::of,  Row<3>::of,  Row<4>::of, Row<5>::of, Row<6>::of,
                                                         Row<7>::of, Row<8>::of, Row<9>::of, Row<10>::of, Row<11>::of, Row<12>::of};
  return tiles[pixels - 1][vectors - 1];
}

struct Aligned {
  explicit Aligned(size_t count) : values(static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64))) {
    if (values == nullptr) throw std::bad_alloc();
  }
  ~Aligned() { std::free(values); }
  Aligned(const Aligned&) = delete;
  float* values;
};

// The weights that one loaded model has packed, by address; the model's own weights outlive it. `tkc_packed` makes and drops it.
struct Packed {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<Aligned>> weights;
};
thread_local Packed* packed = nullptr;

// What a call computes. The plan that it is read from has, in this order: batch axes of an image count as one.
struct Plan {
  int64_t rows, columns, channels, outputs;  // of the image, its channels, and those of the result
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t out[2];
  bool depthwise, constant, transposed;  // `transposed`: a weight [channels, outputs]
  bool flat;                             // a linear layer
  int64_t pixels;                        // of the result, of all batches
  std::vector<Step> steps;
  const float *image, *weight;
  float* result;

  int64_t taps() const { return kernel[0] * kernel[1]; }
};

// Blocks of output channels, of as many vectors each as can be.
int64_t Vectors(const Plan& plan) { return (plan.outputs + kLanes - 1) / kLanes; }
int64_t Blocks(const Plan& plan) { return (Vectors(plan) + kVectors - 1) / kVectors; }
int64_t FirstChannel(const Plan& plan, int64_t block) { return block * Vectors(plan) / Blocks(plan) * kLanes; }

void PackDense(const Plan& plan, float* to) {
  int64_t taps = plan.taps(), channels = plan.channels;
  int64_t of_output = plan.transposed ? 1 : channels * taps, of_channel = plan.transposed ? plan.outputs : taps;
  for (int64_t block = 0; block < Blocks(plan); ++block) {
    int64_t begin = FirstChannel(plan, block), width = FirstChannel(plan, block + 1) - begin;
    int64_t left = std::min<int64_t>(width, plan.outputs - begin);
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t first = 0; first < channels; first += 16) {  // a cache line of each row at a time
        int64_t last = std::min(channels, first + 16);
        for (int64_t n = 0; n < width; ++n) {
          const float* from = plan.weight + (begin + n) * of_output + tap;
          for (int64_t c = first; c < last; ++c) to[(c * width) + n] = n < left ? from[c * of_channel] : 0.0f;
        }
      }
      to += channels * width;
    }
  }
}

void PackDepthwise(const Plan& plan, float* to) {  // [taps, channels]
  int64_t taps = plan.taps();
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t c = 0; c < plan.channels; ++c) to[tap * plan.channels + c] = plan.weight[c * taps + tap];
  }
}

std::shared_ptr<Aligned> MakePacked(const Plan& plan) {
  int64_t outputs = plan.depthwise ? plan.outputs : (plan.outputs + kLanes - 1) / kLanes * kLanes;
  auto made = std::make_shared<Aligned>(plan.taps() * (plan.depthwise ? 1 : plan.channels) * outputs + kLanes);
  plan.depthwise ? PackDepthwise(plan, made->values) : PackDense(plan, made->values);
  return made;
}

std::shared_ptr<Aligned> PackedOf(const Plan& plan) {
  if (packed == nullptr || !plan.constant) return MakePacked(plan);
  std::lock_guard<std::mutex> lock(packed->mutex);
  std::shared_ptr<Aligned>& found = packed->weights[plan.weight];
  if (found == nullptr) found = MakePacked(plan);
  return found;
}

// Where each pixel's channels are for each tap: `zeros` where the filter is outside of the image.
void Point(const Plan& plan, int64_t begin, int64_t end, const float* zeros, const float** pointers, int64_t pitch) {
  if (plan.taps() == 1 && plan.stride[0] == 1 && plan.stride[1] == 1 && plan.padding[0] == 0 && plan.padding[1] == 0 &&
      plan.out[0] == plan.rows && plan.out[1] == plan.columns) {
    for (int64_t pixel = begin; pixel < end; ++pixel) pointers[pixel - begin] = plan.image + pixel * plan.channels;
    return;
  }
  int64_t image = begin / (plan.out[0] * plan.out[1]), of_image = begin % (plan.out[0] * plan.out[1]);
  int64_t out_row = of_image / plan.out[1], out_column = of_image % plan.out[1];
  for (int64_t pixel = begin; pixel < end; ++pixel) {
    int64_t row = out_row * plan.stride[0] - plan.padding[0], column = out_column * plan.stride[1] - plan.padding[1];
    const float** to = pointers + (pixel - begin);
    for (int64_t i = 0; i < plan.kernel[0]; ++i) {
      int64_t y = row + i * plan.dilation[0];
      const float* line = plan.image + (image * plan.rows + y) * plan.columns * plan.channels;
      for (int64_t j = 0; j < plan.kernel[1]; ++j, to += pitch) {
        int64_t x = column + j * plan.dilation[1];
        *to = y >= 0 && y < plan.rows && x >= 0 && x < plan.columns ? line + x * plan.channels : zeros;
      }
    }
    if (++out_column < plan.out[1]) continue;
    out_column = 0;
    if (++out_row < plan.out[0]) continue;
    out_row = 0;
    ++image;
  }
}

void Write(const Plan& plan, float* values, int rows, int width, int64_t pixel, int64_t channel) {
  int columns = static_cast<int>(std::min<int64_t>(width, plan.outputs - channel));
  Apply(plan.steps, values, rows, width, pixel, channel, columns, plan.outputs);
  for (int row = 0; row < rows; ++row) {
    float* to = plan.result + (pixel + row) * plan.outputs + channel;
    if (columns == width) {
      for (int v = 0; v < width; v += kLanes) Store(to + v, Load(values + row * width + v));
    } else {
      std::memcpy(to, values + row * width, columns * sizeof(float));
    }
  }
}

// Pixels [begin, end) of the blocks of output channels [first, last).
void Dense(const Plan& plan, const float* weight, int64_t begin, int64_t end, int64_t first, int64_t last) {
  int64_t taps = plan.taps(), depth = taps * plan.channels;
  std::vector<Segment> segments;
  std::vector<int> chunks{0};  // where each begins in `segments`
  int64_t steps = 0;
  for (int tap = 0; tap < taps; ++tap) {
    for (int64_t c = 0; c < plan.channels;) {
      int64_t count = std::min(plan.channels - c, kChunk - steps);
      segments.push_back({tap, c, c + count});
      c += count;
      steps += count;
      if (steps == kChunk) {
        chunks.push_back(static_cast<int>(segments.size()));
        steps = 0;
      }
    }
  }
  if (chunks.back() != static_cast<int>(segments.size())) chunks.push_back(static_cast<int>(segments.size()));
  int64_t most = std::min<int64_t>(kPixelBlock, end - begin);
  std::vector<const float*> pointers(taps * most);
  std::vector<float> zeros(plan.channels, 0.0f);
  Aligned sums(most * kBlock);
  for (int64_t block = begin; block < end; block += most) {
    int64_t until = std::min(end, block + most), count = until - block;
    Point(plan, block, until, zeros.data(), pointers.data(), most);
    for (int64_t n = first; n < last; ++n) {
      int64_t channel = FirstChannel(plan, n);
      int width = static_cast<int>(FirstChannel(plan, n + 1) - channel);
      int pixels = PixelsOf(width / kLanes);
      int64_t tiles = (count + pixels - 1) / pixels;
      const float* from = weight + channel * depth;
      for (size_t chunk = 0; chunk + 1 < chunks.size(); ++chunk) {
        bool done = chunk + 2 == chunks.size();
        for (int64_t tile = 0; tile < tiles; ++tile) {
          int64_t at = tile * count / tiles;
          int rows = static_cast<int>((tile + 1) * count / tiles - at);
          float* into = sums.values + at * width;
          TileOf(rows, width / kLanes)(segments.data() + chunks[chunk], chunks[chunk + 1] - chunks[chunk], pointers.data() + at, most,
                                       from, into, chunk > 0);
          if (done) Write(plan, into, rows, width, block + at, channel);
        }
        from += static_cast<int64_t>(kChunk) * width;
      }
    }
  }
}

constexpr int kFew = 6;  // rows that are summed along a weight as it lies: packing it takes longer
constexpr int kAtOnce = TKC_LANES == 16 ? 4 : 2;

inline float Total(Vec x) {
  float total = 0.0f;
  for (int i = 0; i < kLanes; ++i) total += x[i];
  return total;
}

// P rows by `count` outputs of a weight [outputs, channels], which nobody has packed.
template <int P>
void FewRows(const Plan& plan, const float* weight, int count, float* sums, int width) {
  int64_t depth = plan.channels, whole = depth / kLanes * kLanes;
  for (int n = 0; n < count; n += kAtOnce) {
    int some = std::min(kAtOnce, count - n);
    const float* w[kAtOnce];
    for (int j = 0; j < kAtOnce; ++j) w[j] = weight + (n + std::min(j, some - 1)) * depth;
    Vec sum[P][kAtOnce];
    for (int p = 0; p < P; ++p) {
      for (int j = 0; j < kAtOnce; ++j) sum[p][j] = Vec{};
    }
    for (int64_t k = 0; k < whole; k += kLanes) {
      for (int p = 0; p < P; ++p) {
        Vec x = Load(plan.image + p * depth + k);
        for (int j = 0; j < kAtOnce; ++j) sum[p][j] += x * Load(w[j] + k);
      }
    }
    for (int p = 0; p < P; ++p) {
      for (int j = 0; j < some; ++j) {
        float total = Total(sum[p][j]);
        for (int64_t k = whole; k < depth; ++k) total += plan.image[p * depth + k] * w[j][k];
        sums[p * width + n + j] = total;
      }
    }
  }
}

void Few(const Plan& plan, int64_t first, int64_t last) {
  alignas(64) float sums[kFew * kBlock];
  std::memset(sums, 0, sizeof sums);
  for (int64_t n = first; n < last; ++n) {
    int64_t channel = FirstChannel(plan, n);
    int width = static_cast<int>(FirstChannel(plan, n + 1) - channel);
    int count = static_cast<int>(std::min<int64_t>(width, plan.outputs - channel));
    const float* weight = plan.weight + channel * plan.channels;
    switch (plan.pixels) {
      case 1: FewRows<1>(plan, weight, count, sums, width); break;
      case 2: FewRows<2>(plan, weight, count, sums, width); break;
      case 3: FewRows<3>(plan, weight, count, sums, width); break;
      case 4: FewRows<4>(plan, weight, count, sums, width); break;
      case 5: FewRows<5>(plan, weight, count, sums, width); break;
      default: FewRows<6>(plan, weight, count, sums, width); break;
    }
    Write(plan, sums, static_cast<int>(plan.pixels), width, 0, channel);
  }
}

// P pixels of one vector of channels, all of whose taps are inside; `step` floats lie between two pixels.
// The filter is K by K; K is 0 where that is known to the plan alone.
template <int P, int W, int K>
inline void Depth(const Plan& plan, const float* image, int64_t step, const float* weight, float* sums) {
  const int64_t height = K ? K : plan.kernel[0], wide = K ? K : plan.kernel[1];
  typedef float Part __attribute__((vector_size(4 * W), aligned(4), may_alias));
  Part sum[P];
  for (int p = 0; p < P; ++p) sum[p] = Part{};
  for (int64_t i = 0; i < height; ++i) {
    const float* row = image + i * plan.dilation[0] * plan.columns * plan.channels;
    for (int64_t j = 0; j < wide; ++j) {
      Part w = *reinterpret_cast<const Part*>(weight);
      weight += plan.channels;
      const float* from = row + j * plan.dilation[1] * plan.channels;
      for (int p = 0; p < P; ++p) sum[p] += *reinterpret_cast<const Part*>(from + p * step) * w;
    }
  }
  for (int p = 0; p < P; ++p) *reinterpret_cast<Part*>(sums + p * kLanes) = sum[p];
}

// One pixel, at the image's edge.
template <int W>
inline void Edge(const Plan& plan, const float* image, int64_t row, int64_t column, const float* weight, float* sums) {
  typedef float Part __attribute__((vector_size(4 * W), aligned(4), may_alias));
  Part sum{};
  for (int64_t i = 0; i < plan.kernel[0]; ++i) {
    int64_t y = row + i * plan.dilation[0];
    for (int64_t j = 0; j < plan.kernel[1]; ++j, weight += plan.channels) {
      int64_t x = column + j * plan.dilation[1];
      if (y < 0 || y >= plan.rows || x < 0 || x >= plan.columns) continue;
      sum += *reinterpret_cast<const Part*>(image + (y * plan.columns + x) * plan.channels) *
             *reinterpret_cast<const Part*>(weight);
    }
  }
  *reinterpret_cast<Part*>(sums) = sum;
}

constexpr int kDepthPixels = TKC_LANES == 16 ? 8 : 6;

template <int W, int K>
void DepthRowOf(const Plan& plan, const float* weight, const float* image, int64_t row, int64_t pixel, int64_t channel) {
  alignas(64) float sums[kDepthPixels * kLanes];
  std::memset(sums, 0, sizeof sums);
  int64_t y = row * plan.stride[0] - plan.padding[0];
  bool rows_inside = y >= 0 && y + (plan.kernel[0] - 1) * plan.dilation[0] < plan.rows;
  int64_t reach = (plan.kernel[1] - 1) * plan.dilation[1], step = plan.stride[1] * plan.channels;
  weight += channel;
  image += channel;
  int columns = std::min<int64_t>(kLanes, W);
  auto finish = [&](int64_t at, int count) {
    Apply(plan.steps, sums, count, kLanes, pixel + at, channel, columns, plan.outputs);
    for (int p = 0; p < count; ++p) {
      std::memcpy(plan.result + (pixel + at + p) * plan.outputs + channel, sums + p * kLanes, W * sizeof(float));
    }
  };
  for (int64_t at = 0; at < plan.out[1];) {
    int64_t x = at * plan.stride[1] - plan.padding[1];
    const float* from = image + (y * plan.columns + x) * plan.channels;
    bool inside = rows_inside && x >= 0;
    if (inside && at + kDepthPixels <= plan.out[1] && x + (kDepthPixels - 1) * plan.stride[1] + reach < plan.columns) {
      Depth<kDepthPixels, W, K>(plan, from, step, weight, sums);
      finish(at, kDepthPixels);
      at += kDepthPixels;
    } else if (inside && at + 2 <= plan.out[1] && x + plan.stride[1] + reach < plan.columns) {
      Depth<2, W, K>(plan, from, step, weight, sums);
      finish(at, 2);
      at += 2;
    } else {
      Edge<W>(plan, image, y, x, weight, sums);
      finish(at, 1);
      at += 1;
    }
  }
}

template <int W>
void DepthRow(const Plan& plan, const float* weight, const float* image, int64_t row, int64_t pixel, int64_t channel) {
  bool square = plan.kernel[0] == plan.kernel[1];
  auto run = square && plan.kernel[0] == 3 ? DepthRowOf<W, 3> : square && plan.kernel[0] == 5 ? DepthRowOf<W, 5> : DepthRowOf<W, 0>;
  run(plan, weight, image, row, pixel, channel);
}

// The means of each channel of images [begin, end), row by row of each.
void Means(const Plan& plan, int64_t begin, int64_t end) {
  std::vector<float> line(plan.channels), total(plan.channels);
  float count = static_cast<float>(plan.rows * plan.columns);
  for (int64_t image = begin; image < end; ++image) {
    std::fill(total.begin(), total.end(), 0.0f);
    const float* from = plan.image + image * plan.rows * plan.columns * plan.channels;
    for (int64_t y = 0; y < plan.rows; ++y) {
      std::fill(line.begin(), line.end(), 0.0f);
      for (int64_t x = 0; x < plan.columns; ++x, from += plan.channels) {
        for (int64_t c = 0; c < plan.channels; ++c) line[c] += from[c];
      }
      for (int64_t c = 0; c < plan.channels; ++c) total[c] += line[c];
    }
    float* to = plan.result + image * plan.channels;
    for (int64_t c = 0; c < plan.channels; ++c) to[c] = total[c] / count;
  }
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

struct Work {
  const Plan& plan;
  const float* weight;
  int64_t across, along;  // parts of the pixels (rows, where depthwise), and of the blocks of output channels
  std::atomic<bool> failed{false};
};

int Part(int task, void*, void* data) {
  Work& work = *static_cast<Work*>(data);
  const Plan& plan = work.plan;
  int64_t i = task % work.across, j = task / work.across;
  try {
    if (work.weight == nullptr) {
      int64_t blocks = Blocks(plan);
      Few(plan, blocks * j / work.along, blocks * (j + 1) / work.along);
    } else if (plan.depthwise) {
      int64_t rows = plan.out[1] == 0 ? 0 : plan.pixels / plan.out[1];
      Depthwise(plan, work.weight, rows * i / work.across, rows * (i + 1) / work.across);
    } else {
      int64_t blocks = Blocks(plan);
      Dense(plan, work.weight, plan.pixels * i / work.across, plan.pixels * (i + 1) / work.across, blocks * j / work.along,
            blocks * (j + 1) / work.along);
    }
  } catch (const std::bad_alloc&) {
    work.failed = true;
  }
  return 0;
}

void Compute(const Plan& plan) {
  if (plan.pixels == 0 || plan.outputs == 0) return;
  bool packs = packed != nullptr && plan.constant;
  bool few = !packs && !plan.depthwise && plan.flat && !plan.transposed && plan.pixels <= kFew;
  std::shared_ptr<Aligned> weight = few ? nullptr : PackedOf(plan);
  Work work{plan, few ? nullptr : weight->values, 1, 1};
  int64_t products = plan.pixels * plan.outputs * plan.taps() * (plan.depthwise ? 1 : plan.channels);
  int64_t threads = products < kSerial ? 1 : tkc_threads();
  if (threads > 1) {
    int64_t rows = few ? 1 : plan.depthwise ? plan.pixels / plan.out[1] : plan.pixels / (2 * kPixels);
    work.across = std::max<int64_t>(1, std::min(rows, 2 * threads));
    if (!plan.depthwise && work.across < 2 * threads) {
      int64_t blocks = Blocks(plan);
      work.along = std::max<int64_t>(1, std::min(blocks, 2 * threads / work.across));
    }
    tkc_launch(Part, &work, static_cast<int>(work.across * work.along));
  } else {
    Part(0, nullptr, &work);
  }
  if (work.failed) throw std::bad_alloc();
}

const float* Floats(const Tensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data_ptr()) + tensor.GetDLTensorPtr()->byte_offset);
}

// (plan, image [..., rows, columns, channels], weight, *operands, result [..., rows, columns, outputs]).
void Product(const AnyView* args, int32_t count) {
  Shape numbers = args[0].cast<Shape>();
  Tensor image = args[1].cast<Tensor>(), weight = args[2].cast<Tensor>(), result = args[count - 1].cast<Tensor>();
  const int64_t* at = numbers.data();
  Plan plan{};
  plan.depthwise = *at++ != 0;
  plan.constant = *at++ != 0;
  plan.transposed = *at++ != 0;
  int64_t axes = *at++;  // of pixels: none of a linear layer, all of whose leading axes are rows
  for (int64_t axis = 0; axis < 2; ++axis) plan.kernel[axis] = plan.stride[axis] = plan.dilation[axis] = 1;
  for (int64_t axis = 2 - axes; axes <= 2 && axis < 2; ++axis) {
    plan.stride[axis] = *at++;
    plan.padding[axis] = *at++;
    plan.dilation[axis] = *at++;
    plan.kernel[axis] = weight.size(2 + axis - (2 - axes));
  }
  plan.flat = axes == 0;
  int rank = image.ndim(), to = result.ndim();
  plan.channels = image.size(rank - 1);
  plan.outputs = result.size(to - 1);
  plan.rows = plan.columns = plan.out[0] = plan.out[1] = 1;
  plan.pixels = 1;
  for (int axis = 0; axis + 1 < to; ++axis) plan.pixels *= result.size(axis);
  if (axes == 0) plan.columns = plan.out[1] = plan.pixels;
  if (axes >= 1) plan.columns = image.size(rank - 2), plan.out[1] = result.size(to - 2);
  if (axes == 2) plan.rows = image.size(rank - 3), plan.out[0] = result.size(to - 3);
  if (axes == kMeanAxes) {
    plan.columns = image.size(rank - 2);
    plan.rows = 1;
    for (int axis = 1; axis < rank - 2; ++axis) plan.rows *= image.size(axis);
    plan.image = Floats(image);
    plan.result = const_cast<float*>(Floats(result));
    Means(plan, 0, image.size(0));
    return;
  }
  plan.image = Floats(image);
  plan.weight = Floats(weight);
  plan.result = const_cast<float*>(Floats(result));
  const int64_t* end = numbers.data() + numbers.size();
  plan.steps.reserve((end - at) / 3);
  std::vector<Tensor> operands;
  for (; at < end; at += 3) {
    const float* operand = nullptr;
    if (at[1] >= 0) {
      operands.push_back(args[3 + at[1]].cast<Tensor>());
      operand = Floats(operands.back());
    }
    int32_t bits = static_cast<int32_t>(at[2]);
    float number;
    std::memcpy(&number, &bits, sizeof number);
    plan.steps.push_back({at[0], operand, number, {}});
  }
  plan.steps = Joined(plan.steps);
  Compute(plan);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int __tvm_ffi_tkc_product(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  Product(reinterpret_cast<const AnyView*>(args), count);
  *reinterpret_cast<Any*>(result) = Any();
  TVM_FFI_SAFE_CALL_END();
}

// tkc_packed(address): what holds packed weights. Makes one where the address is 0, and returns its own; drops it otherwise.
__attribute__((visibility("default"))) int __tvm_ffi_tkc_packed(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  auto given = reinterpret_cast<Packed*>(args[0].v_int64);
  result->type_index = kTVMFFIInt;
  result->v_int64 = given == nullptr ? reinterpret_cast<int64_t>(new Packed) : 0;
  delete given;
  TVM_FFI_SAFE_CALL_END();
}

// tkc_use_packed(address): has this thread's calls pack weights there, once; each time, where it is 0. Returns what was before.
__attribute__((visibility("default"))) int __tvm_ffi_tkc_use_packed(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = reinterpret_cast<int64_t>(packed);
  packed = reinterpret_cast<Packed*>(args[0].v_int64);
  return 0;
}

}  // extern "C"
