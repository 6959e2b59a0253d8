// Whether a program can be started with our library in front, found out from its file before exec.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_spawn.cpp, in forked and vfork children too: raw system calls, a bounded number of them, no allocation, no errno.
// The launcher asks the same of the first program (stashtrace/record/program.py, by stashtrace_why_not_preloaded).
#pragma once

namespace stashtrace {

// Why a file must be started without us, as words for the user; null if it may be started with us, cannot be read, or has
// no loader (a static program does not look at LD_PRELOAD). A script is what its interpreter is.
const char* why_not_preloaded(const char* path) noexcept;

}  // namespace stashtrace
