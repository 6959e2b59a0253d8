// What a seccomp filter does to those under it. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks/hooks_sandbox.cpp, before a filter is installed. Pure: no system calls, no allocation.
#pragma once

struct sock_filter;

namespace stashtrace {

// Whether a filter ends a process for some system call of this machine (or sends it SIGSYS), as it does with calls that are in no
// list of its author, or in a list of forbidden ones. The program is run as the kernel runs it, once for each number, with
// arguments of 0 and again with all bits set. One that no kernel would take counts as killing.
bool filter_kills(const sock_filter* program, unsigned length) noexcept;

}  // namespace stashtrace
