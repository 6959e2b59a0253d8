// Appends text and JSON to memory of fixed size. SPDX-License-Identifier: Apache-2.0
//
// Callers: log lines, file names, the header of a .stash file. What does not fit is cut and remembered in full().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stashtrace {

class TextBuffer {
 public:
  TextBuffer(char* memory, std::size_t bytes) noexcept : memory_(memory), capacity_(bytes) {}

  TextBuffer& add(std::string_view text) noexcept {
    const std::size_t room = capacity_ - used_;
    const std::size_t bytes = text.size() <= room ? text.size() : room;
    std::memcpy(memory_ + used_, text.data(), bytes);
    used_ += bytes;
    full_ = full_ || bytes < text.size();
    return *this;
  }
  TextBuffer& add(std::int64_t value) noexcept {
    if (value < 0) add("-");
    return add_unsigned(value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value));
  }
  TextBuffer& add_unsigned(std::uint64_t value) noexcept {
    char digits[20];
    std::size_t at = sizeof digits;
    do {
      digits[--at] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    return add({digits + at, sizeof digits - at});
  }
  // A JSON string. Bytes that are not UTF-8 become \udcXX, as os.fsdecode() does, so that no byte is lost.
  TextBuffer& quote(std::string_view text) noexcept;

  std::string_view text() const noexcept { return {memory_, used_}; }
  const char* c_str() noexcept {
    memory_[used_ < capacity_ ? used_ : capacity_ - 1] = '\0';
    return memory_;
  }
  bool full() const noexcept { return full_; }
  std::size_t room() const noexcept { return capacity_ - used_; }

 private:
  char* memory_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  bool full_ = false;
};

}  // namespace stashtrace
