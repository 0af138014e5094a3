// Convolutions and linear layers of float32 on the CPU, whose images have their channels last, with what follows them element by element.
//
// An indirect convolution (Dukhan, "The Indirect Convolution Algorithm", 2019): a tile of pixels and of vectors of output channels stays
// in registers over the whole sum, and reads its pixels through pointers, one for each tap of the filter, or zeros where the filter
// sticks out of the image (products_dense.h). Pixels of an image count on through rows and batches, so that only the last tile is
// smaller. A linear layer is a filter of one tap. Depthwise convolutions sum a tile of pixels of one vector of channels
// (products_depthwise.h).
//
// Weights are packed in blocks of four vectors of output channels. Those that cannot change are packed once, into what the runtime
// hands over before a call (tkc/runtime/packed_products.py); others block by block in each call, but for linear layers of few rows,
// which read them as they lie (products_rows.h).
//
// Sums are in the order of the filter's taps and channels, in parts of 1,024, whatever the tile; of few rows, in one of their own.
//
// An image may be channels of several tensors, one after the other (`Source`): what a concatenation would hold, and what a slice would.
//
// Nothing here depends on the model. It is compiled once for each vector width (TKC_LANES), and linked into code that calls it.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "products_dense.h"
#include "products_depthwise.h"
#include "products_rows.h"

using LaunchBody = int (*)(int task, void* env, void* data);
extern "C" int tkc_launch(LaunchBody body, void* data, int num_task);
extern "C" int tkc_threads();

namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Shape;
using tvm::ffi::Tensor;

constexpr int64_t kMeanAxes = 3;      // "axes" of a plan that has the means of the channels computed, and no product
constexpr int64_t kSerial = 1 << 17;  // products that are sooner done than another thread is awake

thread_local int64_t most_threads = 0;  // that a call may take; 0 is any number

enum class Way { kFew, kDepthwise, kDense, kMeans };

struct Work {
  const Plan& plan;
  Way way;
  const float* weight;    // packed; nullptr where it is packed on the way, or not at all
  int64_t across, along;  // parts of the pixels (rows, where depthwise), and of the blocks of output channels
  std::atomic<bool> failed{false};
};

int DoPart(int task, void*, void* data) {
  Work& work = *static_cast<Work*>(data);
  const Plan& plan = work.plan;
  int64_t i = task % work.across, j = task / work.across;
  auto part = [](int64_t count, int64_t at, int64_t parts) { return count * at / parts; };
  int64_t blocks = Blocks(plan), first = part(blocks, j, work.along), last = part(blocks, j + 1, work.along);
  int64_t rows = plan.pixels / plan.out[1];
  try {
    switch (work.way) {
      case Way::kFew: Few(plan, first, last); break;
      case Way::kDepthwise: Depthwise(plan, work.weight, part(rows, i, work.across), part(rows, i + 1, work.across)); break;
      case Way::kMeans: Means(plan, part(plan.pixels, i, work.across), part(plan.pixels, i + 1, work.across)); break;
      case Way::kDense:
        Dense(plan, work.weight, part(plan.pixels, i, work.across), part(plan.pixels, i + 1, work.across), first, last);
    }
  } catch (const std::bad_alloc&) {
    work.failed = true;
  }
  return 0;
}

