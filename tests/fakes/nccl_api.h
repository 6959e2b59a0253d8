// What both halves of the NCCL double's interface share: aliases and the thread's group. SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace fake
