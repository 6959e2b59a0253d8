// Implementation of lane_table.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/lane_table.h"

#include <cerrno>

#include "core/raw_syscall.h"
#include "core/ring.h"
#include "runtime/drainer.h"
#include "schema/schema.h"

namespace stashtrace {

using container::LaneHeader;

namespace {

bool is_free(LaneHeader* lane) noexcept {
  return std::atomic_ref(lane->state).load(std::memory_order_acquire) == ring::kFree;
}

bool is_drained(LaneHeader* lane) noexcept {
  return std::atomic_ref(lane->consumed).load(std::memory_order_acquire) == ring::relaxed(lane->committed);
}

}  // namespace

void LaneTable::release(LaneHeader* lane) noexcept {
  if (ring::is_intact(lane)) std::atomic_ref(lane->state).store(ring::kFree, std::memory_order_release);
}

LaneHeader* LaneTable::take_over(LaneHeader* lane, std::uint32_t tid) noexcept {
  const std::uint64_t committed = ring::relaxed(lane->committed);
  std::atomic_ref(lane->reserved).store(committed, std::memory_order_relaxed);  // its owner may have died within a row
  std::atomic_ref(lane->mark).store(committed, std::memory_order_relaxed);      // the first row looks up the right one
  std::atomic_ref(lane->tid).store(tid, std::memory_order_relaxed);
  std::atomic_ref(lane->state).store(ring::kInUse, std::memory_order_release);
  return lane;
}

LaneHeader* LaneTable::acquire(RingFile& file, Drainer& drainer, std::size_t index, std::uint32_t lane_bytes, int pid,
                               std::uint32_t tid) noexcept {
  const auto& record = schema::kRecords[index];
  const std::size_t count = count_.load(std::memory_order_relaxed);
  std::size_t same = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (lanes_[i]->record_id != record.id || !ring::is_intact(lanes_[i])) continue;
    ++same;
    if (is_free(lanes_[i]) && is_drained(lanes_[i])) return take_over(lanes_[i], tid);
  }
  for (std::size_t i = 0; same >= kMakeFirst && i < count; ++i) {
    LaneHeader* lane = lanes_[i];
    if (lane->record_id != record.id || !ring::is_intact(lane)) continue;
    // A thread that ended without its key's destructor (raw clone, no key left) is found by its dead id; one with
    // our own id is dead as well, for this thread has no such lane yet.
    const std::uint32_t owner = ring::relaxed(lane->tid);
    if (!is_free(lane) && (owner == tid || raw::tgkill(pid, static_cast<int>(owner), 0) == -ESRCH)) {
      std::atomic_thread_fence(std::memory_order_acquire);  // its last rows, which it released to nobody
      release(lane);
    }
    if (is_free(lane) && (is_drained(lane) || drainer.drain(lane, 0))) return take_over(lane, tid);
  }
  if (count == kMostLanes) return nullptr;
  LaneHeader* lane = file.add_lane(record.id, record.row_bytes, lane_bytes, static_cast<std::uint32_t>(count), tid);
  if (lane == nullptr) return nullptr;
  lanes_[count] = lane;
  count_.store(count + 1, std::memory_order_release);
  return lane;
}

void LaneTable::forget() noexcept {
  const std::size_t count = count_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i)
    if (ring::is_intact(lanes_[i])) replace_mapping(lanes_[i], lanes_[i]->lane_bytes);
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace
