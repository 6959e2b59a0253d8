// Files of which a copy on a faster disk is opened in their place. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that open for reading, before the real function; those that change a file. The list is a file that the
// launcher made for this run (STASHTRACE_STAGED, stashtrace/record/staged_files.py): a hash table and its texts,
// mapped. Without one a look-up is one load. No allocation, no lock; errno untouched.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stashtrace::posix_io {

struct StagedList;
extern constinit std::atomic<const StagedList*> staged_list;

// Maps the list; false if it is missing or not such a list.
bool open_staged_list(const char* path) noexcept;

struct StagedFile {
  const char* copy = nullptr;
  std::int64_t size_bytes = 0;
};
// Returns the copy of a file; none if it has no copy or has changed since it was copied.
StagedFile staged_file(const StagedList& list, int dirfd, const char* path) noexcept;
// Returns the file that a copy stands for; empty if it is not a copy.
std::string_view staged_original(std::string_view copy) noexcept;
// True if an open descriptor is a file of this size, so not a copy that was cut off.
bool has_size(int fd, std::int64_t size_bytes) noexcept;
// A file is written, renamed or removed: from now on all processes of this host open the file itself.
void forget_staged(const StagedList& list, int dirfd, const char* path) noexcept;

inline void forget_if_staged(int dirfd, const char* path) noexcept {
  const StagedList* list = staged_list.load(std::memory_order_acquire);
  if (list != nullptr) [[unlikely]]
    forget_staged(*list, dirfd, path);
}

// What an open is for, as far as a copy may stand in.
enum class Purpose : std::uint8_t { reading, writing, other };

constexpr Purpose purpose_of(int flags) noexcept {
  if ((flags & O_PATH) != 0) return Purpose::other;
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0) return Purpose::writing;
  // O_NOFOLLOW asks what the name itself is; O_DIRECT is aligned for the disk of the file.
  constexpr int kElsewhere = O_CREAT | O_DIRECTORY | O_NOFOLLOW | O_DIRECT;
  return (flags & kElsewhere) != 0 ? Purpose::other : Purpose::reading;
}

// Of fopen.
inline Purpose purpose_of(const char* mode) noexcept {
  if (mode == nullptr) return Purpose::other;
  if (mode[0] != 'r') return Purpose::writing;
  constexpr std::size_t kMost = 7;  // libc reads as far, so this reads no other memory than libc does
  return std::memchr(mode, '+', ::strnlen(mode, kMost)) == nullptr ? Purpose::reading : Purpose::writing;
}

// Opens the copy if there is a whole one, and says so in `staged`; else the file itself. call(dirfd, path)
// opens, fd_of(result) is -1 for a failure. Not noexcept: a cancelled thread leaves through here.
template <class Call, class Descriptor, class Close>
auto open_staged(int dirfd, const char* path, Purpose purpose, bool& staged, Call call, Descriptor fd_of, Close close) {
  const StagedList* list = staged_list.load(std::memory_order_acquire);
  if (list == nullptr || purpose == Purpose::other) [[likely]]
    return call(dirfd, path);
  if (purpose == Purpose::writing) {
    forget_staged(*list, dirfd, path);
    return call(dirfd, path);
  }
  const StagedFile file = staged_file(*list, dirfd, path);
  if (file.copy == nullptr) return call(dirfd, path);
  const int before = errno;
  auto opened = call(AT_FDCWD, file.copy);
  const int fd = fd_of(opened);
  if (fd >= 0) {
    if (has_size(fd, file.size_bytes)) {
      staged = true;
      return opened;
    }
    close(opened);
  }
  errno = before;
  return call(dirfd, path);
}

}  // namespace stashtrace::posix_io
