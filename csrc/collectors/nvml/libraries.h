// The two libraries that sampling needs: libnvidia-ml, and libcuda to learn which devices this process uses.
// SPDX-License-Identifier: Apache-2.0
//
// Caller: nvml.cpp; driver_is_loaded() on the drainer's thread, the rest on the sampler's. We never load or initialise
// libcuda: the job does that, or nothing is sampled.
#pragma once

#include "abi/nvml_abi.h"
#include "core/status.h"

namespace stashtrace::nvml {

inline constexpr int kMostDevices = 16;
inline constexpr std::size_t kUuidTextBytes = 48;  // "GPU-" and 36 characters

// True if the job has loaded libcuda.so.1. Looks again only after further libraries were loaded; no dlopen lock.
bool driver_is_loaded() noexcept;

class Libraries {
 public:
  // Finds the loaded libcuda, and loads libnvidia-ml.
  Status open() noexcept;
  const abi::NvmlFunctions& nvml() const noexcept { return nvml_; }
  Status init() noexcept;

  // UUIDs of the devices on which this process has a primary context. Below zero: the job has not initialised CUDA.
  // `any` true counts every visible device: for programs that make other contexts than primary ones.
  int used_devices(char (&uuids)[kMostDevices][kUuidTextBytes], bool any) noexcept;
  // NVML's handle of a device, null if it has none.
  abi::NvmlDevice handle_of(const char* uuid) noexcept;

 private:
  struct Cuda {  // CUresult is int, CUdevice is int, CUuuid 16 bytes
    int (*count)(int* count) = nullptr;
    int (*device)(int* device, int ordinal) = nullptr;
    int (*uuid)(unsigned char* uuid, int device) = nullptr;
    int (*primary_state)(int device, unsigned* flags, int* active) = nullptr;
  };
  Cuda cuda_;
  abi::NvmlFunctions nvml_;
};

}  // namespace stashtrace::nvml
