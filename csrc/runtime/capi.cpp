// Implementation of capi.h: each function is a short call into the runtime.
// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi.h"

extern "C" const char* stashtrace_version() noexcept { return "0.1.0"; }
