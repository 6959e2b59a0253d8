// The room of CUDA calls. SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime (start, stop), calls.cpp. Nothing of CUDA is touched before the job itself calls it.
#pragma once

#include "collectors/collector.h"

namespace stashtrace::rooms {

Collector& cuda() noexcept;

}  // namespace stashtrace::rooms
