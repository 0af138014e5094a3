// What a call computes, and the weights that are packed for it.

#pragma once

#include <pthread.h>
#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "products_steps.h"

namespace {

// Channels of an image: `channels` that lie together in each pixel, and pixels that lie `pitch` apart.
struct Source {
  const float* values;
  int64_t pitch, channels;
};

// The plan that this is read from has, in this order: batch axes of an image count as one.
struct Plan {
  int64_t rows, columns, channels, outputs;  // of the image, its channels, and those of the result
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t out[2];
  bool depthwise, constant, transposed;  // `transposed`: a weight [channels, outputs]
  int64_t pixels;                        // of the result, of all batches
  std::vector<Step> steps;
  std::vector<Source> sources;  // of the channels, one after the other
  const float *image, *weight;  // `image`: of the only source
  float* result;
  tvm::ffi::Tensor held;  // the weight: while it is packed, nothing else is to have its address

  int64_t taps() const { return kernel[0] * kernel[1]; }

  // Whether the pixels of the only source lie behind each other.
  bool dense() const { return sources.size() == 1 && sources[0].pitch == channels; }

  // Whether each pixel of the result is of the same one of the image: a linear layer.
  bool flat() const {
    return taps() == 1 && stride[0] == 1 && stride[1] == 1 && padding[0] == 0 && padding[1] == 0 && out[0] == rows && out[1] == columns;
  }
};

// Blocks of output channels, of as many vectors each as can be.
int64_t Vectors(const Plan& plan) { return (plan.outputs + kLanes - 1) / kLanes; }
int64_t Blocks(const Plan& plan) { return (Vectors(plan) + kVectors - 1) / kVectors; }
int64_t FirstChannel(const Plan& plan, int64_t block) { return block * Vectors(plan) / Blocks(plan) * kLanes; }

// One block of output channels as [taps, channels, width], zeros for channels that there are not.
void PackBlock(const Plan& plan, int64_t block, float* to) {
  int64_t taps = plan.taps(), channels = plan.channels;
  int64_t of_output = plan.transposed ? 1 : channels * taps, of_channel = plan.transposed ? plan.outputs : taps;
  int64_t begin = FirstChannel(plan, block), width = FirstChannel(plan, block + 1) - begin;
  int64_t left = std::min<int64_t>(width, plan.outputs - begin);
  if (plan.transposed) {
    for (int64_t c = 0; c < channels; ++c, to += width) {
      std::memcpy(to, plan.weight + c * of_channel + begin, left * sizeof(float));
      for (int64_t n = left; n < width; ++n) to[n] = 0.0f;
    }
    return;
  }
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

void PackDepthwise(const Plan& plan, float* to) {  // [taps, channels]
  int64_t taps = plan.taps();
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t c = 0; c < plan.channels; ++c) to[tap * plan.channels + c] = plan.weight[c * taps + tap];
  }
}

std::shared_ptr<Aligned> MakePacked(const Plan& plan) {
  int64_t depth = plan.taps() * (plan.depthwise ? 1 : plan.channels);
  auto made = std::make_shared<Aligned>(depth * (plan.depthwise ? plan.outputs : Vectors(plan) * kLanes) + kLanes);
  if (plan.depthwise) {
    PackDepthwise(plan, made->values);
  } else {
    for (int64_t block = 0; block < Blocks(plan); ++block) PackBlock(plan, block, made->values + FirstChannel(plan, block) * depth);
  }
  return made;
}

// The weights that one loaded model has packed. `tkc_packed` makes and drops it.
struct Packed {
  // By address, and as what they are read: tied weights may be read as two matrices, and views begin alike.
  std::map<std::array<int64_t, 6>, std::pair<tvm::ffi::Tensor, std::shared_ptr<Aligned>>> weights;
};
thread_local Packed* packed = nullptr;

// Is held by whoever looks for packed weights or packs them, and by whoever forks: a child has no other thread that would give it back.
std::mutex packing;

void HoldWhereForked() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork([] { packing.lock(); }, [] { packing.unlock(); }, [] { packing.unlock(); }); });
}

// The weights of `plan`, packed, if it `packs` those that are not; none where they may change.
std::shared_ptr<Aligned> PackedOnce(const Plan& plan, bool packs) {
  if (packed == nullptr || !plan.constant) return nullptr;
  std::lock_guard<std::mutex> lock(packing);
  int64_t address = reinterpret_cast<intptr_t>(plan.weight);
  std::array<int64_t, 6> key{address, plan.depthwise, plan.transposed, plan.outputs, plan.channels, plan.taps()};
  auto found = packed->weights.find(key);
  if (found != packed->weights.end()) return found->second.second;
  if (!packs) return nullptr;
  std::shared_ptr<Aligned> made = MakePacked(plan);
  packed->weights.emplace(key, std::make_pair(plan.held, made));
  return made;
}

}  // namespace
