// What follows a sum, element by element, while it is in the cache.

#pragma once

#include <algorithm>
#include <vector>

#include "products_vectors.h"

namespace {

constexpr int kVectors = TKC_LANES == 16 ? 4 : 2;  // of output channels in a block
constexpr int kBlock = kVectors * kLanes;
constexpr int kPixels = 12;  // in any tile

// Of `Plan` each step is three numbers: the operation, the operand's place, and a float's bits, or the first channel of a tensor.
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
  int64_t pitch;         // between the pixels of a tensor like the result
};

// `steps` with those that often follow each other joined.
std::vector<Step> Joined(const std::vector<Step>& steps) {
  std::vector<Step> joined;
  auto is = [&](size_t i, int64_t operation) { return i < steps.size() && steps[i].operation == operation; };
  auto of = [&](size_t i, int64_t operation, float number) { return is(i, operation) && steps[i].number == number; };
  for (size_t i = 0; i < steps.size();) {
    Step step = steps[i];
    if (is(i, kSubtractChannel) && is(i + 1, kMultiplyChannel) && is(i + 2, kAddChannel)) {
      step = {kNormalize, steps[i].operand, 0.0f, {steps[i + 1].operand, steps[i + 2].operand}, 0};
      i += 3;
    } else if (is(i, kSave) && of(i + 1, kAddNumber, 3.0f) && of(i + 2, kMaximum, 0.0f) && of(i + 3, kMinimum, 6.0f) &&
               is(i + 4, kMultiplySaved) && of(i + 5, kDivideNumber, 6.0f)) {
      step = {kHardSwish, nullptr, 0.0f, {}, 0};
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

// A first step that sums take while they are in registers.
struct InRegisters {
  explicit InRegisters(const std::vector<Step>& steps) {
    if (steps.empty()) return;
    const Step& step = steps.front();
    normalizes = step.operation == kNormalize || step.operation == kNormalizeRelu;
    relu = step.operation == kNormalizeRelu || step.operation == kAddChannelRelu;
    if (normalizes) mean = step.operand, scale = step.more[0], shift = step.more[1];
    if (step.operation == kAddChannel || step.operation == kAddChannelRelu) shift = step.operand;
  }

  bool any() const { return shift != nullptr; }

  bool normalizes = false, relu = false;  // (sum - mean) * scale + shift, or sum + shift; then the greater of that and zero
  const float *mean = nullptr, *scale = nullptr, *shift = nullptr;
};

// A vector of channels' operands, of which `columns` of `width` count; `room` is where it lies if these are not all.
inline const float* Whole(const float* operand, int columns, int width, float* room) {
  if (columns == width) return operand;
  std::memcpy(room, operand, columns * sizeof(float));
  return room;
}

template <typename F>
inline void Each(float* values, int rows, int width, int64_t stride, F apply) {
  for (int row = 0; row < rows; ++row, values += stride) {
    for (int v = 0; v < width; v += kLanes) Store(values + v, apply(Load(values + v)));
  }
}

// `rows` rows of `width` values (whole vectors, of which `columns` count) that lie `stride` apart; the first is of pixel `pixel` and
// output channel `channel`. What stands beyond `columns` is computed and not read. The steps before `first`
// are done.
void Apply(const std::vector<Step>& steps, size_t first, float* values, int rows, int width, int64_t stride, int64_t pixel,
           int64_t channel, int columns) {
  if (first == steps.size()) return;
  alignas(64) float room[3][kBlock], saved[kPixels * kBlock];
  if (columns < width) std::memset(room, 0, sizeof room);
  auto each = [&](auto apply) { Each(values, rows, width, stride, apply); };
  for (; first < steps.size(); ++first) {
    const Step& step = steps[first];
    float number = step.number;
    switch (step.operation) {
      case kAddChannel: case kSubtractChannel: case kMultiplyChannel: case kAddChannelRelu: {
        const float* operand = Whole(step.operand + channel, columns, width, room[0]);
        for (int v = 0; v < width; v += kLanes) {
          Vec by = Load(operand + v);
          float* at = values + v;
          for (int row = 0; row < rows; ++row, at += stride) {
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
          float* at = values + v;
          for (int row = 0; row < rows; ++row, at += stride) {
            Vec x = (Load(at) - m) * s + t;
            Store(at, step.operation == kNormalize ? x : Relu(x));
          }
        }
        break;
      }
      case kAddTensor: case kMultiplyTensor: case kAddTensorRelu:
        for (int row = 0; row < rows; ++row) {
          const float* operand = Whole(step.operand + (pixel + row) * step.pitch + channel, columns, width, room[0]);
          float* at = values + row * stride;
          for (int v = 0; v < width; v += kLanes) {
            Vec x = Load(at + v), by = Load(operand + v);
            x = step.operation == kMultiplyTensor ? x * by : x + by;
            Store(at + v, step.operation == kAddTensorRelu ? Relu(x) : x);
          }
        }
        break;
      case kAddNumber: each([=](Vec x) { return x + number; }); break;
      case kMultiplyNumber: each([=](Vec x) { return x * number; }); break;
      case kDivideNumber: each([=](Vec x) { return x / number; }); break;
      case kMaximum: each([=](Vec x) { return AtLeast(number, x); }); break;
      case kMinimum: each([=](Vec x) { return AtMost(number, x); }); break;
      case kLeaky: each([=](Vec x) { return x < 0.0f ? x * number : x; }); break;
      case kRelu: each(Relu); break;
      case kHardSwish:
        each([](Vec x) {
          return x * AtMost(6.0f, AtLeast(0.0f, x + 3.0f)) * (1.0f / 6.0f);
        });
        break;
      case kSigmoid: each(Sigmoid); break;
      case kSilu: each([](Vec x) { return x / (1.0f + Exp(-x)); }); break;
      case kGelu: each([](Vec x) { return 0.5f * x * (1.0f + Erf(x * 0.70710678118f)); }); break;
      case kGeluTanh: each([](Vec x) { return 0.5f * x * (1.0f + Tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }); break;
      case kTanh: each(Tanh); break;
      case kSave:
        for (int row = 0; row < rows; ++row) std::memcpy(saved + row * width, values + row * stride, width * sizeof(float));
        break;
      case kMultiplySaved:
        for (int row = 0; row < rows; ++row) {
          float* at = values + row * stride;
          for (int v = 0; v < width; v += kLanes) Store(at + v, Load(at + v) * Load(saved + row * width + v));
        }
        break;
    }
  }
}

}  // namespace
