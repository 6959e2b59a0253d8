// Byte counters of RDMA ports from sysfs. SPDX-License-Identifier: Apache-2.0
//
// Caller: nvml.cpp, on the sampler's thread. Raw system calls, no allocation. A port without readable counters is not
// listed. Counters of InfiniBand and RoCE count words of 4 bytes; EFA has none and gives bytes in hw_counters.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string_view>

#include "core/raw_syscall.h"
#include "core/text_buffer.h"

namespace stashtrace::nvml {

class RdmaPorts {
 public:
  static constexpr unsigned kMostPorts = 32;

  // `root` is /sys/class/infiniband. Returns how many ports can be read.
  unsigned find(const char* root) noexcept {
    count_ = 0;
    root_ = root;
    Names devices(root);
    for (std::string_view device = devices.next(); !device.empty(); device = devices.next()) {
      char memory[256];
      TextBuffer folder(memory, sizeof memory);
      folder.add(root).add("/").add(device).add("/ports");
      if (folder.full()) continue;
      Names ports(folder.c_str());
      for (std::string_view port = ports.next(); !port.empty(); port = ports.next()) add(device, port);
    }
    return count_;
  }
  unsigned count() const noexcept { return count_; }
  const char* name(unsigned port) const noexcept { return ports_[port].name; }  // "mlx5_0:1"

  // False if the counters cannot be read any more.
  bool read(unsigned port, std::uint64_t& transmit_bytes, std::uint64_t& receive_bytes) const noexcept {
    const Port& from = ports_[port];
    if (!number(from, from.in_words ? "counters/port_xmit_data" : "hw_counters/tx_bytes", transmit_bytes)) return false;
    if (!number(from, from.in_words ? "counters/port_rcv_data" : "hw_counters/rx_bytes", receive_bytes)) return false;
    if (from.in_words) {
      transmit_bytes *= kWordBytes;
      receive_bytes *= kWordBytes;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kWordBytes = 4;

  struct Port {
    char name[48];
    std::uint8_t device_bytes;  // of the name, before the colon
    bool in_words;
  };

  // Entries of a folder, without those that begin with a dot.
  class Names {
   public:
    explicit Names(const char* folder) noexcept : fd_(raw::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
    ~Names() {
      if (fd_ >= 0) raw::close(fd_);
    }
    Names(const Names&) = delete;
    Names& operator=(const Names&) = delete;
    std::string_view next() noexcept {
      for (;;) {
        if (at_ >= filled_) {
          filled_ = fd_ < 0 ? 0 : raw::call(SYS_getdents64, fd_, raw::address(entries_), sizeof entries_);
          at_ = 0;
          if (filled_ <= 0) return {};
        }
        const char* entry = entries_ + at_;
        at_ += *reinterpret_cast<const std::uint16_t*>(entry + 16);
        if (entry[19] != '.') return entry + 19;
      }
    }

   private:
    int fd_;
    long at_ = 0;
    long filled_ = 0;
    alignas(8) char entries_[1024];  // linux_dirent64: inode 8, offset 8, length 2, type 1, name
  };

  void add(std::string_view device, std::string_view number_text) noexcept {
    if (count_ == kMostPorts || device.size() + number_text.size() + 2 > sizeof(Port::name)) return;
    Port& port = ports_[count_];
    port = {};
    TextBuffer name(port.name, sizeof port.name);
    name.add(device).add(":").add(number_text).c_str();
    port.device_bytes = static_cast<std::uint8_t>(device.size());
    std::uint64_t transmit = 0;
    std::uint64_t receive = 0;
    for (const bool in_words : {true, false}) {
      port.in_words = in_words;
      if (!read(count_, transmit, receive)) continue;
      ++count_;
      return;
    }
  }

  bool number(const Port& port, const char* file, std::uint64_t& out) const noexcept {
    char memory[320];
    TextBuffer path(memory, sizeof memory);
    path.add(root_).add("/").add({port.name, port.device_bytes}).add("/ports/");
    path.add(port.name + port.device_bytes + 1).add("/").add(file);
    if (path.full()) return false;
    const int fd = raw::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char text[32];
    const long bytes = raw::read(fd, text, sizeof text);
    raw::close(fd);
    if (bytes <= 0 || text[0] < '0' || text[0] > '9') return false;  // "N/A (no PMA)"
    out = 0;
    for (long i = 0; i < bytes && text[i] >= '0' && text[i] <= '9'; ++i)
      out = out * 10 + static_cast<unsigned>(text[i] - '0');
    return true;
  }

  const char* root_ = "";
  unsigned count_ = 0;
  Port ports_[kMostPorts] = {};
};

}  // namespace stashtrace::nvml
