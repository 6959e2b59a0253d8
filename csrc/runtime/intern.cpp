// intern(): ids for texts, with their rows written before first use. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "core/string_table.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

constinit StringTable g_strings;

// False if a row found no room; the text is then written again at its next use.
bool write_text(std::uint32_t id, std::string_view text) noexcept {
  schema::StringPart row{};
  row.string_id = id;
  row.length_bytes = static_cast<std::uint16_t>(text.size());
  for (std::size_t at = 0; at < text.size(); at += row.text.size(), ++row.part) {
    const std::string_view piece = text.substr(at, row.text.size());
    row.text = {};
    std::memcpy(row.text.data(), piece.data(), piece.size());
    if (!emit(row)) return false;
  }
  return true;
}

}  // namespace

std::uint32_t intern(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const std::uint32_t state = detail::state_page.word.load(std::memory_order_acquire);
  if (state == detail::kInert) return 0;
  if (state == detail::kForked) detail::revive();
  text = text.substr(0, kLongestTextBytes);
  const std::uint32_t id = g_strings.id_of(text);
  const std::uint32_t generation = runtime().generation();
  if (!g_strings.is_written(id, generation) && write_text(id, text)) g_strings.set_written(id, generation);
  return id;
}

}  // namespace stashtrace
