// What arguments.cc has to know of one CPU kernel's library: which tensors it is called with.
#pragma once

#include <tvm/ffi/c_api.h>

// Each library has its own, whatever else a process has loaded.
namespace tkc __attribute__((visibility("hidden"))) {

// The size of an axis: `size`, or where that is negative, the one that axis `axis` of tensor `tensor` has.
struct Axis {
  int64_t size;
  int tensor;
  int axis;
};

struct Tensor {
  const char* name;
  DLDataType dtype;
  const Axis* axes;
  int num_axes;
};

extern const char* const kernel;
extern const Tensor tensors[];
extern const int num_tensors;

// Sets `found` to the tensors among `args` and returns 0; where they are not as described, returns -1 with an error raised.
int ReadArguments(const TVMFFIAny* args, int32_t num_args, const DLTensor** found);

}  // namespace tkc
