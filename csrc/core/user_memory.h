// Reads memory behind the job's pointers, which may be invalid. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that name a path or an address of a call. The kernel may refuse a call before it reads the path, so a
// failed call says nothing about its pointers; only a call that has read a text proves it good. A check is one
// system call a page, about 0.1 us. No allocation; errno untouched; any thread, also in a signal handler.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/raw_syscall.h"

namespace stashtrace {

inline constexpr std::size_t kUnreadable = std::numeric_limits<std::size_t>::max();

// True if the page of this address can be read. Sets a signal mask from there with an operation that does not exist:
// this changes nothing, and the error shows whether the page could be read.
inline bool is_readable(const void* address) noexcept {
  const auto word = static_cast<long>(reinterpret_cast<std::uintptr_t>(address) & ~std::uintptr_t{7});
  constexpr int kNoOperation = ~0;
  return word != 0 && raw::call(SYS_rt_sigprocmask, kNoOperation, word, 0, 8) == -EINVAL;  // null would mean no mask
}

namespace detail {
inline std::size_t bytes_to_page_end(const char* at) noexcept {
  constexpr std::uintptr_t kPage = 4096;  // the smallest page size: protection changes only at its multiples
  return kPage - (reinterpret_cast<std::uintptr_t>(at) & (kPage - 1));
}
}  // namespace detail

// Length of a text, at most `most` bytes; kUnreadable if its end cannot be reached. `begins`: the first byte
// is known to be good. Later pages are checked all the same: a call may have written over the text that it was given.
// kReadable replaces is_readable where no system call may be made.
template <bool (*kReadable)(const void*) noexcept = is_readable>
std::size_t readable_length(const char* text, std::size_t most, bool begins) noexcept {
  if (text == nullptr) return kUnreadable;
  for (std::size_t length = 0; length < most;) {
    const char* at = text + length;
    if ((length != 0 || !begins) && !kReadable(at)) return kUnreadable;
    const std::size_t here = std::min(detail::bytes_to_page_end(at), most - length);
    const std::size_t found = ::strnlen(at, here);
    length += found;
    if (found < here) return length;
  }
  return most;
}

// True if all of `bytes` can be read.
inline bool all_readable(const void* from, std::size_t bytes) noexcept {
  const auto* at = static_cast<const char*>(from);
  for (std::size_t done = 0; done < bytes; done += detail::bytes_to_page_end(at + done))
    if (!is_readable(at + done)) return false;
  return true;
}

}  // namespace stashtrace
