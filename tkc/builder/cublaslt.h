// What cublaslt.cc has to know of one matmul's library.
#pragma once

#include <tvm/ffi/c_api.h>

// Each library has its own, whatever else a process has loaded.
namespace tkc __attribute__((visibility("hidden"))) {

// out [m, n] = a [m, k] * b + bias [n] + residual [m, n], with b [n, k] (`transposed`) or [k, n]. All tensors are of one
// dtype of 16 bits, row-major, and accumulated in float32.
struct Matmul {
  const char* kernel;
  int64_t n, k;
  DLDataType dtype;
  bool transposed, bias, residual;
  int64_t workspace_bytes;
};

extern const Matmul matmul;

// The names of the shared library's versions, the newest first, a null pointer behind them; and where to get it.
extern const char* const library_names[];
extern const char* const library_cure;

// Calls cuBLASLt with a, b, the bias and the residual where there are such, out, and a workspace of `workspace_bytes`.
// Fails, as functions of tvm-ffi do, for tensors that are not as described.
int CallMatmul(const TVMFFIAny* args, int32_t num_args);

}  // namespace tkc
