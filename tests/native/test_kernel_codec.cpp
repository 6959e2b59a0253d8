// Columnar codec and tick map under the sanitizers: round trips of odd rows, payloads with flipped and missing bytes.
// SPDX-License-Identifier: Apache-2.0
//
// What the codec achieves is tested in Python (tests/format/test_codec.py); here it must stay within its memory.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/bit_blocks.h"
#include "kernels/column_codec.h"
#include "kernels/tick_map.h"

namespace {

using namespace stashtrace;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kRowBytes = 32;
constexpr column_codec::Field kFields[] = {{0, 8, false}, {8, 8, true},   {16, 4, false}, {20, 4, true},
                                           {24, 2, false}, {26, 2, false}, {28, 1, false}, {29, 1, false},
                                           {30, 2, false}};

template <typename T>
void put(Bytes& rows, std::size_t row, std::size_t offset, T value) {
  std::memcpy(rows.data() + row * kRowBytes + offset, &value, sizeof value);
}

Bytes make_rows(std::size_t count, std::mt19937_64& random) {
  Bytes rows(count * kRowBytes);
  std::uint64_t clock = random() >> 8;
  const std::uint64_t style = random() % 4;
  for (std::size_t row = 0; row < count; ++row) {
    const auto duration = static_cast<std::uint32_t>(style == 0 ? random() : random() % 5000);
    put(rows, row, 0, clock);
    put(rows, row, 8, style == 1 ? static_cast<std::int64_t>(random()) : static_cast<std::int64_t>(row * 4096));
    put(rows, row, 16, duration);
    put(rows, row, 20, static_cast<std::int32_t>(random() % 7) - 3);
    put(rows, row, 24, static_cast<std::uint16_t>(style == 2 ? random() : random() % 9));
    put(rows, row, 26, static_cast<std::uint16_t>(row % 3));
    clock += duration + random() % 100;
  }
  return rows;
}

void rows_come_back(std::mt19937_64& random) {
  for (const std::size_t count : {0ul, 1ul, 15ul, 16ul, 255ul, 256ul, 257ul, 8191ul, 8192ul, 8193ul, 20000ul}) {
    const Bytes rows = make_rows(count, random);
    const Bytes packed = column_codec::encode(rows, kRowBytes, kFields);
    Bytes back(rows.size());
    CHECK(column_codec::decode(packed, kRowBytes, back));
    CHECK(rows == back);
    Bytes other(rows.size() + kRowBytes);
    CHECK(!column_codec::decode(packed, kRowBytes, other));
  }
}

void damaged_payloads_stay_within_bounds(std::mt19937_64& random) {
  for (int round = 0; round < 300; ++round) {
    const Bytes rows = make_rows(1 + random() % 600, random);
    Bytes packed = column_codec::encode(rows, kRowBytes, kFields);
    Bytes back(rows.size());
    for (int flip = 0; flip < 20; ++flip) {
      Bytes damaged = packed;
      damaged[random() % std::min<std::size_t>(damaged.size(), flip < 10 ? 90 : damaged.size())] ^=
          static_cast<std::uint8_t>(1u << (random() % 8));
      column_codec::decode(damaged, kRowBytes, back);  // other rows or a refusal; the checksum is the reader's
      damaged.resize(random() % damaged.size());
      damaged.shrink_to_fit();
      CHECK(!column_codec::decode(damaged, kRowBytes, back));
    }
  }
}

void blocks_of_every_width(std::mt19937_64& random) {
  for (unsigned width = 0; width <= 64; ++width)
    for (const std::size_t count : {1ul, 2ul, 63ul, 256ul}) {
      std::vector<std::uint64_t> values(count);
      for (auto& value : values) value = width == 0 ? 0 : random() >> (64 - width);
      if (count > 60) values[7] = std::numeric_limits<std::uint64_t>::max() - width;  // an exception
      Bytes packed;
      bit_blocks::encode_block(values, packed);
      CHECK(bit_blocks::cost_bits(values) + 16 >= packed.size() * 8 - 7);
      std::vector<std::uint64_t> back(count);
      CHECK(bit_blocks::decode_block(packed.data(), packed.data() + packed.size(), back) == packed.data() + packed.size());
      CHECK(values == back);
      CHECK(bit_blocks::decode_block(packed.data(), packed.data() + packed.size() - 1, back) == nullptr);
    }
}

void ticks_map_through_their_anchors(std::mt19937_64& random) {
  std::vector<std::int64_t> anchors{1000}, ns{-5};
  for (int i = 0; i < 50; ++i) {
    anchors.push_back(anchors.back() + 1 + static_cast<std::int64_t>(random() % 3'000'000'000));
    ns.push_back(ns.back() + static_cast<std::int64_t>(random() % 1'000'000'000));
  }
  const std::vector<std::uint64_t> exact(anchors.begin(), anchors.end());
  std::vector<std::int64_t> out(exact.size());
  tick_map::map_ticks(exact, anchors, ns, out);
  CHECK(out == ns);
  std::vector<std::uint64_t> ticks(5000);
  for (auto& tick : ticks) tick = random() % static_cast<std::uint64_t>(anchors.back() + 5'000'000'000);
  std::sort(ticks.begin(), ticks.end());
  out.resize(ticks.size());
  tick_map::map_ticks(ticks, anchors, ns, out);
  CHECK(std::is_sorted(out.begin(), out.end()));
}

// Undefined behaviour would be reported by the sanitized build; elsewhere, that it comes to an end.
void ticks_of_a_damaged_file_wrap() {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  const std::vector<std::int64_t> anchors{-1, most}, ns{least, most};
  const std::vector<std::uint64_t> ticks{static_cast<std::uint64_t>(least), 0, static_cast<std::uint64_t>(most)};
  std::vector<std::int64_t> out(ticks.size());
  tick_map::map_ticks(ticks, anchors, ns, out);
  CHECK(out.size() == ticks.size());
}

}  // namespace

int main() {
  std::mt19937_64 random(20261121);
  rows_come_back(random);
  damaged_payloads_stay_within_bounds(random);
  blocks_of_every_width(random);
  ticks_map_through_their_anchors(random);
  ticks_of_a_damaged_file_wrap();
  return result();
}
