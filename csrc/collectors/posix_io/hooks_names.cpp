// Hooks of calls on names: stat, unlink, rename, folders. SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include "collectors/posix_io/finish_open.h"
#include "collectors/posix_io/staged.h"
#include "collectors/posix_io/traced.h"
#include "hooks/interpose.h"

using namespace stashtrace::posix_io;
namespace real = stashtrace::real;

namespace {

// fstat shows what the descriptor is: the table takes it from the user's buffer.
template <class Call>
int stat_of_descriptor(int fd, const struct stat* status, Call call) {
  if (!on() || !stashtrace::recording()) return call();
  FdEntry& entry = fd_table.at(fd);
  std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  if ((word & kOurs) != 0) return call();
  const std::uint64_t begin = begin_call(0);
  const int result = call();
  const std::uint64_t end = stashtrace::now_ticks();
  if (result == 0 && (word & kKnown) == 0) word = identify_from(fd, entry, word, status->st_mode, status->st_dev);
  if ((word & kOurs) == 0) record(op::stat, word, -1, begin, end, or_errno(result));
  return result;
}

template <class Call>
int stat_of_path(int dirfd, const char* path, Call call) {
  return on_path(op::stat, dirfd, path, call);
}

// A call that changes what a name stands for: from then on no copy is opened in its place.
template <class Call>
int changing(std::uint16_t op_code, int dirfd, const char* path, Call call) {
  forget_if_staged(dirfd, path);
  return on_path(op_code, dirfd, path, call);
}

}  // namespace

STASHTRACE_HOOK(int, stat, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::stat(path, status); });
}
STASHTRACE_HOOK(int, stat64, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::stat64(path, status); });
}
STASHTRACE_HOOK(int, lstat, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::lstat(path, status); });
}
STASHTRACE_HOOK(int, lstat64, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::lstat64(path, status); });
}
STASHTRACE_HOOK(int, fstat, int fd, struct stat* status) {
  return stat_of_descriptor(fd, status, [&] { return real::fstat(fd, status); });
}
STASHTRACE_HOOK(int, fstat64, int fd, struct stat* status) {
  return stat_of_descriptor(fd, status, [&] { return real::fstat64(fd, status); });
}
STASHTRACE_HOOK(int, fstatat, int dirfd, const char* path, struct stat* status, int flags) {
  return stat_of_path(dirfd, path, [&] { return real::fstatat(dirfd, path, status, flags); });
}
STASHTRACE_HOOK(int, fstatat64, int dirfd, const char* path, struct stat* status, int flags) {
  return stat_of_path(dirfd, path, [&] { return real::fstatat64(dirfd, path, status, flags); });
}
STASHTRACE_HOOK(int, statx, int dirfd, const char* path, int flags, unsigned int mask, struct statx* status) {
  return stat_of_path(dirfd, path, [&] { return real::statx(dirfd, path, flags, mask, status); });
}
// The entry points of programs built for glibc before 2.33.
STASHTRACE_HOOK(int, __xstat, int version, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::__xstat(version, path, status); });
}
STASHTRACE_HOOK(int, __xstat64, int version, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::__xstat64(version, path, status); });
}
STASHTRACE_HOOK(int, __lxstat, int version, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::__lxstat(version, path, status); });
}
STASHTRACE_HOOK(int, __lxstat64, int version, const char* path, struct stat* status) {
  return stat_of_path(AT_FDCWD, path, [&] { return real::__lxstat64(version, path, status); });
}
STASHTRACE_HOOK(int, __fxstat, int version, int fd, struct stat* status) {
  return stat_of_descriptor(fd, status, [&] { return real::__fxstat(version, fd, status); });
}
STASHTRACE_HOOK(int, __fxstat64, int version, int fd, struct stat* status) {
  return stat_of_descriptor(fd, status, [&] { return real::__fxstat64(version, fd, status); });
}
STASHTRACE_HOOK(int, __fxstatat, int version, int dirfd, const char* path, struct stat* status, int flags) {
  return stat_of_path(dirfd, path, [&] { return real::__fxstatat(version, dirfd, path, status, flags); });
}
STASHTRACE_HOOK(int, __fxstatat64, int version, int dirfd, const char* path, struct stat* status, int flags) {
  return stat_of_path(dirfd, path, [&] { return real::__fxstatat64(version, dirfd, path, status, flags); });
}

