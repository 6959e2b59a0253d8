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
};

// All calls of the library, or why not. `may_load`: also one that is not in the process yet.
Status find_library(Library& out, bool may_load) noexcept;

}  // namespace stashtrace::cupti
