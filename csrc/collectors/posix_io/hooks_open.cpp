// Hooks that make, copy and close descriptors: they keep the descriptor table. SPDX-License-Identifier: Apache-2.0
//
// dup, fcntl, socket, accept, pipe, ... are not recorded; they only change what a number means in the table.
#include <fcntl.h>
#include <linux/close_range.h>

#include "collectors/posix_io/finish_open.h"
#include "collectors/posix_io/staged.h"
#include "collectors/posix_io/traced.h"
#include "core/raw_syscall.h"
#include "hooks/interpose.h"

using namespace stashtrace::posix_io;
namespace real = stashtrace::real;

namespace {

// A descriptor without a name so far: identified at its first use that is recorded.
int fresh(int fd) noexcept {
  if (fd >= 0 && on()) fd_table.clear(fd);
  return fd;
}

// call(dirfd, path) opens; the row has the name that was asked for, also where a copy is opened in its place.
template <class Call>
int opening(int dirfd, const char* path, int flags, Call call) {
  if (!on()) return call(dirfd, path);
  const bool asleep = stashtrace::paused();
  const std::uint64_t begin = asleep ? 0 : begin_call(0);
  bool staged = false;
  const int fd = open_staged(
      dirfd, path, purpose_of(flags), staged, call, [](int result) { return result; },
      [](int result) { stashtrace::raw::close(result); });
  if (asleep) return fresh(fd);
  finish_open(fd, dirfd, path, flags, staged, begin, stashtrace::now_ticks());
  return fd;
}

int copied(int from, int to) noexcept {
  if (to >= 0 && to != from && on()) {
    if (in_own_process()) fd_table.copy(from, to);
    else fd_table.clear(to);  // vfork child: the parent's table must not store the child's descriptors
  }
  return to;
}

}  // namespace

// The fourth or third argument of open is read whether passed or not, as libc does with its register.
STASHTRACE_HOOK(int, open, const char* path, int flags, mode_t mode) {
  return opening(AT_FDCWD, path, flags, [&](int, const char* to) { return real::open(to, flags, mode); });
}
STASHTRACE_HOOK(int, open64, const char* path, int flags, mode_t mode) {
  return opening(AT_FDCWD, path, flags, [&](int, const char* to) { return real::open64(to, flags, mode); });
}
STASHTRACE_HOOK(int, openat, int dirfd, const char* path, int flags, mode_t mode) {
  return opening(dirfd, path, flags, [&](int at, const char* to) { return real::openat(at, to, flags, mode); });
}
STASHTRACE_HOOK(int, openat64, int dirfd, const char* path, int flags, mode_t mode) {
  return opening(dirfd, path, flags, [&](int at, const char* to) { return real::openat64(at, to, flags, mode); });
}
STASHTRACE_HOOK(int, __open_2, const char* path, int flags) {
  return opening(AT_FDCWD, path, flags, [&](int, const char* to) { return real::__open_2(to, flags); });
}
STASHTRACE_HOOK(int, __open64_2, const char* path, int flags) {
  return opening(AT_FDCWD, path, flags, [&](int, const char* to) { return real::__open64_2(to, flags); });
}
STASHTRACE_HOOK(int, __openat_2, int dirfd, const char* path, int flags) {
  return opening(dirfd, path, flags, [&](int at, const char* to) { return real::__openat_2(at, to, flags); });
}
STASHTRACE_HOOK(int, __openat64_2, int dirfd, const char* path, int flags) {
  return opening(dirfd, path, flags, [&](int at, const char* to) { return real::__openat64_2(at, to, flags); });
}
STASHTRACE_HOOK(int, creat, const char* path, mode_t mode) {
  return opening(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC,
                 [&](int, const char* to) { return real::creat(to, mode); });
}
STASHTRACE_HOOK(int, creat64, const char* path, mode_t mode) {
  return opening(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC,
                 [&](int, const char* to) { return real::creat64(to, mode); });
}

