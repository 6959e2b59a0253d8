// Names of files and peers as string ids. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that take a path, and fd_table.cpp. Called after the real function returned; a pointer of the job that the
// function may not have read is read with care (core/user_memory.h). Raw system calls only; no allocation; errno untouched.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/path_buffer.h"

namespace stashtrace::posix_io {

constexpr std::size_t kMaxPathBytes = PathBuffer::kBytes;

// A path that was relative, made absolute by the folder of dirfd or the current one. Not resolved further.
class AbsolutePath {
 public:
  std::string_view view() noexcept { return {buffer_.text(), length_}; }

 private:
  friend bool make_absolute(int dirfd, std::string_view path, AbsolutePath& out) noexcept;
  PathBuffer buffer_;
  std::size_t length_ = 0;
};
bool make_absolute(int dirfd, std::string_view path, AbsolutePath& out) noexcept;  // false: unknown folder

struct PathName {
  std::uint32_t id = 0;  // string id, 0 if unknown
  bool ours = false;     // below a folder of the tracer
  bool staged = false;   // what is open is a copy of it
};

// The path that was passed, made absolute by the folder of dirfd or the current one, not resolved further. `was_read`:
// the call has read it, so the pointer is good. No name if it cannot be read.
PathName path_name(int dirfd, const char* path, bool was_read) noexcept;
// What /proc/self/fd says of an open descriptor; for a copy, the file that it stands for.
PathName descriptor_name(int fd) noexcept;
// "10.0.0.1:80", "[::1]:80", "unix:/path"; 0 if it has none.
std::uint32_t address_id(const sockaddr* address, unsigned length_bytes) noexcept;
// The same for an address that a call was given; `was_read` as above.
std::uint32_t given_address_id(const sockaddr* address, unsigned length_bytes, bool was_read) noexcept;

// Paths below these folders are the tracer's own; called once at the start. At most 4.
void exclude_folder(std::string_view folder) noexcept;

}  // namespace stashtrace::posix_io
