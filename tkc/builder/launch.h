// What launch.cc has to know of one kernel library: its machine code, and how the host stub passes arguments.
#pragma once

#include <cstddef>
#include <cstdint>

// Each library has its own, whatever else a process has loaded.
namespace tkc __attribute__((visibility("hidden"))) {

enum class Param { kPointer, kInteger, kFloat32, kFloat64, kTensorMap };
enum class Launch {
  kGridX, kGridY, kGridZ, kBlockX, kBlockY, kBlockZ, kClusterX, kClusterY, kClusterZ,
  kDynamicSharedMemory, kProgrammaticDependentLaunch, kCooperative,
};

// A kernel's name, then its parameters' kinds and its launch tags, in the order in which the stub passes them.
struct DeviceFunction {
  const char* name;
  const Param* params;
  size_t num_params;
  const Launch* tags;
  size_t num_tags;
};

// The variable of every cubin that holds a zero, of whatever type.
constexpr char zero[] = "tkc_zero";

extern const DeviceFunction device_functions[];
extern const size_t num_device_functions;

}  // namespace tkc

extern "C" __attribute__((visibility("hidden"))) const char tkc_cubin[];

// Fails, as functions of tvm-ffi do, where a tensor among the arguments is longer than the stub counts (it has sizes in
// 32 bits, and cuts others off unsaid), or where its address would make the device fail.
extern "C" __attribute__((visibility("hidden"))) int TKCCheckArguments(const void* args, int32_t num_args);
