// Checks what a CPU kernel's library is called with against what the library says of itself (arguments.h).
//
// Nothing here depends on the kernel: it is compiled once, and linked into every library. TVM's headers, which are here
// alone, take a compiler longer than most kernels do.

#include "arguments.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <limits>

namespace tkc {
namespace {

const DLTensor* TensorOf(const TVMFFIAny& argument, const Tensor& expected) {
  if (argument.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(argument.v_ptr);
  if (argument.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(argument.v_obj);
  TVM_FFI_THROW(TypeError) << kernel << ": " << expected.name << " is no tensor";
  TVM_FFI_UNREACHABLE();
}

void Check(const DLTensor& found, const Tensor& expected) {
  if (found.ndim != expected.num_axes) {
    TVM_FFI_THROW(ValueError) << kernel << ": " << expected.name << " has " << found.ndim << " axes, expected "
                              << expected.num_axes;
  }
  if (found.dtype.code != expected.dtype.code || found.dtype.bits != expected.dtype.bits) {
    TVM_FFI_THROW(TypeError) << kernel << ": " << expected.name << " has another dtype than the kernel was built for";
  }
  if (found.device.device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << kernel << ": " << expected.name << " is not on the CPU";
  }
}

}  // namespace

int ReadArguments(const TVMFFIAny* args, int32_t num_args, const DLTensor** found) {
  TVM_FFI_SAFE_CALL_BEGIN();
  if (num_args != num_tensors) {
    TVM_FFI_THROW(TypeError) << kernel << " takes " << num_tensors << " tensors, and got " << num_args << " arguments";
  }
  for (int i = 0; i < num_tensors; ++i) {
    const Tensor& expected = tensors[i];
    found[i] = TensorOf(args[i], expected);
    Check(*found[i], expected);
    for (int axis = 0; axis < expected.num_axes; ++axis) {
      const Axis& wanted = expected.axes[axis];
      int64_t size = wanted.size < 0 ? found[wanted.tensor]->shape[wanted.axis] : wanted.size;
      if (found[i]->shape[axis] != size) {
        TVM_FFI_THROW(ValueError) << kernel << ": axis " << axis << " of " << expected.name << " is "
                                  << found[i]->shape[axis] << ", not " << size;
      }
      if (size > std::numeric_limits<int32_t>::max()) {
        TVM_FFI_THROW(ValueError) << kernel << ": axis " << axis << " of " << expected.name << " is " << size
                                  << " long, and kernels count no further than 2**31 - 1; split the tensor";
      }
    }
  }
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace tkc
