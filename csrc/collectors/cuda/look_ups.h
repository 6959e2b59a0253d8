// What look-ups of the driver's functions are answered with. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_driver.cpp (cuGetProcAddress, with the look-up hook) and hooks_runtime.cpp (cudaGetDriverEntryPoint). Any
// thread, no lock.
#pragma once

#include <cstdint>

namespace stashtrace::cuda {

#pragma GCC visibility push(hidden)

// Puts our function in place of the driver's own answer, by the name without suffixes. What is in no range of
// driver_calls.def is left unchanged: its signature may differ.
void replace_looked_up(const char* symbol, void** function, int version, std::uint64_t flags) noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::cuda
