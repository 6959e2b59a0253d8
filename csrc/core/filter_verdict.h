// Whether a seccomp filter kills processes. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks/hooks_sandbox.cpp, before a filter is installed. Pure: no system calls, no allocation.
#pragma once

struct sock_filter;

namespace stashtrace {

// True if a filter ends a process for some system call of this machine (or sends it SIGSYS): a call that its author did
// not list, or listed as forbidden. The program is run as the kernel runs it, twice for each call number: arguments
// of 0, then with all bits set. A program that no kernel would accept counts as killing.
bool filter_kills(const sock_filter* program, unsigned length) noexcept;

}  // namespace stashtrace
