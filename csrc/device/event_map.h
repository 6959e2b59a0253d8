// What each of the job's events stands for: the last work on its stream when it was recorded. SPDX-License-Identifier: Apache-2.0
//
// Callers: timeline.cpp on job threads. Handles are reused, so a later record replaces what was known. No lock: words are
// stored one by one, and the last carries a tag of all others, so that a mixture of two entries does not count as one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stashtrace::device {

struct EventMeaning {
  std::uint32_t mark_id = 0;  // bracket whose end is the end of that work, 0 if not timed
  std::uint32_t work_id = 0;  // bracket of the work itself, 0 if none
  std::uint16_t awaited = 0;  // Awaited
  std::uint64_t stream_key = 0;
  std::uint16_t copy_code = 0;  // CopyDirection of a copy, below 8
};

class EventMap {
 public:
  void set(const void* event, const EventMeaning& meaning) noexcept {
    Entry& entry = place(event);
    const std::uint64_t ids = std::uint64_t{meaning.mark_id} << 32 | meaning.work_id;
    entry.kind.store(0, std::memory_order_relaxed);
    entry.ids.store(ids, std::memory_order_relaxed);
    entry.stream_key.store(meaning.stream_key, std::memory_order_relaxed);
    entry.event.store(key(event), std::memory_order_relaxed);
    const std::uint64_t bits = std::uint64_t{meaning.copy_code} << kCopyShift | meaning.awaited | kKnown;
    entry.kind.store(tag(event, ids, meaning.stream_key) | bits, std::memory_order_release);
  }

  bool get(const void* event, EventMeaning& meaning) noexcept {
    const Entry& entry = place(event);
    const std::uint64_t kind = entry.kind.load(std::memory_order_acquire);
    const std::uint64_t ids = entry.ids.load(std::memory_order_relaxed);
    const std::uint64_t stream_key = entry.stream_key.load(std::memory_order_relaxed);
    if ((kind & ~(kAwaitedBits | kCopyBits)) != (tag(event, ids, stream_key) | kKnown)) return false;
    meaning = {static_cast<std::uint32_t>(ids >> 32), static_cast<std::uint32_t>(ids),
               static_cast<std::uint16_t>(kind & kAwaitedBits), stream_key,
               static_cast<std::uint16_t>((kind & kCopyBits) >> kCopyShift)};
    return true;
  }

  void forget(const void* event) noexcept {
    Entry& entry = place(event);
    if (entry.event.load(std::memory_order_relaxed) != key(event)) return;
    entry.kind.store(0, std::memory_order_relaxed);
    entry.event.store(kGone, std::memory_order_relaxed);
  }

  // Forgets all events that were recorded on a stream.
  void forget_stream(std::uint64_t stream_key) noexcept {
    for (Entry& entry : entries_) {
      if (entry.stream_key.load(std::memory_order_relaxed) != stream_key) continue;
      entry.kind.store(0, std::memory_order_relaxed);
      entry.stream_key.store(0, std::memory_order_relaxed);
      if (entry.event.load(std::memory_order_relaxed) != 0) entry.event.store(kGone, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr std::size_t kCapacity = 32768;
  static constexpr std::size_t kProbes = 8;
  static constexpr std::uint64_t kGone = 1;  // in place of a handle
  static constexpr std::uint64_t kAwaitedBits = 0xff;
  static constexpr std::uint64_t kKnown = 0x100;
  static constexpr int kCopyShift = 9;
  static constexpr std::uint64_t kCopyBits = std::uint64_t{7} << kCopyShift;
  struct Entry {
    std::atomic<std::uint64_t> event, ids, stream_key, kind;
  };

  static std::uint64_t key(const void* event) noexcept { return reinterpret_cast<std::uint64_t>(event); }
  static std::uint64_t hash(const void* event) noexcept { return key(event) * 0x9E3779B97F4A7C15ULL; }
  // Odd factors: different words have different products, and these 48 bits of them agree only by chance.
  static std::uint64_t tag(const void* event, std::uint64_t ids, std::uint64_t stream_key) noexcept {
    return (hash(event) ^ ids * 0xC2B2AE3D27D4EB4FULL ^ stream_key * 0x165667B19E3779F9ULL) & ~std::uint64_t{0xffff};
  }

  // The event's place, else that of an event that is gone, else an empty one, else the first, whose event is lost.
  Entry& place(const void* event) noexcept {
    const std::size_t start = hash(event) >> 45;
    Entry* free = nullptr;
    for (std::size_t i = 0; i < kProbes; ++i) {
      Entry& entry = entries_[(start + i) % kCapacity];
      const std::uint64_t there = entry.event.load(std::memory_order_relaxed);
      if (there == key(event)) return entry;
      if (free == nullptr && (there == kGone || there == 0)) free = &entry;
      if (there == 0) break;
    }
    return free != nullptr ? *free : entries_[start % kCapacity];
  }

  Entry entries_[kCapacity];
};

}  // namespace stashtrace::device
