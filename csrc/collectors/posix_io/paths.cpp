// SPDX-License-Identifier: Apache-2.0
#include "collectors/posix_io/paths.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "collectors/posix_io/staged.h"
#include "core/raw_syscall.h"
#include "core/scrubbing.h"
#include "core/string_table.h"
#include "core/user_memory.h"

namespace stashtrace::posix_io {
namespace {

struct Folder {
  char text[kMaxPathBytes];
  std::size_t length = 0;
};
constinit Folder excluded[4] = {};
constinit std::size_t excluded_count = 0;

// Text built in memory of the caller's; what does not fit is cut.
class Text {
 public:
  Text(char* memory, std::size_t bytes) noexcept : text_(memory), capacity_(bytes) {}
  void add(std::string_view piece) noexcept {
    const std::size_t bytes = std::min(piece.size(), capacity_ - length_);
    std::memcpy(text_ + length_, piece.data(), bytes);
    length_ += bytes;
  }
  void add_number(unsigned value) noexcept {
    char digits[10];
    std::size_t count = 0;
    do digits[sizeof digits - ++count] = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
    add({digits + sizeof digits - count, count});
  }
  void add_hexadecimal(unsigned value) noexcept {
    constexpr char kDigits[] = "0123456789abcdef";
    bool leading = true;
    for (int shift = 12; shift >= 0; shift -= 4) {
      const unsigned digit = (value >> shift) & 15;
      if (digit == 0 && leading && shift != 0) continue;
      leading = false;
      add({kDigits + digit, 1});
    }
  }
  std::string_view view() const noexcept { return {text_, length_}; }

