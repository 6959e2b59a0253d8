// Reading small files of /proc without libc. SPDX-License-Identifier: Apache-2.0
//
// Caller: proc.cpp, on the file sampler's thread. Raw system calls, integers only, no allocation; a file that is missing or
// cut short gives empty text or -1, never an error.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/raw_syscall.h"

namespace stashtrace::proc {

template <std::size_t kBytes>
class SmallFile {
 public:
  // The text, empty if the file cannot be read; valid until the next read.
  std::string_view read(const char* path) noexcept {
    const int fd = raw::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return {};
    std::size_t length = 0;
    while (length < kBytes) {
      const long bytes = raw::read(fd, text_ + length, kBytes - length);
      if (bytes <= 0) break;
      length += static_cast<std::size_t>(bytes);
    }
    raw::close(fd);
    return {text_, length};
  }

 private:
  char text_[kBytes] = {};
};

// Takes the next decimal number out of text, skipping what is before it; -1 if there is none on this line.
inline std::int64_t take_number(std::string_view& text) noexcept {
  std::size_t i = 0;
  while (i < text.size() && text[i] != '\n' && (text[i] < '0' || text[i] > '9')) ++i;
  if (i == text.size() || text[i] == '\n') return -1;
  std::uint64_t value = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
    value = value * 10 + static_cast<unsigned>(text[i] - '0');
  text.remove_prefix(i);
  return static_cast<std::int64_t>(value);
}

inline std::string_view take_line(std::string_view& text) noexcept {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

inline std::string_view take_word(std::string_view& text) noexcept {
  while (text.starts_with(' ')) text.remove_prefix(1);
  const std::size_t end = text.find(' ');
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(word.size());
  return word;
}

// The number after `label`, which begins a line; -1 if it is not there.
inline std::int64_t number_after(std::string_view text, std::string_view label) noexcept {
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (!line.starts_with(label)) continue;
    line.remove_prefix(label.size());
    return take_number(line);
  }
  return -1;
}

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234": the total of one line, in us; -1 if it is not there.
inline std::int64_t pressure_total_us(std::string_view text, std::string_view share) noexcept {
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (!line.starts_with(share)) continue;
    const std::size_t at = line.find("total=");
    if (at == std::string_view::npos) return -1;
    line.remove_prefix(at);
    return take_number(line);
  }
  return -1;
}

// /proc/net/snmp: two lines per protocol, names and then values; the value of one name.
inline std::int64_t snmp_value(std::string_view text, std::string_view protocol, std::string_view name) noexcept {
  while (!text.empty()) {
    std::string_view names = take_line(text);
    if (!names.starts_with(protocol)) continue;
    std::string_view values = take_line(text);
    take_word(names);
    take_word(values);
    while (!names.empty() && !values.empty()) {
      const std::string_view found = take_word(names);
      std::string_view value = take_word(values);
      if (found == name) return take_number(value);
    }
    return -1;
  }
  return -1;
}

}  // namespace stashtrace::proc
