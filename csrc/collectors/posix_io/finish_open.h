// Out-of-line ends of hooks that open things. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_*.cpp, right after the real function; errno is still its own and is kept.
#pragma once

#include <cstdint>

namespace stashtrace::posix_io {

// fd is what open returned, staged whether it is a copy. Registers the descriptor, records the call.
void finish_open(int fd, int dirfd, const char* path, int open_flags, bool staged, std::uint64_t begin_ticks,
                 std::uint64_t end_ticks) noexcept;
void finish_fopen(bool failed, int fd, const char* path, bool staged, std::uint64_t begin_ticks,
                  std::uint64_t end_ticks) noexcept;
void finish_opendir(int fd, const char* path, std::uint64_t begin_ticks, std::uint64_t end_ticks) noexcept;

// False in a vfork child (and after a raw fork): it shares our memory, not our descriptors.
bool in_own_process() noexcept;

}  // namespace stashtrace::posix_io
