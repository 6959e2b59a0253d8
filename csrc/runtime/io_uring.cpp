// Implementation of io_uring.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/io_uring.h"

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/clock.h"
#include "core/mapped_files.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

// A program has few rings. One that finds no place is noted again when it is seen, without a name.
constexpr int kMostRings = 16;
constinit std::atomic<int> g_rings[kMostRings] =
    {};  // those that are noted: descriptor + 1; a forked child has them too
constinit std::atomic<unsigned> g_next{0};
constinit std::atomic<std::uint32_t> g_noted_in{0};    // generation: a forked child has another file
constinit std::atomic<std::uint64_t> g_last_named{0};  // generation and string: of the last name that was recorded

bool is_noted(int fd) noexcept {
  for (const std::atomic<int>& ring : g_rings)
    if (ring.load(std::memory_order_relaxed) == fd + 1) return true;
  return false;
}

void write(std::uint32_t value) noexcept { emit(schema::Metadata{now_ticks(), intern("io_uring"), value}); }

void note_unnamed() noexcept {
  const std::uint32_t generation = runtime().generation();
  if (g_noted_in.exchange(generation, std::memory_order_relaxed) != generation) write(intern("used"));
}

}  // namespace

void note_ring(int fd, const void* code) noexcept {
  if (!recording()) return;
  char memory[64];
  TextBuffer name(memory, sizeof memory);
  const auto at = reinterpret_cast<std::uintptr_t>(code);
  visit_mapped_files([&](const MappedFile& mapping) {
    if (at < mapping.begin || at >= mapping.end) return true;
    const std::string_view file = mapping.path.substr(mapping.path.rfind('/') + 1);
    if (file.find(".so") != file.npos) name.add(file);
    return false;
  });
  if (name.text().empty() || name.full()) return note_unnamed();
  if (!is_noted(fd)) g_rings[g_next.fetch_add(1, std::memory_order_relaxed) % kMostRings].store(fd + 1);
  const std::uint32_t text = intern(name.text());
  const std::uint64_t named = std::uint64_t{runtime().generation()} << 32 | text;
  if (g_last_named.exchange(named, std::memory_order_relaxed) != named) write(text);
}

void note_ring_seen(int fd) noexcept {
  if (recording() && !is_noted(fd)) note_unnamed();
}

// Whose mapping it is cannot be seen: where a library is known by its name, it is taken for that library's.
void note_ring_mapped() noexcept {
  if (g_next.load(std::memory_order_relaxed) == 0) note_unnamed();
}

}  // namespace stashtrace
