// What launch.cc has to know of one kernel library: its machine code, and how the host stub passes arguments.
#pragma once

#include <cstddef>

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

extern const DeviceFunction device_functions[];
extern const size_t num_device_functions;

}  // namespace tkc

extern "C" __attribute__((visibility("hidden"))) const char tkc_cubin[];
