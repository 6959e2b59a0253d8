// What both halves of the NCCL double's interface share: aliases and the thread's group. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <utility>

#include "nccl_comm.h"

// ncclX as a weak alias of pncclX.
#define FAKE_ALIAS(NAME, PARAMETERS)                                                                     \
  extern "C" __attribute__((weak, alias("pnccl" #NAME), visibility("default"))) int nccl##NAME PARAMETERS;

namespace fake {

struct Group {
  int depth = 0;
  int error = 0;
  std::vector<std::pair<CommPtr, Op>> calls;
  std::vector<CommPtr> inits;
  CommPtr plugin;  // whose plugin session was told of this group
};
extern thread_local Group t_group;

void group_begin();
int group_end();
int call(nccl::Comm handle, Op op);
void open_plugin(CommState& comm);  // on a thread of its own, with the communicator's device current

// Makes the primary context of a device current for a scope, as NCCL does on the threads that make communicators.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (engine()->current_device() == device) return;
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    auto* retain = reinterpret_cast<int (*)(void**, int)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
    auto* push = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxPushCurrent_v2"));
    void* context = nullptr;
    if (retain(&context, device) == 0 && push(context) == 0)
      pop_ = reinterpret_cast<int (*)(void**)>(dlsym(driver, "cuCtxPopCurrent_v2"));
  }
  ~OnDevice() {
    void* context = nullptr;
    if (pop_ != nullptr) pop_(&context);
  }

 private:
  int (*pop_)(void**) = nullptr;
};

}  // namespace fake
