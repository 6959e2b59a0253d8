// Hooks of socket calls. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collectors/posix_io/paths.h"
#include "collectors/posix_io/traced.h"
#include "hooks/interpose.h"

using namespace stashtrace::posix_io;
namespace real = stashtrace::real;

STASHTRACE_HOOK(ssize_t, recv, int fd, void* buffer, std::size_t bytes, int flags) {
  return on_descriptor<op::recv, real::recv>(-1, bytes, fd, buffer, bytes, flags);
}
STASHTRACE_HOOK(ssize_t, __recv_chk, int fd, void* buffer, std::size_t bytes, std::size_t room, int flags) {
  return on_descriptor<op::recv, real::__recv_chk>(-1, bytes, fd, buffer, bytes, room, flags);
}
STASHTRACE_HOOK(ssize_t, recvfrom, int fd, void* buffer, std::size_t bytes, int flags, sockaddr* from,
                socklen_t* length) {
  return on_descriptor<op::recv, real::recvfrom>(-1, bytes, fd, buffer, bytes, flags, from, length);
}
STASHTRACE_HOOK(ssize_t, __recvfrom_chk, int fd, void* buffer, std::size_t bytes, std::size_t room, int flags,
                sockaddr* from, socklen_t* length) {
  return on_descriptor<op::recv, real::__recvfrom_chk>(-1, bytes, fd, buffer, bytes, room, flags, from, length);
}
STASHTRACE_HOOK(ssize_t, recvmsg, int fd, msghdr* message, int flags) {
  return on_descriptor<op::recv, real::recvmsg>(-1, 0, fd, message, flags);
}
STASHTRACE_HOOK(ssize_t, send, int fd, const void* buffer, std::size_t bytes, int flags) {
  return on_descriptor<op::send, real::send>(-1, bytes, fd, buffer, bytes, flags);
}
STASHTRACE_HOOK(ssize_t, sendto, int fd, const void* buffer, std::size_t bytes, int flags, const sockaddr* to,
                socklen_t length) {
  return on_descriptor<op::send, real::sendto>(-1, bytes, fd, buffer, bytes, flags, to, length);
}
STASHTRACE_HOOK(ssize_t, sendmsg, int fd, const msghdr* message, int flags) {
  return on_descriptor<op::send, real::sendmsg>(-1, 0, fd, message, flags);
}

// The peer's address becomes the socket's path, in this row and in all that follow.
STASHTRACE_HOOK(int, connect, int fd, const sockaddr* address, socklen_t length) {
  if (!on()) return real::connect(fd, address, length);
  if (stashtrace::paused()) {
    fd_table.clear(fd);  // its peer is asked for when a call of it is recorded
    return real::connect(fd, address, length);
  }
  const std::uint64_t begin = begin_call(0);
  const int result = real::connect(fd, address, length);
  const std::uint64_t end = stashtrace::now_ticks();
  const int error = result == 0 ? 0 : errno;
  std::uint64_t word = kNamed | kKnown | flag_bits(flag::socket);
  word |= given_address_id(address, length, error == 0);
  if (error == 0) fd_table.set(fd, word, kUnknownPosition);
  if (error == EINPROGRESS) fd_table.set(fd, word, kConnecting);
  if (stashtrace::recording()) record(op::connect, word, -1, begin, end, -static_cast<std::int64_t>(error));
  if (result != 0) errno = error;
  return result;
}

namespace {

// How a connect that did not wait has ended: the first question after it answers that; later ones are of the connection.
[[gnu::noinline]] int socket_error(int fd, void* value, socklen_t* length) {
  FdEntry& entry = fd_table.at(fd);
  if (entry.position.load(std::memory_order_relaxed) != kConnecting)
    return real::getsockopt(fd, SOL_SOCKET, SO_ERROR, value, length);
  const std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  const std::uint64_t begin = begin_call(0);
  const int result = real::getsockopt(fd, SOL_SOCKET, SO_ERROR, value, length);
  const std::uint64_t end = stashtrace::now_ticks();
  int error = 0;
  if (result != 0 || *length < sizeof error) return result;
  std::memcpy(&error, value, sizeof error);
  std::int64_t connecting = kConnecting;
  const bool is_answer =
      entry.position.compare_exchange_strong(connecting, kUnknownPosition, std::memory_order_relaxed);
  if (is_answer && error != 0 && on() && stashtrace::recording())
    record(op::connect_error, word, -1, begin, end, -static_cast<std::int64_t>(error));
  return result;
}

}  // namespace

STASHTRACE_HOOK(int, getsockopt, int fd, int level, int name, void* value, socklen_t* length) {
  if (name != SO_ERROR || level != SOL_SOCKET) [[likely]]
    return real::getsockopt(fd, level, name, value, length);
  return socket_error(fd, value, length);
}
