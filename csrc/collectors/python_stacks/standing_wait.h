// Does a thread of this process wait for a lock? SPDX-License-Identifier: Apache-2.0
//
// Caller: the sampler of stacks, of threads whose waits are not recorded. The kernel says in which call a thread stands;
// raw system calls, no allocation.
#pragma once

#include <sys/syscall.h>

#include <cstdint>
#include <string_view>

#include "collectors/proc/proc_text.h"
#include "core/text_buffer.h"

namespace stashtrace::python_stacks {

enum class Waits : std::uint8_t { no, yes, unknown };

// "running", "-1 ..." in no system call, or its number and its arguments: "202 0x7f66a4001e28 0x189 ...".
template <class Counts>
Waits wait_of_text(std::string_view text, Counts counts) noexcept {
  if (text.empty()) return Waits::unknown;
  if (text[0] < '0' || text[0] > '9' || proc::take_number(text) != SYS_futex) return Waits::no;
  constexpr std::string_view kPrefix = " 0x";
  if (!text.starts_with(kPrefix)) return Waits::unknown;
  std::uint64_t futex = 0;
  for (const char c : text.substr(kPrefix.size())) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) break;
    futex = futex * 16 + static_cast<unsigned>(digit);
  }
  return counts(futex) ? Waits::yes : Waits::no;
}

// `counts(address)`: is that a lock at which a thread has nothing to do?
template <class Counts>
Waits standing_wait(std::uint32_t tid, Counts counts) noexcept {
  proc::SmallFile<192> file;
  char path[64];
  TextBuffer name(path, sizeof path);
  name.add("/proc/self/task/").add_unsigned(tid).add("/syscall");
  return wait_of_text(file.read(name.c_str()), counts);
}

}  // namespace stashtrace::python_stacks
