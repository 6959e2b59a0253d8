// A growing byte buffer that writes protobuf wire format. SPDX-License-Identifier: Apache-2.0
//
// Used by perfetto_encoder.cpp only. Two ways in: the checked calls (varint_field, text_field,
// nested messages) for what is written once per track or text, and reserve() + the free functions on a raw
// pointer for the two packets of every slice. No I/O, no knowledge of Perfetto.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace stashtrace::protobuf {

inline constexpr std::uint8_t kWireVarint = 0;
inline constexpr std::uint8_t kWireFixed64 = 1;
inline constexpr std::uint8_t kWireBytes = 2;

constexpr std::uint32_t tag(std::uint32_t field, std::uint8_t wire) { return field << 3 | wire; }

// Longest varint of a 64-bit value.
inline constexpr std::size_t kMaxVarintBytes = 10;

// Puts four groups of seven bits each into one byte each.
constexpr std::uint32_t spread(std::uint32_t x) {
  return (x & 0x7f) | (x & 0x3f80) << 1 | (x & 0x1fc000) << 2 | (x & 0xfe00000) << 3;
}

// Writes up to 10 bytes and returns the position after them; 8 bytes must be writable. Values below 2^28 (nearly all)
// and below 2^56 (the rest but negative ones) take no data-dependent branch: lengths of time deltas and arguments are
// random, and a misprediction costs more than the whole computation.
inline std::uint8_t* write_varint(std::uint8_t* p, std::uint64_t value) {
  static_assert(std::endian::native == std::endian::little, "the packed stores below assume little endian");
  if (value < (std::uint64_t{1} << 28)) [[likely]] {
    const auto x = static_cast<std::uint32_t>(value);
    const std::uint32_t length = (static_cast<std::uint32_t>(std::bit_width(x | 1)) + 6) / 7;
    const std::uint32_t bytes = spread(x) | 0x00808080u >> (8 * (4 - length));
    std::memcpy(p, &bytes, sizeof bytes);
    return p + length;
  }
  if (value < (std::uint64_t{1} << 56)) {
    const std::uint32_t length = (static_cast<std::uint32_t>(std::bit_width(value)) + 6) / 7;
    const std::uint64_t groups = std::uint64_t{spread(static_cast<std::uint32_t>(value) & 0xfffffff)} |
                                 std::uint64_t{spread(static_cast<std::uint32_t>(value >> 28))} << 32;
    const std::uint64_t bytes = groups | 0x0080808080808080u >> (8 * (8 - length));
    std::memcpy(p, &bytes, sizeof bytes);
    return p + length;
  }
  while (value >= 0x80) {
    *p++ = static_cast<std::uint8_t>(value) | 0x80;
    value >>= 7;
  }
  *p++ = static_cast<std::uint8_t>(value);
  return p;
}

inline std::uint8_t* write_fixed64(std::uint8_t* p, std::uint64_t value) {
  std::memcpy(p, &value, sizeof value);
  return p + sizeof value;
}

class Buffer {
 public:
  explicit Buffer(std::size_t capacity) : bytes_(capacity) {}

  [[nodiscard]] const std::uint8_t* data() const { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  void clear() { size_ = 0; }

  // Returns a pointer to at least `count` writable bytes; commit() says how many were used.
  std::uint8_t* reserve(std::size_t count) {
    if (size_ + count > bytes_.size()) grow(count);
    return bytes_.data() + size_;
  }
  void commit(const std::uint8_t* end) { size_ = static_cast<std::size_t>(end - bytes_.data()); }

  void varint_field(std::uint32_t field, std::uint64_t value);
  void text_field(std::uint32_t field, std::string_view text);

  // Nested message: one length byte is kept free, end_message() widens it when the body needs more.
  [[nodiscard]] std::size_t begin_message(std::uint32_t field);
  void end_message(std::size_t start);

 private:
  void grow(std::size_t count);

  std::vector<std::uint8_t> bytes_;
  std::size_t size_ = 0;
};

// Sets the length byte in front of [body, end); moves the body when one byte is not enough. Returns the new end.
// The caller has reserved 4 spare bytes behind `end`.
std::uint8_t* close_message(std::uint8_t* body, std::uint8_t* end);

}  // namespace stashtrace::protobuf
