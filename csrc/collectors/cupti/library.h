// Finds libcupti and its calls. SPDX-License-Identifier: Apache-2.0
//
// Called by the session at a step boundary, never in a constructor: loading a library there may deadlock. The one
// that the job has loaded is taken first, whatever its version, since two CUPTI in a process cannot both work.
#pragma once

#include "abi/cupti_abi.h"
#include "core/status.h"

namespace stashtrace::cupti {

struct Library {
#define CUPTI_CALL(name, required, ...) int (*name)(__VA_ARGS__);
  STASHTRACE_CUPTI_CALLS(CUPTI_CALL)
#undef CUPTI_CALL
  int cuda_major;  // of the toolkit it belongs to, 0 if its name does not tell
};

// All calls of the library, or why not. `may_load`: also one that is not in the process yet.
Status find_library(Library& out, bool may_load) noexcept;

// Whether the job has a device by now, of a driver that is new enough for this library; no library is loaded, and
// nothing of CUPTI is called. To be asked before the first call of CUPTI: one that cannot attach to the driver need not
// say so. The one of CUDA 13.2 calls itself until the stack is full, in whichever call comes first.
Status find_device(const Library& library) noexcept;

}  // namespace stashtrace::cupti
