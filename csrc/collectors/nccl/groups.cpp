// Groups: one pair of events per stream around the outermost ncclGroupEnd. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/groups.h"

#include <sys/mman.h>

#include "collectors/nccl/late_launches.h"
#include "collectors/nccl/nccl_collector.h"
#include "core/futex_lock.h"
#include "core/raw_syscall.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl {

namespace {

constexpr unsigned kBuffers = 32;  // threads with a group open at the same time
constexpr unsigned kCalls = 2048;  // operations of one group: an all-to-all of 1,024 ranks
constexpr unsigned kStreams = 64;
constexpr unsigned kComms = 64;

struct StreamUse {
  Stream stream;
  Comm comm;  // of the first operation: all communicators of a group are launched together
  std::uint32_t first_call_id;
  std::int64_t message_bytes;
  bool wants_events, captured;
  device::Begin begun;
};
struct Made {
  Comm* where;
  Comm comm;  // null: NCCL fills it in when the group ends. Else the program's variable may be gone by then
  NewComm facts;
};
struct Counted {
  CommEntry* entry;
  std::uint32_t calls;
};
struct Buffer {
  std::uint32_t calls_count, streams_count, made_count, counted_count, batch_id;
  schema::NcclCall calls[kCalls];
  StreamUse streams[kStreams];
  Made made[kComms];
  Counted counted[kComms];
};

constinit std::atomic<Buffer*> g_buffers{nullptr};
constinit std::atomic<std::uint32_t> g_taken{0};  // bit = buffer in use
constinit FutexLock g_lock;

Buffer* buffers() noexcept {
  if (Buffer* made = g_buffers.load(std::memory_order_acquire)) return made;
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  Buffer* made = g_buffers.load(std::memory_order_relaxed);
  if (made == nullptr) {
    made = static_cast<Buffer*>(raw::mmap(nullptr, sizeof(Buffer) * kBuffers, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    g_buffers.store(made, std::memory_order_release);
  }
  g_lock.unlock();
  return made;
}

Buffer* own_buffer() noexcept { return thread.group == 0 ? nullptr : buffers() + (thread.group - 1); }

std::uint16_t take_buffer() noexcept {
  Buffer* all = buffers();
  if (all == nullptr) return 0;
  std::uint32_t taken = g_taken.load(std::memory_order_relaxed);
  while (taken != ~0u) {
    const unsigned index = static_cast<unsigned>(__builtin_ctz(~taken));
    if (!g_taken.compare_exchange_weak(taken, taken | 1u << index, std::memory_order_acquire)) continue;
    Buffer& fresh = all[index];
    fresh.calls_count = fresh.streams_count = fresh.made_count = fresh.counted_count = 0;
    fresh.batch_id = new_batch_id();
    return static_cast<std::uint16_t>(index + 1);
  }
  return 0;
}

void free_buffer(std::uint16_t group) noexcept {
  if (group != 0) g_taken.fetch_and(~(1u << (group - 1)), std::memory_order_release);
}

StreamUse* use_of(Buffer& buffer, Stream stream) noexcept {
  for (unsigned i = 0; i < buffer.streams_count; ++i)
    if (buffer.streams[i].stream == stream) return &buffer.streams[i];
  if (buffer.streams_count == kStreams) return nullptr;
  StreamUse& use = buffer.streams[buffer.streams_count++];
  use = {};
  use.stream = stream;
  return &use;
}

void lose(const schema::NcclCall& row) noexcept {
  count(Count::group_full);
  emit(row);
}

}  // namespace

void keep_in_group(const schema::NcclCall& row, Comm comm, Stream stream, bool wants) noexcept {
  Buffer* buffer = own_buffer();
  StreamUse* use = buffer != nullptr && buffer->calls_count < kCalls ? use_of(*buffer, stream) : nullptr;
  if (use == nullptr) return lose(row);
  if (use->first_call_id == 0) {
    use->first_call_id = row.call_id;
    use->comm = comm;
  }
  use->message_bytes += row.message_bytes;
  use->wants_events = use->wants_events || wants;
  use->captured = use->captured || (row.nccl_flags & nccl_flag::captured) != 0;
  schema::NcclCall& kept = buffer->calls[buffer->calls_count++];
  kept = row;
  kept.batch_id = buffer->batch_id;
}

void count_in_group(CommEntry* entry) noexcept {
  Buffer* buffer = own_buffer();
  if (buffer == nullptr || entry == nullptr) return;
  for (unsigned i = 0; i < buffer->counted_count; ++i)
    if (buffer->counted[i].entry == entry) {
      ++buffer->counted[i].calls;
      return;
    }
  if (buffer->counted_count < kComms) buffer->counted[buffer->counted_count++] = {entry, 1};
}

void group_began(Result result) noexcept {
  if (result != kSuccess) return;
  if (thread.depth++ == 0 && thread.group == 0) thread.group = take_buffer();
}

bool group_open() noexcept { return thread.depth > 0; }

bool await_comm(Comm* where, const NewComm& facts) noexcept {
  Buffer* buffer = own_buffer();
  if (buffer == nullptr || buffer->made_count == kComms) return false;
  buffer->made[buffer->made_count++] = {where, *where, facts};
  return true;
}

EndingGroup group_ends(bool simulated) noexcept {
  EndingGroup group{thread.depth == 1, thread.group, now_ticks()};
  Buffer* buffer = own_buffer();
  if (!group.outermost || simulated || buffer == nullptr) return group;
  for (unsigned i = 0; i < buffer->streams_count; ++i) {
    StreamUse& use = buffer->streams[i];
    if (!use.wants_events) continue;
    const auto flags =
        static_cast<std::uint16_t>(device::bracket_flag::grouped | (use.captured ? device::bracket_flag::captured : 0));
    use.begun = device::bracket_begin(device::bracket_code::collective, use.stream, use.first_call_id, flags);
  }
  return group;
}

void group_ended(const EndingGroup& group, Result result, bool simulated) noexcept {
  // NCCL closes its group whatever it returns, except for a call without a group.
  if (thread.depth > 0) --thread.depth;
  if (!group.outermost) return;
  thread.group = 0;
  if (group.buffer == 0) return;
  Buffer& buffer = buffers()[group.buffer - 1];
  const std::uint64_t returned = now_ticks();
  const bool failed = result != kSuccess && result != kInProgress;
  if (simulated) {  // nothing was launched, and the next real group starts with the same numbers
    for (unsigned i = 0; i < buffer.counted_count; ++i)
      buffer.counted[i].entry->sequence.fetch_sub(buffer.counted[i].calls, std::memory_order_relaxed);
    free_buffer(group.buffer);
    return;
  }
  for (unsigned i = 0; i < buffer.streams_count; ++i) {
    StreamUse& use = buffer.streams[i];
    end_bracket({use.comm, use.stream, use.begun, use.message_bytes}, result);
  }
  for (unsigned i = 0; i < buffer.calls_count; ++i) {
    schema::NcclCall& row = buffer.calls[i];
    row.return_ticks = returned;
    if (buffer.calls_count == 1) row.batch_id = 0;
    finish_row(row, result);
    emit(row);
  }
  for (unsigned i = 0; i < buffer.made_count; ++i) {
    Made& made = buffer.made[i];
    made.facts.end_ticks = returned;
    if (failed) continue;
    if (made.comm == nullptr) made.comm = *made.where;
    if (made.comm != nullptr) add_comm(made.comm, made.facts);
    else if (result == kInProgress) promise_comm(made.facts);
  }
  free_buffer(group.buffer);
}

void forget_groups() noexcept {
  g_lock.reset();
  g_taken.store(0, std::memory_order_relaxed);
  const bool inside = thread.inside;  // the hook that is on the stack restores it itself
  thread = {};
  thread.inside = inside;
}

}  // namespace stashtrace::nccl
