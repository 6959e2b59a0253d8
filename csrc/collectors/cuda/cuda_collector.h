// The collector of CUDA calls. SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime (start, stop), calls.cpp. Touches nothing of CUDA before the job itself calls it.
#pragma once

#include "collectors/collector.h"

namespace stashtrace::collectors {

Collector& cuda() noexcept;

}  // namespace stashtrace::collectors

namespace stashtrace::cuda {

bool lookup_hook_is_on() noexcept;  // STASHTRACE_LOOKUP_HOOK=1, in a process that is recorded

}  // namespace stashtrace::cuda
