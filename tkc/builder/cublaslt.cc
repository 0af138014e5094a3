// A matmul kernel that is a call of cuBLASLt, the one that PyTorch has loaded.
//
// Nothing here depends on the kernel: it is compiled once, and linked into every library that cublaslt.h describes. What
// of cuBLASLt is used is declared here, by its documentation: its headers come neither with nvcc nor with PyTorch, and
// versions 12 and 13 agree on it.

#include "cublaslt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tkc {
namespace {

constexpr uintptr_t kAlignment = 16;  // of every tensor, as our own kernels want it
constexpr uintptr_t kWorkspaceAlignment = 256;
constexpr size_t kMostPlans = 4096;

#define TKC_CHECK_CUDA(stmt)                                                                                   \
  do {                                                                                                         \
    cudaError_t code = (stmt);                                                                                 \
    if (code != cudaSuccess) TVM_FFI_THROW(RuntimeError) << matmul.kernel << ": " << cudaGetErrorString(code); \
  } while (false)

// What cublasLt.h declares, by other names.
using Status = int;  // 0: success
using Object = void*;
struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
enum DataType : int { kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14 };
enum ComputeType : int { kComputeFloat32 = 68 };
enum Operation : int32_t { kTranspose = 1 };
enum Epilogue : uint32_t { kAddBias = 4 };
enum DescriptionAttribute : int { kTransposeA = 3, kEpilogue = 7, kBiasPointer = 8 };
enum PreferenceAttribute : int {
  kMostWorkspaceBytes = 1, kReductionSchemes = 3, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8,
};
constexpr uint32_t kReduceInComputeType = 2;  // partial sums stay float32

struct CublasLt {
  Status (*create)(Object* handle);
  Status (*create_description)(Object*, ComputeType, DataType scale);
  Status (*destroy_description)(Object);
  Status (*set_description)(Object, DescriptionAttribute, const void*, size_t);
  Status (*create_layout)(Object*, DataType, uint64_t rows, uint64_t columns, int64_t leading_dimension);
  Status (*destroy_layout)(Object);
  Status (*create_preference)(Object*);
  Status (*destroy_preference)(Object);
  Status (*set_preference)(Object, PreferenceAttribute, const void*, size_t);
  Status (*heuristic)(Object handle, Object description, Object a, Object b, Object c, Object d, Object preference,
                      int requested, HeuristicResult* results, int* found);
  Status (*matmul)(Object handle, Object description, const void* alpha, const void* a, Object a_layout, const void* b,
                   Object b_layout, const void* beta, const void* c, Object c_layout, void* d, Object d_layout,
                   const Algorithm*, void* workspace, size_t workspace_bytes, cudaStream_t);
};

void* OpenLibrary() {
  // The one that is in the process already, whichever version that is; else the newest.
  std::string names;
  for (int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    names.clear();
    for (const char* const* name = library_names; *name != nullptr; ++name) {
      if (void* library = dlopen(*name, flags)) return library;
      names += (names.empty() ? "" : " nor ") + std::string(*name);
    }
  }
  TVM_FFI_THROW(RuntimeError) << matmul.kernel << " calls cuBLASLt, and neither " << names << " can be loaded; "
                              << library_cure << "; kernels=\"all\" compiles without it";
  TVM_FFI_UNREACHABLE();
}

template <typename F>
void Load(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) {
    TVM_FFI_THROW(RuntimeError) << matmul.kernel << ": the cuBLASLt that is loaded has no " << name
                                << "; version 12 or 13 is needed";
  }
}

const CublasLt& Library() {
  static const CublasLt* functions = [] {
    void* library = OpenLibrary();
    auto found = std::make_unique<CublasLt>();
    Load(library, "cublasLtCreate", found->create);
    Load(library, "cublasLtMatmulDescCreate", found->create_description);
    Load(library, "cublasLtMatmulDescDestroy", found->destroy_description);
    Load(library, "cublasLtMatmulDescSetAttribute", found->set_description);
    Load(library, "cublasLtMatrixLayoutCreate", found->create_layout);
    Load(library, "cublasLtMatrixLayoutDestroy", found->destroy_layout);
    Load(library, "cublasLtMatmulPreferenceCreate", found->create_preference);
    Load(library, "cublasLtMatmulPreferenceDestroy", found->destroy_preference);
    Load(library, "cublasLtMatmulPreferenceSetAttribute", found->set_preference);
    Load(library, "cublasLtMatmulAlgoGetHeuristic", found->heuristic);
    Load(library, "cublasLtMatmul", found->matmul);
    return found.release();
  }();
  return *functions;
}

std::string Sizes(int64_t m) {
  return "m=" + std::to_string(m) + ", n=" + std::to_string(matmul.n) + ", k=" + std::to_string(matmul.k);
}

void Check(Status status, const char* what, int64_t m) {
  if (status != 0) {
    TVM_FFI_THROW(RuntimeError) << matmul.kernel << ": " << what << " of cuBLASLt failed with status " << status << " for "
                                << Sizes(m);
  }
}

