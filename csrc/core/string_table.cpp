// Open addressing over atomics. SPDX-License-Identifier: Apache-2.0
#include "core/string_table.h"

#include <cstring>

namespace stashtrace {

namespace {

constexpr std::uint32_t kLongestProbe = 128;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

std::uint64_t hash_of(std::string_view text) noexcept {
  constexpr std::uint64_t kA = 0x9e3779b97f4a7c15, kB = 0xd6e8feb86659fd93, kC = 0xa0761d6478bd642f;
  std::uint64_t state = mix(text.size() ^ kA, kB);
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state = mix(state ^ word ^ kA, kC);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, at, left);
  state = mix(state ^ tail ^ kB, kA);
  return state != 0 ? state : 1;
}

std::uint32_t StringTable::id_of(std::string_view text) noexcept {
  const std::uint64_t hash = hash_of(text);
  for (std::uint32_t probe = 0; probe < kLongestProbe; ++probe) {
    const std::uint32_t slot = static_cast<std::uint32_t>(hash + probe) % kStringSlots;
    std::uint64_t seen = hash_[slot].load(std::memory_order_relaxed);
    if (seen == 0 && hash_[slot].compare_exchange_strong(seen, hash, std::memory_order_relaxed)) return slot + 1;
    if (seen == hash) return slot + 1;
  }
  return kStringSlots + 1 + fresh_.fetch_add(1, std::memory_order_relaxed);
}

bool StringTable::is_written(std::uint32_t id, std::uint32_t generation) const noexcept {
  return id <= kStringSlots && generation_[id - 1].load(std::memory_order_acquire) == generation;
}

void StringTable::set_written(std::uint32_t id, std::uint32_t generation) noexcept {
  if (id <= kStringSlots) generation_[id - 1].store(generation, std::memory_order_release);
}

}  // namespace stashtrace
