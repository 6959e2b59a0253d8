// Text -> u32 id, once per process. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks (paths), probes (names), the runtime. Lock-free and allocation-free, any thread, also signal
// handlers. The first thread that uses a text writes its string_part rows before it gets the id. A text is known
// by its 64-bit hash: two texts of one hash would share a name, at 65,536 texts with a chance of 1e-10.
#pragma once

#include <cstdint>
#include <string_view>

namespace stashtrace {

inline constexpr std::uint32_t kStringSlots = 65'536;  // ids above are fresh ones: the table was full
inline constexpr std::size_t kLongestTextBytes = 4'096;  // the rest of a text is cut off

// 0 for an empty text and in a process that is not traced.
std::uint32_t intern(std::string_view text) noexcept;

// After a fork the same ids stay valid, but a text must be written again, into the child's own file.
void forget_written_strings() noexcept;

}  // namespace stashtrace
