// Finds the next mark of JSON text, 16 bytes at a time. SPDX-License-Identifier: Apache-2.0
//
// Called by json_text. The functions ending in _by_byte are the portable form: the others end with them, and are tested
// against them. Reads nothing at or behind `end`.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

namespace stashtrace::importers {

using Position = const char*;

inline bool is_string_mark(char c) { return c == '"' || c == '\\'; }
// Both kinds of bracket differ in one bit.
inline bool is_nesting_mark(char c) { return c == '"' || (c | 0x20) == '{' || (c | 0x20) == '}'; }

inline Position find_string_mark_by_byte(Position at, Position end) {
  while (at < end && !is_string_mark(*at)) ++at;
  return at;
}
inline Position find_nesting_mark_by_byte(Position at, Position end) {
  while (at < end && !is_nesting_mark(*at)) ++at;
  return at;
}

#if defined(__SSE2__) || defined(__ARM_NEON)
namespace marks {

constexpr std::ptrdiff_t kBlock = 16;

#if defined(__SSE2__)
using Block = __m128i;
inline Block load(Position at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
inline Block equal(Block block, char c) { return _mm_cmpeq_epi8(block, _mm_set1_epi8(c)); }
inline Block either(Block a, Block b) { return _mm_or_si128(a, b); }
inline Block with_bits(Block block, char bits) { return _mm_or_si128(block, _mm_set1_epi8(bits)); }
inline std::uint64_t mask(Block hits) { return static_cast<unsigned>(_mm_movemask_epi8(hits)); }
constexpr int kMaskBits = 1;  // of one byte of a block
#else
using Block = uint8x16_t;
inline Block load(Position at) { return vld1q_u8(reinterpret_cast<const std::uint8_t*>(at)); }
inline Block equal(Block block, char c) { return vceqq_u8(block, vdupq_n_u8(static_cast<std::uint8_t>(c))); }
inline Block either(Block a, Block b) { return vorrq_u8(a, b); }
inline Block with_bits(Block block, char bits) { return vorrq_u8(block, vdupq_n_u8(static_cast<std::uint8_t>(bits))); }
inline std::uint64_t mask(Block hits) {
  return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(hits), 4)), 0);
}
constexpr int kMaskBits = 4;
#endif

template <class Hits>
Position find(Position& at, Position end, Hits hits) {
  for (; end - at >= kBlock; at += kBlock)
    if (const std::uint64_t found = mask(hits(load(at)))) return at + std::countr_zero(found) / kMaskBits;
  return nullptr;
}

}  // namespace marks
#endif

// Next quote or backslash, `end` if there is none.
inline Position find_string_mark(Position at, Position end) {
#if defined(__SSE2__) || defined(__ARM_NEON)
  using namespace marks;
  const auto hits = [](Block block) { return either(equal(block, '"'), equal(block, '\\')); };
  if (const Position found = find(at, end, hits)) return found;
#endif
  return find_string_mark_by_byte(at, end);
}

// Next quote or bracket of either kind, `end` if there is none.
inline Position find_nesting_mark(Position at, Position end) {
#if defined(__SSE2__) || defined(__ARM_NEON)
  using namespace marks;
  const auto hits = [](Block block) {
    const Block folded = with_bits(block, 0x20);
    return either(either(equal(folded, '{'), equal(folded, '}')), equal(block, '"'));
  };
  if (const Position found = find(at, end, hits)) return found;
#endif
  return find_nesting_mark_by_byte(at, end);
}

}  // namespace stashtrace::importers
