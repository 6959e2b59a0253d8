// Ends of a TCP connection, from its descriptor, which stays the caller's. SPDX-License-Identifier: Apache-2.0
//
// For the probe that records a process group's connections. /proc/self/net/tcp lists them too, but reading it takes the
// kernel some ten milliseconds: it walks the table of all connections of the machine, twice (IPv4 and IPv6).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>

#include "core/text_buffer.h"
#include "python/arguments.h"
#include "python/functions.h"

namespace stashtrace::python {

namespace {

// An address and its port as text.
struct EndText {
  char memory[INET6_ADDRSTRLEN + 8];
};

// False if this is not an internet address. An IPv4 address that an IPv6 socket holds is written as IPv4.
bool write_end(const sockaddr_storage& address, EndText& out) noexcept {
  char text[INET6_ADDRSTRLEN];
  in_port_t port = 0;
  const void* bytes = nullptr;
  int family = address.ss_family;
  sockaddr_in v4;
  sockaddr_in6 v6;
  if (family == AF_INET) {
    std::memcpy(&v4, &address, sizeof v4);
    bytes = &v4.sin_addr;
    port = v4.sin_port;
  } else if (family == AF_INET6) {
    std::memcpy(&v6, &address, sizeof v6);
    bytes = &v6.sin6_addr;
    port = v6.sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      family = AF_INET;
      bytes = &v6.sin6_addr.s6_addr[12];
    }
  }
  if (bytes == nullptr || inet_ntop(family, bytes, text, sizeof text) == nullptr) return false;
  TextBuffer(out.memory, sizeof out.memory).add(text).add(":").add_unsigned(ntohs(port)).c_str();
  return true;
}

bool read_ends(int fd, EndText& own, EndText& peer) noexcept {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_state != TCP_ESTABLISHED) return false;
  sockaddr_storage address{};
  bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 || !write_end(address, own)) return false;
  bytes = sizeof address;
  return getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 && write_end(address, peer);
}

}  // namespace

STASHTRACE_FUNCTION(tcp_ends) {
  (void)self;
  std::int32_t fd = -1;
  if (!expect("tcp_ends", count, 1) || !to_number(given[0], fd)) return nullptr;
  EndText own, peer;
  return read_ends(fd, own, peer) ? api().Py_BuildValue("(ss)", own.memory, peer.memory) : none();
}

}  // namespace stashtrace::python