void Compute(const Plan& plan, Way way) {
  if (plan.pixels == 0 || plan.outputs == 0) return;
  std::shared_ptr<Aligned> weight;
  if (way == Way::kDense) {
    // One row takes as long with a weight that is packed as with one that is not; more take two thirds of the time.
    weight = PackedOnce(plan, plan.pixels > 1 || !IsFew(plan));
    if (weight == nullptr && IsFew(plan)) way = Way::kFew;
  } else if (way == Way::kDepthwise) {
    weight = PackedOnce(plan, true);
    if (weight == nullptr) weight = MakePacked(plan);
  }
  Work work{plan, way, weight == nullptr ? nullptr : weight->values, 1, 1};
  bool by_channel = way == Way::kDepthwise || way == Way::kMeans;
  int64_t products = plan.pixels * plan.outputs * plan.taps() * (by_channel ? 1 : plan.channels);
  int64_t all = products < kSerial ? 1 : tkc_threads(), threads = most_threads > 0 ? std::min(all, most_threads) : all;
  int64_t parts = threads == all ? 2 * threads : threads;  // others of the pool's threads would take the second ones
  int64_t blocks = Blocks(plan);
  if (threads > 1) {
    auto most = [](int64_t count, int64_t wanted) { return std::max<int64_t>(1, std::min(count, wanted)); };
    if (way == Way::kMeans) {
      work.across = most(plan.pixels, parts);
    } else if (way == Way::kDepthwise) {
      work.across = most(plan.pixels / plan.out[1], parts);
    } else if (work.weight == nullptr) {  // each part of the pixels packs its weights
      work.along = most(blocks, parts);
      if (way == Way::kDense) work.across = most(plan.pixels / (2 * kPixels), parts / work.along);
    } else {
      work.across = most(plan.pixels / (2 * kPixels), parts);
      work.along = most(blocks, parts / work.across);
    }
    tkc_launch(DoPart, &work, static_cast<int>(work.across * work.along));
  } else {
    DoPart(0, nullptr, &work);
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
    plan.pixels = image.size(0);
    Compute(plan, Way::kMeans);
    return;
  }
  plan.image = Floats(image);
  plan.weight = Floats(weight);
  plan.held = weight;
  plan.result = const_cast<float*>(Floats(result));
  std::vector<Tensor> operands;  // held for the call
  auto operand = [&](int64_t place) -> const Tensor& {
    operands.push_back(args[3 + place].cast<Tensor>());
    return operands.back();
  };
  int64_t sources = *at++;
  if (sources == 0) plan.sources.push_back({plan.image, plan.channels, plan.channels});
  for (int64_t source = 0, channels = 0; source < sources; ++source, at += 3) {
    const Tensor& from = at[0] < 0 ? image : operand(at[0]);
    plan.sources.push_back({Floats(from) + at[1], from.size(rank - 1), at[2]});
    plan.channels = channels += at[2];
  }
  const int64_t* end = numbers.data() + numbers.size();
  plan.steps.reserve((end - at) / 3);
  for (; at < end; at += 3) {
    Step step{at[0], nullptr, 0.0f, {}, 0};
    if (at[1] >= 0) {
      const Tensor& by = operand(at[1]);
      bool like = at[0] == kAddTensor || at[0] == kMultiplyTensor;
      step.operand = Floats(by) + (like ? at[2] : 0);
      step.pitch = by.ndim() == 0 ? 1 : by.size(by.ndim() - 1);
    } else {
      int32_t bits = static_cast<int32_t>(at[2]);
      std::memcpy(&step.number, &bits, sizeof step.number);
    }
    plan.steps.push_back(step);
  }
  plan.steps = Joined(plan.steps);
  Compute(plan, plan.depthwise ? Way::kDepthwise : Way::kDense);
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
  HoldWhereForked();
  result->type_index = kTVMFFIInt;
  result->v_int64 = given == nullptr ? reinterpret_cast<int64_t>(new Packed) : 0;
  delete given;
  TVM_FFI_SAFE_CALL_END();
}

// tkc_use_packed(address, threads): has this thread's calls pack weights there, once; each time, where it is 0. They compute in so many
// threads at most, where that is not 0. Returns the address that was before.
__attribute__((visibility("default"))) int __tvm_ffi_tkc_use_packed(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = reinterpret_cast<int64_t>(packed);
  packed = reinterpret_cast<Packed*>(args[0].v_int64);
  most_threads = args[1].v_int64;
  return 0;
}

}  // extern "C"
