// Which process of a host samples which device: the first that asks. SPDX-License-Identifier: Apache-2.0
//
//     <run directory>/<host>.nvml.lock, an empty file; one byte of it is locked per device, at a place made of its UUID
//
// Caller: nvml.cpp, on the sampler's thread. A record lock (fcntl), since a forked child does not inherit it and the
// kernel releases it when its process ends in any way, so another one can go on. On a file system without locks the
// process of local rank 0 takes all. A process that closes descriptors it does not know loses its lock: the device may
// then be sampled twice, which costs time and does no harm. A link in its place is not followed: the run directory may be
// one that others write to.
#pragma once

#include <sys/utsname.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/config.h"
#include "core/pinned_file.h"
#include "core/raw_syscall.h"
#include "core/text_buffer.h"

namespace stashtrace::nvml {

class Ownership {
 public:
  void open(const char* directory) noexcept {
    utsname host{};
    uname(&host);
    char memory[PinnedFile::kPathBytes];
    TextBuffer path(memory, sizeof memory - 1);
    path.add(directory).add("/").add(host.nodename).add(".nvml.lock");
    const int fd = raw::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, new_file_mode);
    fd_ = fd < 0 ? fd : move_high(fd);
  }
  void forget() noexcept { fd_ = -1; }

  // True if from now on this process, and no other of the host, samples what `name` stands for.
  bool claim(std::string_view name) noexcept {
    if (fd_ < 0) return is_first_of_host();
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(hash >> 2);
    lock.l_len = 1;
    const int error = raw::fcntl(fd_, F_SETLK, raw::address(&lock));
    if (error == 0) return true;
    if (error == -EAGAIN || error == -EACCES) return false;
    return is_first_of_host();
  }

 private:
  static bool is_first_of_host() noexcept {
    const char* local_rank = std::getenv("LOCAL_RANK");
    return local_rank == nullptr || std::strcmp(local_rank, "0") == 0;
  }

  int fd_ = -1;
};

}  // namespace stashtrace::nvml
