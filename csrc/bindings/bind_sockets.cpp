// Ends of a TCP connection, from its descriptor, which stays the caller's. SPDX-License-Identifier: Apache-2.0
//
// For the probe that tells a process group's connections. /proc/self/net/tcp lists them too, but reading it takes the
// kernel some ten milliseconds: it walks the table of all connections of the machine, twice (IPv4 and IPv6).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pybind11/pybind11.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "bindings/binders.h"

namespace py = pybind11;

namespace {

// "" if this is not an internet address. An IPv4 address that an IPv6 socket holds is written as IPv4.
std::string text_of(const sockaddr_storage& address) {
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
  if (bytes == nullptr || inet_ntop(family, bytes, text, sizeof text) == nullptr) return {};
  return std::string(text) + ":" + std::to_string(ntohs(port));
}

py::object tcp_ends(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_state != TCP_ESTABLISHED)
    return py::none();
  sockaddr_storage own{}, peer{};
  bytes = sizeof own;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return py::none();
  bytes = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return py::none();
  const std::string own_text = text_of(own), peer_text = text_of(peer);
  if (own_text.empty() || peer_text.empty()) return py::none();
  return py::make_tuple(own_text, peer_text);
}

}  // namespace

void bind_sockets(py::module_& module) {
  module.def("tcp_ends", &tcp_ends, py::arg("fd"),
             "(own, peer) as \"address:port\" of an established TCP connection, None for any other descriptor.");
}
