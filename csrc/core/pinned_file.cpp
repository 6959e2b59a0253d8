// Implementation of pinned_file.h. SPDX-License-Identifier: Apache-2.0
#include "core/pinned_file.h"

#include <cerrno>

#include "core/config.h"
#include "core/raw_syscall.h"

namespace stashtrace {

namespace {

constexpr std::uint64_t kFewDescriptors = 256;

// Lowest number for our descriptors; -1 if the process may have so few that we should take none.
int lowest_number() noexcept {
  struct rlimit64_ {
    std::uint64_t soft, hard;
  } limit{1024, 1024};
  raw::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, raw::address(&limit));
  if (limit.soft > 2048) return 1536;
  return limit.soft > kFewDescriptors ? static_cast<int>(limit.soft) - 32 : -1;
}

}  // namespace

int move_high(int fd) noexcept {
  const int lowest = lowest_number();
  const int high = lowest < 0 ? -1 : raw::fcntl(fd, F_DUPFD_CLOEXEC, lowest);
  raw::close(fd);
  return high;
}

int PinnedFile::create() noexcept {
  const int fd = raw::open(path_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, new_file_mode);
  if (fd < 0) return fd;
  raw::call(SYS_fchmod, fd, new_file_mode);  // whatever the umask of the job is
  struct stat info;
  const int error = raw::fstat(fd, &info);
  if (error < 0) {
    raw::close(fd);
    return error;
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  return fd;
}

int PinnedFile::open() noexcept {
  const int fd = raw::open(path_, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return fd;
  struct stat info;
  if (raw::fstat(fd, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) return fd;
  raw::close(fd);
  return -ESTALE;
}

void PinnedFile::remove() noexcept { raw::unlink(path_); }

}  // namespace stashtrace
