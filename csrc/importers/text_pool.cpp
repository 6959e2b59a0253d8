// SPDX-License-Identifier: Apache-2.0
#include "importers/text_pool.h"

#include <cstring>

namespace stashtrace::importers {

namespace {

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15ULL;
  return value ^ (value >> 29);
}

// Eight bytes at a time; only speed depends on its values.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = text.size() * 0xFF51AFD7ED558CCDULL;
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= sizeof hash; left -= sizeof hash, at += sizeof hash) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof word);
    hash = mix(hash ^ word) * 0xC4CEB9FE1A85EC53ULL;
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, at, left);
  return mix(hash ^ rest);
}

}  // namespace

std::int32_t TextPool::number(std::string_view text) {
  const std::uint64_t hash = hash_of(text);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.number < 0) {
      slot = {hash, static_cast<std::int32_t>(texts_.size())};
      texts_.emplace_back(text);
      if (texts_.size() * 2 > slots_.size()) grow();
      return static_cast<std::int32_t>(texts_.size() - 1);
    }
    if (slot.hash == hash && texts_[static_cast<std::size_t>(slot.number)] == text) return slot.number;
  }
}

void TextPool::grow() {
  std::vector<Slot> larger(slots_.size() * 2);
  const std::size_t mask = larger.size() - 1;
  for (const Slot& slot : slots_) {
    if (slot.number < 0) continue;
    std::size_t at = slot.hash & mask;
    while (larger[at].number >= 0) at = (at + 1) & mask;
    larger[at] = slot;
  }
  slots_ = std::move(larger);
}

}  // namespace stashtrace::importers