STASHTRACE_HOOK(int, unlink, const char* path) {
  return changing(op::unlink, AT_FDCWD, path, [&] { return real::unlink(path); });
}
STASHTRACE_HOOK(int, unlinkat, int dirfd, const char* path, int flags) {
  return changing(op::unlink, dirfd, path, [&] { return real::unlinkat(dirfd, path, flags); });
}
STASHTRACE_HOOK(int, remove, const char* path) {
  return changing(op::unlink, AT_FDCWD, path, [&] { return real::remove(path); });
}
STASHTRACE_HOOK(int, rmdir, const char* path) {
  return changing(op::unlink, AT_FDCWD, path, [&] { return real::rmdir(path); });
}
// The row names the old path.
STASHTRACE_HOOK(int, rename, const char* from, const char* to) {
  forget_if_staged(AT_FDCWD, to);
  return changing(op::rename, AT_FDCWD, from, [&] { return real::rename(from, to); });
}
STASHTRACE_HOOK(int, renameat, int from_dirfd, const char* from, int to_dirfd, const char* to) {
  forget_if_staged(to_dirfd, to);
  return changing(op::rename, from_dirfd, from, [&] { return real::renameat(from_dirfd, from, to_dirfd, to); });
}
STASHTRACE_HOOK(int, renameat2, int from_dirfd, const char* from, int to_dirfd, const char* to, unsigned int flags) {
  forget_if_staged(to_dirfd, to);
  return changing(op::rename, from_dirfd, from, [&] { return real::renameat2(from_dirfd, from, to_dirfd, to, flags); });
}
STASHTRACE_HOOK(int, mkdir, const char* path, mode_t mode) {
  return on_path(op::mkdir, AT_FDCWD, path, [&] { return real::mkdir(path, mode); });
}
STASHTRACE_HOOK(int, mkdirat, int dirfd, const char* path, mode_t mode) {
  return on_path(op::mkdir, dirfd, path, [&] { return real::mkdirat(dirfd, path, mode); });
}
STASHTRACE_HOOK(int, truncate, const char* path, std::int64_t length) {
  return changing(op::truncate, AT_FDCWD, path, [&] { return real::truncate(path, length); });
}
STASHTRACE_HOOK(int, truncate64, const char* path, std::int64_t length) {
  return changing(op::truncate, AT_FDCWD, path, [&] { return real::truncate64(path, length); });
}

STASHTRACE_HOOK(DIR*, opendir, const char* path) {
  if (!on()) return real::opendir(path);
  if (stashtrace::paused()) {
    DIR* folder = real::opendir(path);
    if (folder != nullptr) fd_table.clear(dirfd(folder));
    return folder;
  }
  const std::uint64_t begin = begin_call(0);
  DIR* folder = real::opendir(path);
  finish_opendir(folder == nullptr ? -1 : dirfd(folder), path, begin, stashtrace::now_ticks());
  return folder;
}
STASHTRACE_HOOK(DIR*, fdopendir, int fd) {
  if (!on() || !stashtrace::recording()) return real::fdopendir(fd);
  const std::uint64_t word = word_for_use(fd, fd_table.at(fd));
  if ((word & kOurs) != 0) return real::fdopendir(fd);
  const std::uint64_t begin = begin_call(0);
  DIR* folder = real::fdopendir(fd);
  record(op::readdir, word, -1, begin, stashtrace::now_ticks(), folder != nullptr ? 0 : -errno);
  return folder;
}

namespace {

// NULL with an unchanged errno means the end of the folder, not a failure.
template <class Call>
dirent* reading(DIR* folder, Call call) {
  if (!on() || !stashtrace::recording()) return call();
  const std::uint64_t word = fd_table.at(dirfd(folder)).word.load(std::memory_order_relaxed);
  if ((word & kOurs) != 0) return call();
  const int before = errno;
  const std::uint64_t begin = begin_call(0);
  dirent* entry = call();
  const std::uint64_t end = stashtrace::now_ticks();
  record(op::readdir, word, -1, begin, end, entry != nullptr || errno == before ? 0 : -errno);
  return entry;
}

}  // namespace

STASHTRACE_HOOK(dirent*, readdir, DIR* folder) {
  return reading(folder, [&] { return real::readdir(folder); });
}
STASHTRACE_HOOK(dirent*, readdir64, DIR* folder) {
  return reading(folder, [&] { return real::readdir64(folder); });
}
STASHTRACE_HOOK(int, closedir, DIR* folder) {
  if (!on() || folder == nullptr) return real::closedir(folder);
  const std::uint64_t word = fd_table.clear(dirfd(folder));
  if (stashtrace::paused()) return real::closedir(folder);
  const std::uint64_t begin = begin_call(0);
  const int result = real::closedir(folder);
  const std::uint64_t end = stashtrace::now_ticks();
  if ((word & kOurs) == 0 && stashtrace::recording()) record(op::close, word, -1, begin, end, or_errno(result));
  return result;
}
STASHTRACE_HOOK(int, scandir, const char* path, dirent*** names, int (*filter)(const dirent*),
                int (*order)(const dirent**, const dirent**)) {
  return on_path(op::readdir, AT_FDCWD, path, [&] { return real::scandir(path, names, filter, order); });
}
STASHTRACE_HOOK(int, scandir64, const char* path, dirent*** names, int (*filter)(const dirent*),
                int (*order)(const dirent**, const dirent**)) {
  return on_path(op::readdir, AT_FDCWD, path, [&] { return real::scandir64(path, names, filter, order); });
}
