// Whether this process has put itself under a filter of system calls. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that would make system calls of their own although nothing is recorded any more.
#pragma once

namespace stashtrace {

bool sandboxed() noexcept;

}  // namespace stashtrace
