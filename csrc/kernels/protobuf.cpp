// Checked half of the protobuf writer. SPDX-License-Identifier: Apache-2.0
//
// Called for descriptors and interned texts only, so clarity wins over speed here. May throw std::bad_alloc.
#include "kernels/protobuf.h"

namespace stashtrace::protobuf {

void Buffer::grow(std::size_t count) { bytes_.resize((size_ + count) * 2); }

void Buffer::varint_field(std::uint32_t field, std::uint64_t value) {
  std::uint8_t* p = reserve(2 * kMaxVarintBytes);
  p = write_varint(p, tag(field, kWireVarint));
  commit(write_varint(p, value));
}

void Buffer::text_field(std::uint32_t field, std::string_view text) {
  std::uint8_t* p = reserve(2 * kMaxVarintBytes + text.size());
  p = write_varint(p, tag(field, kWireBytes));
  p = write_varint(p, text.size());
  if (!text.empty()) std::memcpy(p, text.data(), text.size());
  commit(p + text.size());
}

std::size_t Buffer::begin_message(std::uint32_t field) {
  std::uint8_t* p = reserve(kMaxVarintBytes + 1);
  p = write_varint(p, tag(field, kWireBytes));
  commit(p + 1);
  return size_;
}

void Buffer::end_message(std::size_t start) {
  reserve(4);
  commit(close_message(bytes_.data() + start, bytes_.data() + size_));
}

std::uint8_t* close_message(std::uint8_t* body, std::uint8_t* end) {
  const auto length = static_cast<std::size_t>(end - body);
  if (length < 0x80) {
    body[-1] = static_cast<std::uint8_t>(length);
    return end;
  }
  const std::size_t extra = length < (std::size_t{1} << 14)   ? 1
                            : length < (std::size_t{1} << 21) ? 2
                            : length < (std::size_t{1} << 28) ? 3
                                                              : 4;
  std::memmove(body + extra, body, length);
  std::uint8_t* p = body - 1;
  for (std::size_t rest = length; p < body - 1 + extra; rest >>= 7) *p++ = static_cast<std::uint8_t>(rest) | 0x80;
  *p = static_cast<std::uint8_t>(length >> (7 * extra));
  return end + extra;
}

}  // namespace stashtrace::protobuf
