// Which system call a thread of this process stands in. SPDX-License-Identifier: Apache-2.0
//
// Caller: proc.cpp, on the file sampler's thread, for the main thread alone and only while that hardly runs. A call that
// never returns has no record; this is the only trace of it. Raw system calls, no allocation.
#pragma once

#include <sys/syscall.h>

#include <cstring>
#include <string_view>

#include "collectors/proc/proc_text.h"
#include "core/raw_syscall.h"
#include "core/scrubbing.h"
#include "core/text_buffer.h"

namespace stashtrace::proc {

struct KnownCall {
  long number;
  const char* name;
  bool on_descriptor;  // its first argument is one
};

constexpr KnownCall kKnownCalls[] = {
    {SYS_read, "read", true},          {SYS_pread64, "pread", true},       {SYS_readv, "readv", true},
    {SYS_write, "write", true},        {SYS_pwrite64, "pwrite", true},     {SYS_writev, "writev", true},
    {SYS_recvfrom, "recv", true},      {SYS_recvmsg, "recvmsg", true},     {SYS_sendto, "send", true},
    {SYS_sendmsg, "sendmsg", true},    {SYS_accept4, "accept", true},      {SYS_connect, "connect", true},
    {SYS_fsync, "fsync", true},        {SYS_fdatasync, "fdatasync", true}, {SYS_flock, "flock", true},
    {SYS_fcntl, "fcntl", true},        {SYS_ioctl, "ioctl", true},         {SYS_openat, "open", false},
    {SYS_epoll_pwait, "epoll", false}, {SYS_ppoll, "poll", false},         {SYS_pselect6, "select", false},
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll", false},  {SYS_poll, "poll", false},          {SYS_select, "select", false},
    {SYS_accept, "accept", true},
#endif
    {SYS_futex, "futex", false},       {SYS_nanosleep, "sleep", false},    {SYS_clock_nanosleep, "sleep", false},
    {SYS_wait4, "wait", false},        {SYS_waitid, "wait", false},
};

// "sleep", or "read /data/a.bin"; empty while the thread runs, and where the kernel does not say.
inline void add_standing_call(std::string_view syscall_text, TextBuffer& out) noexcept {
  if (syscall_text.empty() || syscall_text[0] < '0' || syscall_text[0] > '9') return;  // "running", or -1
  const std::int64_t number = take_number(syscall_text);
  for (const KnownCall& known : kKnownCalls) {
    if (known.number != number) continue;
    out.add(known.name);
    if (!known.on_descriptor) return;
    std::uint64_t descriptor = 0;
    const std::size_t begin = syscall_text.find("0x");
    if (begin == std::string_view::npos) return;
    for (std::size_t at = begin + 2; at < syscall_text.size(); ++at) {
      const char c = syscall_text[at];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0 || descriptor > 0xffffff) break;
      descriptor = descriptor * 16 + static_cast<unsigned>(digit);
    }
    char link[64];
    TextBuffer path(link, sizeof link);
    path.add("/proc/self/fd/").add_unsigned(descriptor);
    char target[512];
    const long length = raw::readlink(path.c_str(), target, sizeof target);
    if (length <= 0) return;
    out.add(" ");
    add_scrubbed_urls({target, static_cast<std::size_t>(length)}, out);
    return;
  }
}

}  // namespace stashtrace::proc
