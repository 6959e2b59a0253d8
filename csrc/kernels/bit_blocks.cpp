// Bit-packed blocks; see bit_blocks.h for the choice of width and column_codec.h for the bytes.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/bit_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace stashtrace::bit_blocks {
namespace {

constexpr std::size_t kMaxRows = 256;
constexpr std::uint8_t kZigzag = 0x80;
constexpr std::size_t kMaxExceptions = 64;  // more than a quarter of a block is never cheaper

std::uint64_t zigzag(std::uint64_t value) {
  return (value << 1) ^ static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> 63);
}

std::uint64_t unzigzag(std::uint64_t value) { return (value >> 1) ^ (~(value & 1) + 1); }

std::size_t varint_bytes(std::uint64_t value) { return (std::bit_width(value | 1) + 6) / 7; }

void put_varint(std::uint64_t value, std::vector<std::uint8_t>& out) {
  while (value >= 0x80) {
    out.push_back(static_cast<std::uint8_t>(value) | 0x80);
    value >>= 7;
  }
  out.push_back(static_cast<std::uint8_t>(value));
}

const std::uint8_t* get_varint(const std::uint8_t* cursor, const std::uint8_t* end, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (cursor == end) return nullptr;
    const std::uint8_t byte = *cursor++;
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return cursor;
  }
  return nullptr;
}

struct Plan {
  std::uint64_t base = 0;
  bool zigzag = false;
  unsigned width = 0;
  std::size_t bits = 0;  // of the whole block
};

// Cheapest width for a histogram of value widths; exceptions cost a position and a varint each.
Plan cheapest_width(const std::array<std::uint16_t, 65>& counts, std::size_t rows) {
  unsigned widest = 64;
  while (widest > 0 && counts[widest] == 0) --widest;
  Plan best{.width = widest, .bits = rows * widest};
  std::size_t exceptions = 0;
  for (unsigned width = widest; width-- > 0;) {
    exceptions += counts[width + 1];
    if (exceptions > kMaxExceptions) break;
    std::size_t bits = rows * width + exceptions * 8;
    for (unsigned above = width + 1; above <= widest; ++above) bits += counts[above] * ((above - width + 6) / 7) * 8;
    if (bits < best.bits) {
      best.width = width;
      best.bits = bits;
    }
  }
  return best;
}

Plan plan_block(std::span<const std::uint64_t> residuals) {
  std::int64_t low = static_cast<std::int64_t>(residuals[0]);
  std::int64_t high = low;
  for (const std::uint64_t residual : residuals) {
    low = std::min(low, static_cast<std::int64_t>(residual));
    high = std::max(high, static_cast<std::int64_t>(residual));
  }
  const auto base = static_cast<std::uint64_t>(low);
  if (low == high) {
    Plan plan{.base = base, .zigzag = low == 0};
    plan.bits = 16 + (plan.zigzag ? 0 : varint_bytes(zigzag(base)) * 8);
    return plan;
  }
  std::array<std::uint16_t, 65> above_base{}, folded{};
  for (const std::uint64_t residual : residuals) {
    ++above_base[std::bit_width(residual - base)];
    ++folded[std::bit_width(zigzag(residual))];
  }
  Plan from_base = cheapest_width(above_base, residuals.size());
  from_base.base = base;
  from_base.bits += 16 + varint_bytes(zigzag(base)) * 8;
  Plan from_zero = cheapest_width(folded, residuals.size());
  from_zero.zigzag = true;
  from_zero.bits += 16;
  return from_base.bits < from_zero.bits ? from_base : from_zero;
}

std::uint64_t low_mask(unsigned width) { return width == 64 ? ~0ULL : (1ULL << width) - 1; }

}  // namespace

std::size_t cost_bits(std::span<const std::uint64_t> residuals) {
  std::size_t bits = 0;
  for (std::size_t at = 0; at < residuals.size(); at += kMaxRows)
    bits += plan_block(residuals.subspan(at, std::min(kMaxRows, residuals.size() - at))).bits;
  return bits;
}