using Owned = std::unique_ptr<void, Status (*)(Object)>;

Owned Description(const void* bias, int64_t m) {
  const CublasLt& lt = Library();
  Object made = nullptr;
  Check(lt.create_description(&made, kComputeFloat32, kFloat32), "cublasLtMatmulDescCreate", m);
  Owned description(made, lt.destroy_description);
  auto set = [&](DescriptionAttribute attribute, const auto& value) {
    Check(lt.set_description(made, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute", m);
  };
  if (matmul.transposed) set(kTransposeA, kTranspose);
  if (matmul.bias) {
    set(kEpilogue, kAddBias);
    set(kBiasPointer, bias);
  }
  return description;
}

Owned Layout(int64_t rows, int64_t columns, int64_t m) {
  Object made = nullptr;
  DataType type = matmul.dtype.code == kDLBfloat ? kBFloat16 : kFloat16;
  Check(Library().create_layout(&made, type, rows, columns, rows), "cublasLtMatrixLayoutCreate", m);
  return Owned(made, Library().destroy_layout);
}

// How the products of m rows are computed. cuBLASLt's matrices are column-major: what is row-major is transposed there,
// and the product is out^T [n, m] = b^T a^T, of which the bias is a column.
struct Plan {
  Plan(Object handle, int64_t m)
      : weight(matmul.transposed ? Layout(matmul.k, matmul.n, m) : Layout(matmul.n, matmul.k, m)),
        rows(Layout(matmul.k, m, m)),
        out(Layout(matmul.n, m, m)) {
    const CublasLt& lt = Library();
    Object made = nullptr;
    Check(lt.create_preference(&made), "cublasLtMatmulPreferenceCreate", m);
    Owned preference(made, lt.destroy_preference);
    auto set = [&](PreferenceAttribute attribute, const auto& value) {
      Check(lt.set_preference(made, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute", m);
    };
    set(kMostWorkspaceBytes, static_cast<uint64_t>(matmul.workspace_bytes - (kWorkspaceAlignment - 1)));
    set(kReductionSchemes, kReduceInComputeType);
    for (PreferenceAttribute operand : {kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD}) {
      set(operand, static_cast<uint32_t>(kAlignment));
    }
    // Of the bias, the address alone tells the alignment.
    Owned description = Description(reinterpret_cast<const void*>(kAlignment), m);
    int found = 0;
    HeuristicResult result{};
    Status status = lt.heuristic(handle, description.get(), weight.get(), rows.get(), out.get(), out.get(), made, 1,
                                 &result, &found);
    if (status != 0 || found == 0) {
      TVM_FFI_THROW(RuntimeError) << matmul.kernel << ": cuBLASLt has no algorithm for " << Sizes(m) << " (status " << status
                                  << "); compile with kernels=\"all\", which leaves it out";
    }
    algorithm = result.algorithm;
  }

  Owned weight, rows, out;
  Algorithm algorithm;
};

struct Device {
  Object handle = nullptr;
  std::unordered_map<int64_t, std::shared_ptr<const Plan>> plans;
};

// The handle and the plan for m rows on the current device, which has the number `device`.
std::pair<Object, std::shared_ptr<const Plan>> HandleAndPlan(int device, int64_t m) {
  // Never freed: the CUDA driver may already be gone when static destructors run.
  static std::mutex* mutex = new std::mutex;
  static auto* devices = new std::unordered_map<int, Device>;
  std::lock_guard<std::mutex> lock(*mutex);
  Device& own = (*devices)[device];
  if (own.handle == nullptr) Check(Library().create(&own.handle), "cublasLtCreate", m);
  auto found = own.plans.find(m);
  if (found == own.plans.end()) {
    auto plan = std::make_shared<const Plan>(own.handle, m);
    if (own.plans.size() >= kMostPlans) own.plans.clear();
    found = own.plans.emplace(m, std::move(plan)).first;
  }
  return {own.handle, found->second};
}

const DLTensor& TensorOf(const TVMFFIAny& argument, int index) {
  if (argument.type_index == kTVMFFIDLTensorPtr) return *static_cast<const DLTensor*>(argument.v_ptr);
  if (argument.type_index == kTVMFFITensor) return *TVMFFITensorGetDLTensorPtr(argument.v_obj);
  TVM_FFI_THROW(TypeError) << matmul.kernel << ": argument " << index << " is no tensor";
  TVM_FFI_UNREACHABLE();
}

void* AddressOf(const DLTensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

bool IsContiguous(const DLTensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.ndim - 1; tensor.strides != nullptr && axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return true;
}

// Hands out the arguments one by one, each checked.
class Arguments {
 public:
  Arguments(const TVMFFIAny* args, int32_t num_args) : args_(args) {
    int expected = 4 + matmul.bias + matmul.residual;
    if (num_args != expected) {
      TVM_FFI_THROW(TypeError) << matmul.kernel << " takes " << expected << " tensors, and got " << num_args << " arguments";
    }
    const DLTensor& first = TensorOf(args[0], 0);
    device_ = first.device;
    if (device_.device_type != kDLCUDA) TVM_FFI_THROW(ValueError) << matmul.kernel << ": tensor 0 is not on a GPU";
    if (first.ndim != 2) TVM_FFI_THROW(ValueError) << matmul.kernel << ": tensor 0 has " << first.ndim << " axes, expected 2";
    m_ = first.shape[0];
  }

  int device() const { return device_.device_id; }
  int64_t m() const { return m_; }

  void* Next(std::initializer_list<int64_t> shape, DLDataType dtype) {
    int index = next_++;
    const DLTensor& tensor = TensorOf(args_[index], index);
    if (tensor.ndim != static_cast<int>(shape.size())) {
      TVM_FFI_THROW(ValueError) << matmul.kernel << ": tensor " << index << " has " << tensor.ndim << " axes, expected "
                                << shape.size();
    }
    if (tensor.dtype.code != dtype.code || tensor.dtype.bits != dtype.bits || tensor.dtype.lanes != dtype.lanes) {
      TVM_FFI_THROW(TypeError) << matmul.kernel << ": tensor " << index << " has another dtype than the kernel was built for";
    }
    if (tensor.device.device_type != device_.device_type || tensor.device.device_id != device_.device_id) {
      TVM_FFI_THROW(ValueError) << matmul.kernel << ": tensor " << index << " is on another device than tensor 0";
    }
    const int64_t* size = tensor.shape;
    bool empty = false;
    for (int64_t wanted : shape) {
      if (*size != wanted) {
        TVM_FFI_THROW(ValueError) << matmul.kernel << ": axis " << size - tensor.shape << " of tensor " << index << " is " << *size
                                  << ", not " << wanted;
      }
      if (*size > std::numeric_limits<int32_t>::max()) {
        TVM_FFI_THROW(ValueError) << "axis " << size - tensor.shape << " of tensor " << index << " of a kernel is " << *size
                                  << " long, and kernels count no further than 2**31 - 1; split the tensor";
      }
      empty |= *size++ == 0;
    }
    if (empty) return nullptr;
    if (!IsContiguous(tensor)) {
      TVM_FFI_THROW(ValueError) << matmul.kernel << ": tensor " << index << " is not contiguous; copy the view";
    }
    void* address = AddressOf(tensor);
    if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0) {
      TVM_FFI_THROW(ValueError) << "tensor " << index << " of a kernel lies at an address that is no multiple of " << kAlignment
                                << " bytes, as threads load at once; copy the view";
    }
    return address;
  }

 private:
  const TVMFFIAny* args_;
  DLDevice device_;
  int64_t m_;
  int next_ = 0;
};

// The device that is current is so again at the end.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    TKC_CHECK_CUDA(cudaGetDevice(&before_));
    if (before_ != device) TKC_CHECK_CUDA(cudaSetDevice(device));
    changed_ = before_ != device;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

void Multiply(const TVMFFIAny* args, int32_t num_args) {
  Arguments arguments(args, num_args);
  int64_t m = arguments.m(), n = matmul.n, k = matmul.k;
  const void* a = arguments.Next({m, k}, matmul.dtype);
  const void* b = matmul.transposed ? arguments.Next({n, k}, matmul.dtype) : arguments.Next({k, n}, matmul.dtype);
  const void* bias = matmul.bias ? arguments.Next({n}, matmul.dtype) : nullptr;
  const void* residual = matmul.residual ? arguments.Next({m, n}, matmul.dtype) : nullptr;
  void* out = arguments.Next({m, n}, matmul.dtype);
  void* given = arguments.Next({matmul.workspace_bytes}, {kDLUInt, 8, 1});
  if (m == 0) return;
  uintptr_t unaligned = reinterpret_cast<uintptr_t>(given);
  uintptr_t workspace = (unaligned + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  CurrentDevice current(arguments.device());
  auto [handle, plan] = HandleAndPlan(arguments.device(), m);
  Owned description = Description(bias, m);
  const float one = 1.0f, beta = residual != nullptr ? 1.0f : 0.0f;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, arguments.device()));
  Check(Library().matmul(handle, description.get(), &one, b, plan->weight.get(), a, plan->rows.get(), &beta,
                         residual != nullptr ? residual : out, plan->out.get(), out, plan->out.get(), &plan->algorithm,
                         reinterpret_cast<void*>(workspace), matmul.workspace_bytes - (kWorkspaceAlignment - 1), stream),
        "cublasLtMatmul", m);
}

}  // namespace

int CallMatmul(const TVMFFIAny* args, int32_t num_args) {
  TVM_FFI_SAFE_CALL_BEGIN();
  Multiply(args, num_args);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace tkc
