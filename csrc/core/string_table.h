// Text -> u32 id, once per process. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks (paths), probes (names), the runtime. Lock-free and allocation-free, any thread, also signal
// handlers. The first thread that uses a text writes its string_part rows before it gets the id. The table identifies
// a text by its 64-bit hash: two texts with one hash would share a name (chance at 65,536 texts: 1e-10).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stashtrace {

inline constexpr std::uint32_t kStringSlots = 65'536;    // larger ids were given when the table was full
inline constexpr std::size_t kLongestTextBytes = 4'096;  // the rest of a text is cut off

// Returns the id of a text; 0 for an empty text and in a process that is not traced. Defined in runtime/intern.cpp.
std::uint32_t intern(std::string_view text) noexcept;

// 64 bits that identify a text; never 0.
std::uint64_t hash_of(std::string_view text) noexcept;

// Which texts have an id, and in which generation (fork) of the process their rows were written last.
class StringTable {
 public:
  // Returns the id of a text, claimed if it is new. A full table gives a fresh id, which later look-ups do not find.
  std::uint32_t id_of(std::string_view text) noexcept;
  bool is_written(std::uint32_t id, std::uint32_t generation) const noexcept;
  void set_written(std::uint32_t id, std::uint32_t generation) noexcept;

 private:
  std::atomic<std::uint64_t> hash_[kStringSlots];  // 0: empty
  std::atomic<std::uint32_t> generation_[kStringSlots];
  std::atomic<std::uint32_t> fresh_;
};

}  // namespace stashtrace
