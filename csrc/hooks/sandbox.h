// Whether this process has put itself under a filter of system calls, and what that one does. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that would make system calls of their own although nothing is recorded any more.
#pragma once

#include "runtime/emit.h"

namespace stashtrace {

bool sandboxed() noexcept;

// Whether that filter ends who makes some system call. A program that is executed lives under it too, and the calls by which ours
// starts in it are not in the list of its author either. Known of filters that this process installed itself, not of those it was
// born with.
bool sandbox_kills() noexcept;

// Before a vfork child ends or becomes another program, with the memory its parent's alone again: what the child's filter was. It is put
// back where the child goes on.
detail::ChildFilter leave_child_filter() noexcept;
void put_child_filter_back(detail::ChildFilter filter) noexcept;

}  // namespace stashtrace
