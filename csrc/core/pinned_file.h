// A file of ours that stays reachable in a process that closes descriptors it does not know.
// SPDX-License-Identifier: Apache-2.0
//
// The descriptor lives at a high number; each use checks that it still is our file (programs close 3..1023, or
// reuse a number) and opens it again by path if not. Callers: RingFile, SegmentWriter. One thread at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace stashtrace {

// Moves a descriptor above what scripts use and what `for fd in 3..1023: close(fd)` reaches, where the limit lets us.
int move_high(int fd) noexcept;

class PinnedFile {
 public:
  static constexpr std::size_t kPathBytes = 3584;

  // Creates the file at path() with O_EXCL; 0 or minus errno.
  int create(int flags) noexcept;
  // The descriptor, verified; minus errno if the file cannot be reached any more.
  int fd() noexcept;
  void close() noexcept;         // only if the number is still ours
  void forget() noexcept { fd_ = -1; }
  bool is_open() const noexcept { return fd_ >= 0; }

  char* path() noexcept { return path_; }
  const char* path() const noexcept { return path_; }

 private:
  int adopt(int fd) noexcept;
  bool is_ours(int fd) const noexcept;

  int fd_ = -1;
  int flags_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char path_[kPathBytes] = {};
};

}  // namespace stashtrace
