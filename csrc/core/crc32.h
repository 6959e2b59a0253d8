// zlib's crc32, so that Python checks it with zlib.crc32. SPDX-License-Identifier: Apache-2.0
//
// Callers: SegmentWriter. Pure. Folds 64 bytes at a time with carry-less multiplication (x86-64) or takes 8 at a time with
// the instruction for it (aarch64) where the CPU has these.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace {

// Works like zlib: start with 0, pass the result of one piece to the next call.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

// The portable form; the fast one is tested against it.
std::uint32_t crc32_by_table(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

}  // namespace stashtrace
