// Implementation of ring_table.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/ring_table.h"

#include <cerrno>

#include "core/raw_syscall.h"
#include "core/ring.h"
#include "runtime/drainer.h"
#include "schema/schema.h"

namespace stashtrace {

using container::RingHeader;

namespace {

bool is_free(RingHeader* ring) noexcept {
  return std::atomic_ref(ring->state).load(std::memory_order_acquire) == ring::kFree;
}

bool is_drained(RingHeader* ring) noexcept {
  return std::atomic_ref(ring->consumed).load(std::memory_order_acquire) == ring::relaxed(ring->committed);
}

}  // namespace

void RingTable::release(RingHeader* ring) noexcept {
  if (ring::is_intact(ring)) std::atomic_ref(ring->state).store(ring::kFree, std::memory_order_release);
}

RingHeader* RingTable::take_over(RingHeader* ring, std::uint32_t tid) noexcept {
  const std::uint64_t committed = ring::relaxed(ring->committed);
  std::atomic_ref(ring->reserved).store(committed, std::memory_order_relaxed);  // its owner may have died within a row
  std::atomic_ref(ring->mark).store(committed, std::memory_order_relaxed);      // the first row looks up the right one
  std::atomic_ref(ring->tid).store(tid, std::memory_order_relaxed);
  std::atomic_ref(ring->state).store(ring::kInUse, std::memory_order_release);
  return ring;
}

RingHeader* RingTable::acquire(RingFile& file, Drainer& drainer, std::size_t index, std::uint32_t ring_bytes, int pid,
                               std::uint32_t tid) noexcept {
  const auto& record = schema::kRecords[index];
  const std::size_t count = count_.load(std::memory_order_relaxed);
  std::size_t same = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (rings_[i]->record_id != record.id || !ring::is_intact(rings_[i])) continue;
    ++same;
    if (is_free(rings_[i]) && is_drained(rings_[i])) return take_over(rings_[i], tid);
  }
  for (std::size_t i = 0; same >= kMakeFirst && i < count; ++i) {
    RingHeader* ring = rings_[i];
    if (ring->record_id != record.id || !ring::is_intact(ring)) continue;
    // A thread that ended without its key's destructor (raw clone, no key left) is found by its dead id; one with
    // our own id is dead as well, for this thread has no such ring yet.
    const std::uint32_t owner = ring::relaxed(ring->tid);
    if (!is_free(ring) && (owner == tid || raw::tgkill(pid, static_cast<int>(owner), 0) == -ESRCH)) {
      std::atomic_thread_fence(std::memory_order_acquire);  // its last rows, which it released to nobody
      release(ring);
    }
    if (is_free(ring) && (is_drained(ring) || drainer.drain(ring, 0))) return take_over(ring, tid);
  }
  if (count == kMostRings) return nullptr;
  RingHeader* ring = file.add_ring(record.id, record.row_bytes, ring_bytes, static_cast<std::uint32_t>(count), tid);
  if (ring == nullptr) return nullptr;
  rings_[count] = ring;
  count_.store(count + 1, std::memory_order_release);
  return ring;
}

void RingTable::forget() noexcept {
  const std::size_t count = count_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i)
    if (ring::is_intact(rings_[i])) replace_mapping(rings_[i], rings_[i]->ring_bytes);
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace
