// Whether a program can be started with our library preloaded, found out from its file before exec.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_spawn.cpp, in forked and vfork children too: raw system calls, a bounded number of them, no allocation, no errno.
// The launcher asks the same of the first program (stashtrace/record/program.py, by stashtrace_why_not_preloaded).
#pragma once

namespace stashtrace {

// Returns why a file must be started without us, in words for the user; null if it may be started with us, cannot be
// read, or has no loader (a static program ignores LD_PRELOAD). A script counts as its interpreter.
const char* why_not_preloaded(const char* path) noexcept;

}  // namespace stashtrace