STASHTRACE_HOOK(int, close, int fd) {
  if (!on()) return real::close(fd);
  // Before the call: afterwards another thread may own the number already.
  const std::uint64_t word = fd_table.clear(fd);
  if (stashtrace::paused()) return real::close(fd);
  const std::uint64_t begin = begin_call(0);
  const int result = real::close(fd);
  const std::uint64_t end = stashtrace::now_ticks();
  const bool was_open = result == 0 || errno != EBADF;  // loops that close every number are not I/O
  if (was_open && (word & kOurs) == 0 && stashtrace::recording())
    record(op::close, word, -1, begin, end, or_errno(result));
  return result;
}
STASHTRACE_HOOK(int, close_range, unsigned int first, unsigned int last, int flags) {
  if (on() && (flags & CLOSE_RANGE_CLOEXEC) == 0) fd_table.clear_range(first, last);
  return real::close_range(first, last, flags);
}
STASHTRACE_HOOK(void, closefrom, int first) {
  if (on()) fd_table.clear_range(first < 0 ? 0U : static_cast<unsigned>(first), ~0U);
  real::closefrom(first);
}

STASHTRACE_HOOK(int, dup, int fd) { return copied(fd, real::dup(fd)); }
STASHTRACE_HOOK(int, dup2, int from, int to) { return copied(from, real::dup2(from, to)); }
STASHTRACE_HOOK(int, dup3, int from, int to, int flags) { return copied(from, real::dup3(from, to, flags)); }

namespace {

int after_fcntl(int fd, int command, unsigned long argument, int result) noexcept {
  if (result < 0 || !on()) return result;
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) return copied(fd, result);
  if (command == F_SETFL) {
    FdEntry& entry = fd_table.at(fd);
    const std::uint64_t changing = kAppend | flag_bits(flag::direct);
    const std::uint64_t bits =
        ((argument & O_APPEND) != 0 ? kAppend : 0) | ((argument & O_DIRECT) != 0 ? flag_bits(flag::direct) : 0);
    std::uint64_t word = entry.word.load(std::memory_order_relaxed);
    if ((word & kNamed) != 0 && (word & changing) != bits) {
      entry.position.store(kUnknownPosition, std::memory_order_relaxed);
      entry.word.compare_exchange_strong(word, (word & ~changing) | bits, std::memory_order_relaxed);
    }
  }
  return result;
}

}  // namespace

STASHTRACE_HOOK(int, fcntl, int fd, int command, unsigned long argument) {
  return after_fcntl(fd, command, argument, real::fcntl(fd, command, argument));
}
STASHTRACE_HOOK(int, fcntl64, int fd, int command, unsigned long argument) {
  return after_fcntl(fd, command, argument, real::fcntl64(fd, command, argument));
}

STASHTRACE_HOOK(int, socket, int domain, int type, int protocol) { return fresh(real::socket(domain, type, protocol)); }
STASHTRACE_HOOK(int, accept, int fd, sockaddr* address, socklen_t* length) {
  return fresh(real::accept(fd, address, length));
}
STASHTRACE_HOOK(int, accept4, int fd, sockaddr* address, socklen_t* length, int flags) {
  return fresh(real::accept4(fd, address, length, flags));
}
STASHTRACE_HOOK(int, eventfd, unsigned int count, int flags) { return fresh(real::eventfd(count, flags)); }
STASHTRACE_HOOK(int, memfd_create, const char* name, unsigned int flags) {
  return fresh(real::memfd_create(name, flags));
}
STASHTRACE_HOOK(int, socketpair, int domain, int type, int protocol, int* pair) {
  const int result = real::socketpair(domain, type, protocol, pair);
  if (result == 0) fresh(pair[0]), fresh(pair[1]);
  return result;
}
STASHTRACE_HOOK(int, pipe, int* pair) {
  const int result = real::pipe(pair);
  if (result == 0) fresh(pair[0]), fresh(pair[1]);
  return result;
}
STASHTRACE_HOOK(int, pipe2, int* pair, int flags) {
  const int result = real::pipe2(pair, flags);
  if (result == 0) fresh(pair[0]), fresh(pair[1]);
  return result;
}
