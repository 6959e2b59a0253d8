// JSON quoting. SPDX-License-Identifier: Apache-2.0
#include "core/text_buffer.h"

namespace stashtrace {

namespace {

// Length of the well-formed UTF-8 sequence at the start, 0 if there is none (overlong, surrogate, cut off).
std::size_t sequence_bytes(std::string_view text) noexcept {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (at(i) & 0xc0) == 0x80; };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    if (!follows(1) || !follows(2)) return 0;
    if (lead == 0xe0 && at(1) < 0xa0) return 0;
    if (lead == 0xed && at(1) > 0x9f) return 0;
    return 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (!follows(1) || !follows(2) || !follows(3)) return 0;
    if (lead == 0xf0 && at(1) < 0x90) return 0;
    if (lead == 0xf4 && at(1) > 0x8f) return 0;
    return 4;
  }
  return 0;
}

constexpr char kHex[] = "0123456789abcdef";

}  // namespace

TextBuffer& TextBuffer::quote(std::string_view text) noexcept {
  add("\"");
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    const std::size_t bytes = sequence_bytes(text);
    if (bytes == 0) {
      const char escape[6] = {'\\', 'u', 'd', 'c', kHex[c >> 4], kHex[c & 15]};
      add({escape, 6});
    } else if (c == '"' || c == '\\') {
      const char escape[2] = {'\\', static_cast<char>(c)};
      add({escape, 2});
    } else if (c < 0x20) {
      const char escape[6] = {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
      add({escape, 6});
    } else {
      add(text.substr(0, bytes));
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return add("\"");
}

}  // namespace stashtrace
