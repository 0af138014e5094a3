// Where generated CUDA code has the memory from that it computes in: the caller's allocator, which is PyTorch's.
//
// TVM's own pool knows no streams: what a call on one stream gives back while its kernels still run, a call on another
// stream would take. PyTorch's allocator gives memory back to the stream it was taken on, gives a CUDA graph that is being captured memory of
// its own, and shares what is free with the rest of the program. passes/lowering/device_memory.py has the virtual machine call these
// functions in place of its own.
//
// Nothing here depends on the model: it is compiled once, and linked into the generated code of every one.

#include <dlfcn.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>

namespace {

using tvm::ffi::Function;
using tvm::ffi::Shape;
using tvm::ffi::Tensor;

DLDevice device{kDLCUDA, 0};  // of this executable: each loads a copy of its code

constexpr DLDataType kBytes{kDLUInt, 8, 1};

// The device on which this code allocates.
void UseDevice(int64_t type, int64_t index) {
  device = DLDevice{static_cast<DLDeviceType>(type), static_cast<int32_t>(index)};
  // Tensors that callers keep are freed by this code: it is never unloaded.
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(UseDevice), &self)) dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

// As many bytes as the product of `shape` says; one at least, so that there is an address.
Tensor AllocStorage(Shape shape) {
  int64_t bytes = std::max<int64_t>(shape.Product(), 1);
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {bytes}, kBytes, device);
}

// Memory inside a storage, which lives as long as what lies in it.
class Within {
 public:
  Within(Tensor storage, int64_t offset) : storage_(std::move(storage)), offset_(offset) {}
  void AllocData(DLTensor* tensor) { tensor->data = static_cast<char*>(storage_.data_ptr()) + offset_; }
  void FreeData(DLTensor*) {}

 private:
  Tensor storage_;
  int64_t offset_;
};

Tensor AllocTensor(Tensor storage, int64_t offset, Shape shape, DLDataType dtype) {
  int64_t needed = static_cast<int64_t>(tvm::ffi::GetDataSize(shape.Product(), dtype));
  if (offset + needed > storage.size(0)) {
    TVM_FFI_THROW(RuntimeError) << "a tensor of " << needed << " bytes does not lie in a storage of " << storage.size(0);
  }
  return Tensor::FromNDAlloc(Within(storage, offset), shape, dtype, storage.device());
}

// `tensor`, once the host can read what the kernels before this call compute: TVM copies it on the default stream.
Tensor Await(Tensor tensor) {
  static const Function synchronize = Function::GetGlobalRequired("runtime.Device_StreamSync");
  DLDevice on = tensor.device();
  if (on.device_type != kDLCPU) {
    synchronize(on, reinterpret_cast<int64_t>(TVMFFIEnvGetStream(on.device_type, on.device_id)));
  }
  return tensor;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tkc_use_device, UseDevice);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tkc_alloc_storage, AllocStorage);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tkc_alloc_tensor, AllocTensor);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tkc_await, Await);