 private:
  char* text_;
  std::size_t capacity_;
  std::size_t length_ = 0;
};

[[gnu::noinline]] std::uint32_t scrubbed_id(std::string_view path) noexcept {
  PathBuffer buffer;
  if (buffer.text() == nullptr) return 0;
  TextBuffer kept(buffer.text(), PathBuffer::kBytes);
  add_scrubbed_urls(path, kept);
  return intern(kept.text());
}

// An address, which may hold a signature, is also a relative name, and a part of the names in a local cache.
PathName named(std::string_view path) noexcept {
  for (std::size_t i = 0; i < excluded_count; ++i) {
    const std::string_view folder(excluded[i].text, excluded[i].length);
    if (path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/')) return {0, true};
  }
  return {may_hold_url(path) ? scrubbed_id(path) : intern(path), false};
}

// Target of /proc/self/fd/N.
std::size_t read_descriptor_link(int fd, char* target, std::size_t size) noexcept {
  char memory[32];
  Text link(memory, sizeof memory);
  link.add("/proc/self/fd/");
  link.add_number(static_cast<unsigned>(fd));
  link.add({"\0", 1});
  const long length = raw::readlink(link.view().data(), target, size);
  return length > 0 ? static_cast<std::size_t>(length) : 0;
}

// Returns the length of the text in buffer, 0 if the folder is not known.
std::size_t join(int dirfd, std::string_view given, char* buffer) noexcept {
  if (buffer == nullptr) return 0;
  std::size_t length = 0;
  if (dirfd == AT_FDCWD) {
    const long bytes = raw::call(SYS_getcwd, raw::address(buffer), static_cast<long>(kMaxPathBytes));
    length = bytes > 1 ? static_cast<std::size_t>(bytes) - 1 : 0;  // counts the final zero
  } else {
    length = read_descriptor_link(dirfd, buffer, kMaxPathBytes);
  }
  if (length == 0) return 0;
  while (given.starts_with("./")) given.remove_prefix(2);
  if (given.empty() || given == ".") return length;
  if (buffer[length - 1] != '/' && length < kMaxPathBytes) buffer[length++] = '/';
  const std::size_t bytes = std::min(given.size(), kMaxPathBytes - length);
  std::memcpy(buffer + length, given.data(), bytes);
  return length + bytes;
}

PathName relative_name(int dirfd, std::string_view given) noexcept {
  PathBuffer whole;
  const std::size_t length = join(dirfd, given, whole.text());
  return named(length != 0 ? std::string_view(whole.text(), length) : given);
}

}  // namespace

bool make_absolute(int dirfd, std::string_view path, AbsolutePath& out) noexcept {
  out.length_ = join(dirfd, path, out.buffer_.text());
  return out.length_ != 0;
}

PathName path_name(int dirfd, const char* path, bool was_read) noexcept {
  const std::size_t length = readable_length(path, kMaxPathBytes, was_read);
  if (length == kUnreadable) return {};
  const std::string_view given(path, length);
  return given.starts_with('/') ? named(given) : relative_name(dirfd, given);
}

PathName descriptor_name(int fd) noexcept {
  PathBuffer buffer;
  const char* target = buffer.text();
  const std::size_t length = target != nullptr ? read_descriptor_link(fd, buffer.text(), PathBuffer::kBytes) : 0;
  if (length == 0 || target[0] != '/') return {};  // "pipe:[17]", "anon_inode:[eventfd]": not a name worth a string
  const std::string_view original = staged_original({target, length});
  if (original.empty()) return named({target, length});
  PathName name = named(original);
  name.staged = true;
  return name;
}

std::uint32_t address_id(const sockaddr* address, unsigned length_bytes) noexcept {
  if (address == nullptr || length_bytes < sizeof(sa_family_t)) return 0;
  PathBuffer buffer;
  if (buffer.text() == nullptr) return 0;
  Text text(buffer.text(), 160);
  if (address->sa_family == AF_INET && length_bytes >= sizeof(sockaddr_in)) {
    const auto* ip = reinterpret_cast<const sockaddr_in*>(address);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&ip->sin_addr);
    for (int i = 0; i < 4; ++i) {
      if (i != 0) text.add(".");
      text.add_number(bytes[i]);
    }
    text.add(":");
    text.add_number(static_cast<unsigned>(__builtin_bswap16(ip->sin_port)));
  } else if (address->sa_family == AF_INET6 && length_bytes >= sizeof(sockaddr_in6)) {
    const auto* ip = reinterpret_cast<const sockaddr_in6*>(address);
    text.add("[");
    for (int i = 0; i < 8; ++i) {
      if (i != 0) text.add(":");
      text.add_hexadecimal(ip->sin6_addr.s6_addr[2 * i] * 256U + ip->sin6_addr.s6_addr[2 * i + 1]);
    }
    text.add("]:");
    text.add_number(static_cast<unsigned>(__builtin_bswap16(ip->sin6_port)));
  } else if (address->sa_family == AF_UNIX) {
    const auto* local = reinterpret_cast<const sockaddr_un*>(address);
    const std::size_t most = length_bytes - offsetof(sockaddr_un, sun_path);
    if (length_bytes <= offsetof(sockaddr_un, sun_path)) return 0;
    text.add("unix:");
    if (local->sun_path[0] == '\0') {  // abstract name: a leading zero, no final one
      text.add("@");
      text.add({local->sun_path + 1, most - 1});
    } else {
      text.add({local->sun_path, strnlen(local->sun_path, most)});
    }
  } else {
    return 0;
  }
  return intern(text.view());
}

// No address is longer than sockaddr_storage: the kernel refuses such a length before it looks at the address.
std::uint32_t given_address_id(const sockaddr* address, unsigned length_bytes, bool was_read) noexcept {
  if (address == nullptr || length_bytes > sizeof(sockaddr_storage)) return 0;
  if (!was_read && !all_readable(address, length_bytes)) return 0;
  return address_id(address, length_bytes);
}

void exclude_folder(std::string_view folder) noexcept {
  while (folder.size() > 1 && folder.ends_with('/')) folder.remove_suffix(1);
  if (folder.size() < 2 || folder.size() > kMaxPathBytes || excluded_count == std::size(excluded)) return;
  Folder& slot = excluded[excluded_count];
  std::memcpy(slot.text, folder.data(), folder.size());
  slot.length = folder.size();
  ++excluded_count;
}

}  // namespace stashtrace::posix_io
