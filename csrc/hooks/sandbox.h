// Whether this process installed a filter of system calls, and what it does. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that would make system calls although recording has ended.
#pragma once

#include "runtime/emit.h"

namespace stashtrace {

bool sandboxed() noexcept;

// True if that filter kills for some system call. An executed program is under it too, and its author did not list the
// calls by which our library starts there. Only knows filters that this process installed itself, not those that it
// inherited.
bool sandbox_kills() noexcept;

// Call before a vfork child ends or becomes another program and the memory is only its parent's again. Returns what the
// child's filter was; it is put back if the child goes on.
detail::ChildFilter leave_child_filter() noexcept;
void put_child_filter_back(detail::ChildFilter filter) noexcept;

}  // namespace stashtrace
