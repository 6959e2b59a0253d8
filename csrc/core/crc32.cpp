// CRC-32 of zlib (reflected 0x04c11db7), by table, by carry-less multiplication, by instructions of aarch64.
// SPDX-License-Identifier: Apache-2.0
//
// The folding constants are x^n mod P for the distances of Intel's white paper "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ" (2009), bit-reflected.
#include "core/crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstring>

namespace stashtrace {

namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = value;
  }
  for (std::size_t table = 1; table < 8; ++table)
    for (std::size_t i = 0; i < 256; ++i)
      tables[table][i] = (tables[table - 1][i] >> 8) ^ tables[0][tables[table - 1][i] & 255];
  return tables;
}
constexpr Tables kTables = make_tables();

std::uint32_t update_by_table(std::uint32_t state, const unsigned char* data, std::size_t bytes) noexcept {
  while (bytes >= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][word >> (8 * i) & 255];
    data += 8;
    bytes -= 8;
  }
  for (; bytes != 0; --bytes) state = (state >> 8) ^ kTables[0][(state ^ *data++) & 255];
  return state;
}

#if defined(__x86_64__)
#define STASHTRACE_CLMUL __attribute__((target("pclmul,sse4.1")))

STASHTRACE_CLMUL inline __m128i fold(__m128i value, __m128i keys, __m128i next) noexcept {
  const __m128i low = _mm_clmulepi64_si128(value, keys, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, keys, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

STASHTRACE_CLMUL inline __m128i load(const unsigned char* data) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

// Needs 64 bytes or more, consumes a multiple of 16 and reports how many.
STASHTRACE_CLMUL std::uint32_t update_by_clmul(std::uint32_t state, const unsigned char* data, std::size_t bytes,
                                               std::size_t& done) noexcept {
  const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  const unsigned char* at = data;
  __m128i lane0 = _mm_xor_si128(load(at), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i lane1 = load(at + 16), lane2 = load(at + 32), lane3 = load(at + 48);
  at += 64;
  std::size_t left = bytes - 64;
  for (; left >= 64; left -= 64, at += 64) {
    lane0 = fold(lane0, by_512, load(at));
    lane1 = fold(lane1, by_512, load(at + 16));
    lane2 = fold(lane2, by_512, load(at + 32));
    lane3 = fold(lane3, by_512, load(at + 48));
  }
  __m128i value = fold(fold(fold(lane0, by_128, lane1), by_128, lane2), by_128, lane3);
  for (; left >= 16; left -= 16, at += 16) value = fold(value, by_128, load(at));
  done = static_cast<std::size_t>(at - data);
  // 128 -> 96 -> 64 bits, then Barrett reduction to 32.
  const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
  value = _mm_xor_si128(_mm_srli_si128(value, 8), _mm_clmulepi64_si128(value, by_128, 0x10));
  value = _mm_xor_si128(_mm_srli_si128(value, 4),
                        _mm_clmulepi64_si128(_mm_and_si128(value, low_32), _mm_set_epi64x(0, 0x163cd6124), 0x00));
  const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(value, low_32), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), barrett, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(value, quotient), 1));
}
#elif defined(__aarch64__)
// Consumes a multiple of 8 bytes and reports how many. Optional in the first version of the architecture.
__attribute__((target("+crc"))) std::uint32_t update_by_instruction(std::uint32_t state, const unsigned char* data,
                                                                    std::size_t bytes, std::size_t& done) noexcept {
  for (done = 0; bytes - done >= 8; done += 8) {
    std::uint64_t word;
    std::memcpy(&word, data + done, 8);
    state = __crc32d(state, word);
  }
  return state;
}
#endif

std::uint32_t update(std::uint32_t state, const unsigned char* data, std::size_t bytes) noexcept {
  std::size_t done = 0;
#if defined(__x86_64__)
  if (bytes >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
    state = update_by_clmul(state, data, bytes, done);
#elif defined(__aarch64__)
  if ((::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) state = update_by_instruction(state, data, bytes, done);
#endif
  return update_by_table(state, data + done, bytes - done);
}

}  // namespace

std::uint32_t crc32_by_table(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  return ~update_by_table(~crc, static_cast<const unsigned char*>(data), bytes);
}

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t bytes) noexcept {
  return ~update(~crc, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace stashtrace
