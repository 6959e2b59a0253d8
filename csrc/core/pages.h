// Pages of memory: 4 KiB on x86-64; 4, 16 or 64 KiB on aarch64, as the kernel was built. SPDX-License-Identifier: Apache-2.0
//
// Callers: what maps files or changes single pages. No system call: the kernel gave it to the process at its start.
#pragma once

#include <sys/auxv.h>

#include <cstddef>
#include <cstdint>

namespace stashtrace {

#if defined(__x86_64__)
inline constexpr std::size_t kLargestPageBytes = 4096;
#else
inline constexpr std::size_t kLargestPageBytes = 65'536;
#endif

inline std::uint64_t page_bytes() noexcept { return ::getauxval(AT_PAGESZ); }

inline std::uint64_t whole_pages(std::uint64_t bytes) noexcept {
  const std::uint64_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

}  // namespace stashtrace
