// The yardstick of bench_perfetto.py: the same columns as plain varints, nothing around them.
// SPDX-License-Identifier: Apache-2.0
//
// What a person writes first: one loop, one byte at a time. No packets, no nesting, no interning, no order by time.
// The benchmark compiles it as a shared library and calls it through ctypes.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

std::uint8_t* put(std::uint8_t* p, std::uint64_t value) {
  while (value >= 0x80) {
    *p++ = static_cast<std::uint8_t>(value) | 0x80;
    value >>= 7;
  }
  *p++ = static_cast<std::uint8_t>(value);
  return p;
}

}  // namespace

// Bytes written for `count` rows of `columns` columns; begin times are written as differences, ends as lengths.
extern "C" std::uint64_t varint_loop(std::size_t count, std::size_t columns, const std::int64_t* begin_ns, const std::int64_t* end_ns,
                                     const std::int64_t* const* values) {
  constexpr std::size_t kChunk = 1 << 20;
  std::vector<std::uint8_t> buffer(kChunk + 4096);
  std::uint8_t* p = buffer.data();
  std::uint64_t total = 0;
  std::int64_t last = 0;
  for (std::size_t row = 0; row < count; ++row) {
    p = put(p, static_cast<std::uint64_t>(begin_ns[row] - last));
    p = put(p, static_cast<std::uint64_t>(end_ns[row] - begin_ns[row]));
    last = begin_ns[row];
    for (std::size_t column = 0; column < columns; ++column) p = put(p, static_cast<std::uint64_t>(values[column][row]));
    if (p - buffer.data() > static_cast<std::ptrdiff_t>(kChunk)) {
      total += static_cast<std::uint64_t>(p - buffer.data());
      p = buffer.data();
    }
  }
  return total + static_cast<std::uint64_t>(p - buffer.data());
}
