// Finds libcupti and its calls. SPDX-License-Identifier: Apache-2.0
//
// Called by the session at a step boundary, never in a constructor: loading a library there may deadlock. The one
// that the job has loaded is taken first, whatever its version: two CUPTI libraries cannot both work in a process.
#pragma once

#include "abi/cupti_abi.h"
#include "core/status.h"

namespace stashtrace::cupti {

struct Library {
#define CUPTI_CALL(name, required, ...) int (*name)(__VA_ARGS__);
  STASHTRACE_CUPTI_CALLS(CUPTI_CALL)
#undef CUPTI_CALL
  int cuda_major;  // of the toolkit it belongs to, 0 if its name does not say
};

// Finds all calls of the library, or says why not. `may_load`: may load one that is not in the process yet.
Status find_library(Library& out, bool may_load) noexcept;

// Checks that the job has a device by now, with a driver that is new enough for this library. Loads no library, calls
// nothing of CUPTI. Call it before the first call of CUPTI: a CUPTI that cannot attach to the driver need not
// say so. That of CUDA 13.2 then calls itself until the stack is full, whichever call comes first.
Status find_device(const Library& library) noexcept;

}  // namespace stashtrace::cupti
