// Contexts and streams that were seen. SPDX-License-Identifier: Apache-2.0
//
// Callers: timeline.cpp (job threads), the harvester. Looking a stream up takes no lock; for a new one this asks the
// driver, then locks the table only. Entries of streams that are gone are reused when their last bracket is
// harvested; stream keys never are.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/cuda_abi.h"
#include "device/queue.h"

namespace stashtrace::device {

#pragma GCC visibility push(hidden)

inline constexpr std::size_t kMostContexts = 32;
inline constexpr std::size_t kMostStreams = 2048;
inline constexpr std::uint32_t kNone = 0;  // of slot numbers, which begin at 1
inline constexpr std::size_t kTailMoments = 4;

// Of an entry of the table of contexts. A new context may have the pointer of a destroyed one; it has another entry.
enum Life : std::uint32_t {
  kLive,
  kAsked,  // a thread is about to destroy it: the harvester writes what is done, then answers with kHeld
  kHeld,   // the driver is asked nothing about it until that call has returned
  kEnded,  // its handles are gone; brackets that were in flight are written without times
  kFree,   // no bracket is left: the entry may be taken
};

struct ContextState {
  std::atomic<cuda::Context> context;  // null: never used; kGoneContext: destroyed
  std::atomic<std::uint32_t> life;
  std::int32_t device;
  bool not_primary;                      // surely made by cuCtxCreate; false: may be the device's primary one
  std::atomic<void*> execution_context;  // the runtime's handle of it, where a stream was made by that
  BoundedQueue<cuda::Event, 16384> events;
  std::atomic<std::uint32_t> blocking_streams;
  std::atomic<std::uint32_t> brackets;       // begun with events since the last anchor; 0: needs no anchors
  std::atomic<bool> timer_tried;             // one thread loads the kernel
  std::atomic<cuda::Function> timer_kernel;  // set last: reads %globaltimer into timer_host
  volatile std::uint64_t* timer_host;
  cuda::DevicePointer timer_device;

  // Harvester alone
  cuda::Stream private_stream;
  cuda::Event anchor;
  std::int64_t anchor_ns;       // device time of `anchor`
  std::int64_t anchored_at_ns;  // host, CLOCK_MONOTONIC; 0: never
  std::int64_t retry_at_ns;
  bool timer_in_flight, timer_missed;
};

struct StreamState {
  std::atomic<std::uint64_t> look_up;  // look-up key; 0: never used, 1: gone
  cuda::Stream handle;                 // as passed to the driver, default streams by their handles
  std::uint64_t stream_key;
  std::uint64_t handle_key;
  unsigned long long driver_id;  // of this life of the handle, 0 if the driver does not know it
  ContextState* context;
  std::int32_t priority;
  std::uint16_t flags;
  std::atomic<bool> carries_compute;
  std::atomic<bool> blocking;       // joins the legacy stream
  std::atomic<std::uint64_t> last;  // LastWork, packed
  std::atomic<std::uint32_t> open;  // brackets not harvested yet
  // tails.h: the event or bracket behind the last work, works since the last mark, and before marks of each kind plus one
  std::atomic<cuda::Event> tail;
  std::atomic<std::uint32_t> tail_bracket, works_since, works_before[kTailMoments];
  std::uint32_t next_own;  // place + 1 of the owning thread's next default stream, 0: none

  // Harvester alone: brackets in the order in which their last events were recorded
  std::uint32_t first, end;
  bool listed;
};

// Where the default stream of a thread is looked up. Distinct for every thread that Linux can have (the kernel's limit of
// thread ids is 2^22) and place of a context, and from the handles of streams and from legacy streams, whose last two bits
// are 00 and 01. The place stands for the context: both numbers in full have more than 64 bits.
constexpr std::uint64_t own_stream_key(std::uint32_t tid, std::size_t context_place) noexcept {
  static_assert(kMostContexts <= 64);
  return std::uint64_t{tid} << 8 | std::uint64_t{context_place} << 2 | 3;
}

// What is known of the last work on a stream, in one word.
struct LastWork {
  std::uint32_t bracket_id = 0;
  std::uint16_t awaited = 0;
  std::uint16_t copy_code = 0;  // CopyDirection of a copy, below 256
  bool by_wait = false;         // inherited from an event that the stream waited for
  std::uint64_t packed() const noexcept {
    return std::uint64_t{bracket_id} << 32 | std::uint64_t{by_wait} << 24 | std::uint64_t{copy_code} << 16 | awaited;
  }
  static LastWork of(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint16_t>(word),
            static_cast<std::uint16_t>(word >> 16 & 0xff), (word >> 24 & 1) != 0};
  }
};

inline bool has_ended(const StreamState& stream) noexcept {
  return stream.context->life.load(std::memory_order_acquire) >= kEnded;
}

bool is_legacy(const StreamState& stream) noexcept;
StreamState* find_stream(cuda::Stream stream) noexcept;        // null: no context, no room, detached, or refused
StreamState* find_known_stream(cuda::Stream stream) noexcept;  // without asking the driver for more than the context
void forget_stream(cuda::Stream stream) noexcept;
void forget_own_streams() noexcept;  // the calling thread ends, and its default streams with it
void set_carries_compute(StreamState& stream) noexcept;
bool blocking_stream_exists(const StreamState& stream) noexcept;  // in its context
// A stream was made by the code at that address: of the first blocking one, the file and, if known, the function are kept.
void note_maker(const StreamState& stream, const void* address) noexcept;
const char* maker() noexcept;  // words for that

ContextState* find_context(cuda::Context context) noexcept;  // null: no context, no room, or the driver refused
ContextState* context_at(std::size_t i) noexcept;            // null past the last
// The context was destroyed. Its streams are not found any more; `forget` is called with the key of each.
void end_context(ContextState& context, void (*forget)(std::uint64_t stream_key)) noexcept;
void end_unseen(ContextState& context) noexcept;  // ending.cpp: an answer of the driver says that it was destroyed
bool has_open_brackets(const ContextState& context) noexcept;
void free_context(ContextState& context) noexcept;       // it has ended and has no open brackets
bool is_primary_active(cuda::Device device) noexcept;    // true also where the driver does not know
cuda::Event take_event(ContextState& context) noexcept;  // null if the driver gives none
void give_event(ContextState& context, cuda::Event event) noexcept;
void drop_events(ContextState& context) noexcept;  // the context was reset: their handles mean nothing now

#pragma GCC visibility pop

}  // namespace stashtrace::device
