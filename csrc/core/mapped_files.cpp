// Implementation of mapped_files.h. SPDX-License-Identifier: Apache-2.0
#include "core/mapped_files.h"

#include <cstddef>
#include <cstring>

#include "core/apart.h"
#include "core/raw_syscall.h"

namespace stashtrace {

namespace {

constexpr std::size_t kBufferBytes = 16 * 1024;  // longer than any line: a path has 4 KiB at most
constexpr int kMostMappings = 20'000;

// Takes a hexadecimal number from the text.
std::uintptr_t take_number(std::string_view& text) noexcept {
  std::uintptr_t value = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text.front();
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) break;
    value = value << 4 | static_cast<std::uintptr_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

// "7f00-7f80 r-xp 00000000 08:01 1234   /usr/lib/libc.so.6"; false for what is no file's and no ring's.
bool read_line(std::string_view line, MappedFile& out) noexcept {
  const std::size_t slash = line.find('/');
  if (slash != line.npos) out.path = line.substr(slash);
  else if (line.ends_with(kUringMapping)) out.path = kUringMapping;
  else return false;
  out.begin = take_number(line);
  if (!line.starts_with('-')) return false;
  line.remove_prefix(1);
  out.end = take_number(line);
  if (line.size() < 4) return false;
  out.readable = line[1] == 'r';
  out.executable = line[3] == 'x';
  return true;
}

bool visit_here(bool (*visit)(void* self, const MappedFile& mapping), void* self) noexcept {
  const int fd = raw::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[kBufferBytes];
  std::size_t used = 0;
  int count = 0;
  bool more = true, whole = false;
  while (more) {
    const long got = raw::read(fd, text + used, sizeof text - used);
    if (got <= 0) {
      whole = got == 0;
      break;
    }
    used += static_cast<std::size_t>(got);
    std::size_t begin = 0;
    for (;;) {
      const void* newline = std::memchr(text + begin, '\n', used - begin);
      if (newline == nullptr) break;
      const auto end = static_cast<std::size_t>(static_cast<const char*>(newline) - text);
      MappedFile mapping{};
      if (read_line({text + begin, end - begin}, mapping) && !visit(self, mapping)) {
        more = false;
        whole = true;
        break;
      }
      begin = end + 1;
      if (++count == kMostMappings) more = false;
    }
    std::memmove(text, text + begin, used - begin);
    used -= begin;
    if (used == sizeof text) break;
  }
  raw::close(fd);
  return whole;
}

}  // namespace

bool visit_mapped_files(bool (*visit)(void* self, const MappedFile& mapping), void* self) noexcept {
  const raw::SignalsBlocked quiet;
  bool whole = false;
  return apart([&]() noexcept { whole = visit_here(visit, self); }) == 0 && whole;
}

}  // namespace stashtrace
