// A file of ours, known by its path and checked by its inode. SPDX-License-Identifier: Apache-2.0
//
// No descriptor of it is ever kept, and none is opened in the process's table: create() and open() are called in
// work that runs apart (core/apart.h), and their descriptors are gone when it ends. Callers: RingFile, SegmentWriter.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace stashtrace {

// Moves a descriptor above the numbers that scripts use and that `for fd in 3..1023: close(fd)` reaches, if the limit
// allows. Closes it and returns below zero if the process may have only a few or has none left: they are the program's.
int move_high(int fd) noexcept;

class PinnedFile {
 public:
  static constexpr std::size_t kPathBytes = 3584;

  // Both return a descriptor in the calling thread's table, or minus errno. create() makes the file at path(), which must be
  // new; open() returns -ESTALE if another file is there now. Neither follows a link that somebody put there.
  int create() noexcept;
  int open() noexcept;
  void remove() noexcept;

  char* path() noexcept { return path_; }
  const char* path() const noexcept { return path_; }

 private:
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char path_[kPathBytes] = {};
};

}  // namespace stashtrace
