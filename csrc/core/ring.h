// A ring of fixed rows that one thread writes and one drainer reads. SPDX-License-Identifier: Apache-2.0
//
//   row number   0 ......... consumed ............. committed .. reserved ....... consumed + capacity
//                in X.stash    | complete, only here  | being written | free
//
// The ring lies in a MAP_SHARED file, so rows below `committed` survive any death of the process. The producer is
// one thread *and its signal handlers*: a handler that records in the middle of a row claims the next one and
// leaves publishing to the row it interrupted, which is why claiming is one instruction (`xadd`, no lock prefix:
// no other thread writes `reserved`). Callers: emit.h (producer), drainer.cpp (consumer).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "schema/container.h"

namespace stashtrace::ring {

using container::RingHeader;

// Rows that nested signal handlers may claim beyond the check of the row they interrupt.
inline constexpr std::uint64_t kSlackRows = 16;
inline constexpr std::uint32_t kFewestRows = 64;

enum RingState : std::uint32_t { kInUse = 0, kFree = 1 };

inline constexpr std::uint32_t capacity_rows(std::uint32_t ring_bytes, std::uint32_t row_bytes) noexcept {
  const std::uint32_t rows = std::bit_floor(ring_bytes / row_bytes);
  return rows < kFewestRows ? kFewestRows : rows;
}

inline std::byte* rows(RingHeader* ring) noexcept { return reinterpret_cast<std::byte*>(ring) + container::kPageBytes; }

template <class T>
inline T relaxed(T& field) noexcept {
  return std::atomic_ref<T>(field).load(std::memory_order_relaxed);
}

// Signal-atomic on its own thread; not atomic against other threads, and need not be.
inline std::uint64_t claim(RingHeader* ring) noexcept {
#if defined(__x86_64__)
  std::uint64_t row = 1;
  __asm__ volatile("xaddq %0, %1" : "+r"(row), "+m"(ring->reserved) : : "memory", "cc");
  return row;
#else
  return std::atomic_ref(ring->reserved).fetch_add(1, std::memory_order_relaxed);
#endif
}

// False if the program has mapped something else over the ring (MAP_FIXED), which leaves zeros or other bytes
// there. We must then use none of these bytes and write nothing there.
inline bool is_intact(RingHeader* ring) noexcept {
  const std::uint64_t capacity = relaxed(ring->row_mask) + 1;
  return relaxed(ring->ring_magic) == container::kRingMagic && capacity == relaxed(ring->capacity_rows) &&
         capacity >= kFewestRows && std::has_single_bit(capacity);
}

// Rows refused and not yet reported in a loss row.
inline std::uint64_t dropped(RingHeader* ring) noexcept { return is_intact(ring) ? relaxed(ring->dropped) : 0; }

inline bool must_look_up(RingHeader* ring) noexcept { return relaxed(ring->reserved) >= relaxed(ring->mark); }

// Claims a row, stores it and publishes it. The caller has found room (must_look_up() false, or look_up() true).
template <class Store>
inline void put(RingHeader* ring, std::size_t row_bytes, Store store) noexcept {
  const std::uint64_t row = claim(ring);
  store(rows(ring) + (row & ring->row_mask) * row_bytes);
  std::atomic_ref committed(ring->committed);
  // Only the outermost writer finds its own number here; it publishes what its handlers wrote as well.
  if (committed.load(std::memory_order_relaxed) == row) [[likely]] {
    std::uint64_t seen = row + 1;
    for (;;) {
      committed.store(seen, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      const std::uint64_t reserved = relaxed(ring->reserved);
      if (reserved == seen) [[likely]]
        break;
      seen = reserved;
    }
  }
}

struct LookUp {
  bool room;         // there is room for the row
  bool wants_drain;  // a quarter was filled since the last drain
  bool gone;         // the ring is not ours any more: leave it alone
  bool wants_space;  // its space in the file is used up: call RingFile::give_space()
};

// The producer's slow path: once per quarter of the ring, and when it is full or has no space. Sets the next mark.
inline LookUp look_up(RingHeader* ring) noexcept {
  if (!is_intact(ring)) return {.room = false, .wants_drain = false, .gone = true, .wants_space = false};
  std::uint64_t reserved = relaxed(ring->reserved);
  const std::uint64_t committed = relaxed(ring->committed);
  if (reserved - committed > kSlackRows) {
    // A handler left by longjmp in the middle of a row: later rows will not be published. Drop and count them.
    std::atomic_ref(ring->dropped).fetch_add(reserved - committed, std::memory_order_relaxed);
    std::atomic_ref(ring->reserved).store(committed, std::memory_order_relaxed);
    reserved = committed;
  }
  const std::uint64_t consumed = std::atomic_ref(ring->consumed).load(std::memory_order_acquire);
  const std::uint64_t capacity = ring->row_mask + 1;
  const std::uint64_t quarter = capacity / 4;
  const std::uint64_t full_at = consumed + capacity - kSlackRows;
  if (reserved >= full_at) {
    std::atomic_ref(ring->mark).store(reserved, std::memory_order_relaxed);  // the end of recording sets it as well
    return {.room = false, .wants_drain = true, .gone = false, .wants_space = false};
  }
  std::uint64_t next = (reserved / quarter + 1) * quarter;
  if (next > full_at) next = full_at;
  if (const std::uint64_t space_end = relaxed(ring->space_end); space_end != 0) {
    const std::uint64_t space_at = space_end - kSlackRows;  // nested handlers may not store beyond it either
    if (reserved >= space_at) {
      std::atomic_ref(ring->mark).store(reserved, std::memory_order_relaxed);
      return {.room = false, .wants_drain = false, .gone = false, .wants_space = true};
    }
    if (next > space_at) next = space_at;
  }
  std::atomic_ref(ring->mark).store(next, std::memory_order_relaxed);
  return {.room = true, .wants_drain = reserved - consumed >= quarter, .gone = false, .wants_space = false};
}

// What the drainer sees: rows [consumed, committed), in at most two pieces; no rows if the ring is gone.
struct Batch {
  std::uint64_t first;
  std::uint64_t count;
  const std::byte* piece[2];
  std::size_t piece_bytes[2];
};

inline Batch pending(RingHeader* ring) noexcept {
  Batch batch{};
  if (!is_intact(ring)) return batch;
  batch.first = relaxed(ring->consumed);
  batch.count = std::atomic_ref(ring->committed).load(std::memory_order_acquire) - batch.first;
  const std::uint64_t capacity = ring->row_mask + 1;
  if (batch.count > capacity) batch.count = 0;  // cannot happen in a ring of ours
  const std::uint64_t begin = batch.first & ring->row_mask;
  const std::uint64_t before_wrap = batch.count < capacity - begin ? batch.count : capacity - begin;
  batch.piece[0] = rows(ring) + begin * ring->row_bytes;
  batch.piece_bytes[0] = before_wrap * ring->row_bytes;
  batch.piece[1] = rows(ring);
  batch.piece_bytes[1] = (batch.count - before_wrap) * ring->row_bytes;
  return batch;
}

inline void consume(RingHeader* ring, std::uint64_t up_to) noexcept {
  std::atomic_ref(ring->consumed).store(up_to, std::memory_order_release);
}

}  // namespace stashtrace::ring