void encode_block(std::span<const std::uint64_t> residuals, std::vector<std::uint8_t>& out) {
  const Plan plan = plan_block(residuals);
  const std::uint64_t mask = low_mask(plan.width);
  std::array<std::uint64_t, kMaxRows> packed;
  std::array<std::uint8_t, kMaxRows> exceptions;
  std::size_t exception_count = 0;
  for (std::size_t i = 0; i < residuals.size(); ++i) {
    packed[i] = plan.zigzag ? zigzag(residuals[i]) : residuals[i] - plan.base;
    if ((packed[i] & ~mask) != 0) exceptions[exception_count++] = static_cast<std::uint8_t>(i);
  }
  out.push_back(static_cast<std::uint8_t>(plan.width | (plan.zigzag ? kZigzag : 0)));
  out.push_back(static_cast<std::uint8_t>(exception_count));
  if (!plan.zigzag) put_varint(zigzag(plan.base), out);

  const std::size_t begin = out.size();
  const std::size_t bytes = (residuals.size() * plan.width + 7) / 8;
  out.resize(begin + bytes + 8);  // room for the last whole word
  std::uint8_t* cursor = out.data() + begin;
  std::uint64_t word = 0;
  unsigned filled = 0;
  for (std::size_t i = 0; i < residuals.size() && plan.width != 0; ++i) {
    const std::uint64_t value = packed[i] & mask;
    word |= value << filled;
    filled += plan.width;
    if (filled >= 64) {
      std::memcpy(cursor, &word, 8);
      cursor += 8;
      filled -= 64;
      word = filled == 0 ? 0 : value >> (plan.width - filled);
    }
  }
  std::memcpy(cursor, &word, 8);
  out.resize(begin + bytes);
  for (std::size_t i = 0; i < exception_count; ++i) {
    out.push_back(exceptions[i]);
    put_varint(packed[exceptions[i]] >> plan.width, out);
  }
}

const std::uint8_t* decode_block(const std::uint8_t* cursor, const std::uint8_t* end, std::span<std::uint64_t> out) {
  if (end - cursor < 2) return nullptr;
  const bool is_zigzag = (cursor[0] & kZigzag) != 0;
  const unsigned width = cursor[0] & 0x7f;
  const std::size_t exception_count = cursor[1];
  cursor += 2;
  if (width > 64 || exception_count > out.size() || (width == 64 && exception_count != 0)) return nullptr;
  std::uint64_t base = 0;
  if (!is_zigzag) {
    cursor = get_varint(cursor, end, base);
    if (cursor == nullptr) return nullptr;
    base = unzigzag(base);
  }
  const std::size_t bytes = (out.size() * width + 7) / 8;
  if (static_cast<std::size_t>(end - cursor) < bytes) return nullptr;

  const std::uint64_t mask = low_mask(width);
  std::size_t i = 0;
  if (width == 0) {
    std::fill(out.begin(), out.end(), 0);
    i = out.size();
  } else if (width <= 56) {  // any value is within the 8 bytes that begin at its first byte
    const std::size_t safe =
        static_cast<std::size_t>(end - cursor) < 8 ? 0 : static_cast<std::size_t>(end - cursor) - 8;
    for (; i < out.size() && (i * width) / 8 <= safe && end - cursor >= 8; ++i) {
      std::uint64_t word;
      std::memcpy(&word, cursor + (i * width) / 8, 8);
      out[i] = (word >> ((i * width) % 8)) & mask;
    }
  }
  for (; i < out.size(); ++i) {  // wide values, and the last ones of the payload
    std::uint64_t value = 0;
    const std::size_t first_bit = i * width;
    for (unsigned done = 0; done < width;) {
      const std::size_t bit = first_bit + done;
      const unsigned shift = bit % 8;
      value |= static_cast<std::uint64_t>(cursor[bit / 8] >> shift) << done;
      done += 8 - shift;
    }
    out[i] = value & mask;
  }
  cursor += bytes;
  for (std::size_t k = 0; k < exception_count; ++k) {
    if (cursor == end) return nullptr;
    const std::size_t position = *cursor++;
    std::uint64_t above = 0;
    cursor = get_varint(cursor, end, above);
    if (cursor == nullptr || position >= out.size()) return nullptr;
    out[position] |= above << width;
  }
  if (is_zigzag) {
    for (std::uint64_t& value : out) value = unzigzag(value);
  } else {
    for (std::uint64_t& value : out) value += base;
  }
  return cursor;
}

}  // namespace stashtrace::bit_blocks
