// The shapes that hooks are made of: call the real function between two clock readings, record.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_*.cpp. A shape never changes a result or errno, and does nothing when the collector is off.
// Not noexcept and no state across the call: a cancelled thread or a longjmp out of a signal handler leaves through
// here (that call is then not recorded). Nothing here locks or allocates; intern() and the evidence only run after
// opens, path calls and slow calls.
#pragma once

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "collectors/posix_io/evidence.h"
#include "collectors/posix_io/fd_table.h"
#include "core/clock.h"
#include "runtime/emit.h"
#include "schema/schema.h"

namespace stashtrace::posix_io {

namespace op = schema::codes::IoOp;
namespace flag = schema::codes::IoFlag;

inline bool on() noexcept { return hot.enabled.load(std::memory_order_relaxed); }

// How one call went, for the out-of-line half of recording.
struct Finished {
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;
  std::int64_t offset_bytes;
  std::int64_t result_bytes;  // bytes, or minus errno
  std::uint64_t word;         // path and flags, as in FdEntry
  std::uint16_t op_code;
};

// Any call: slow, failed, large, first of its thread, ... Keeps errno.
void record(const Finished& call) noexcept;
// Same for a call that answers -1 with errno; returns its result, so that it can be the last thing a hook does.
ssize_t record_and_return(std::uint64_t begin_ticks, std::uint64_t end_ticks, std::int64_t offset_bytes, ssize_t result,
                          std::uint64_t word, std::uint16_t op_code) noexcept;
// Call on a path: the name is made absolute and interned now, after the call. Keeps errno.
void record_named(std::uint16_t op_code, int dirfd, const char* path, std::uint64_t begin_ticks,
                  std::uint64_t end_ticks, std::int64_t result) noexcept;

inline std::int64_t or_errno(std::int64_t result) noexcept { return result >= 0 ? result : -errno; }

inline void record(std::uint16_t op_code, std::uint64_t word, std::int64_t offset_bytes, std::uint64_t begin,
                   std::uint64_t end, std::int64_t result_bytes) {
  record({begin, end, offset_bytes, result_bytes, word, op_code});
}

// Ticks at which the call begins; takes a baseline first where one is due.
inline std::uint64_t begin_call(std::size_t bytes) {
  const std::uint64_t begin = now_ticks();
  return begin >= evidence.due_ticks || bytes >= kLargeBytes ? take_baseline() : begin;
}

// --- read, pread, write, ...: the hot half ---------------------------------------------------------------------
//
// Each shape has a plain path, inlined into the hook, with nothing in it that could need more than a few registers:
// two clock readings, the entry of the descriptor, one row. Whatever is not plain (collector off, descriptor not
// known yet, baseline due, large, slow, failed, ring missing or full) leaves it by a call to an out-of-line twin, with
// the user's arguments: a closure would have to be built on the stack each time. kReal is the pointer of the real
// function: it takes fd, then the rest. Kernel and libc move at most 0x7ffff000 bytes at once: result_bytes suffices.

// Neither on() nor the clock is asked here: no descriptor is known before the collector was on, nothing is recorded
// after it went off, and without a trusted counter a baseline is always due.
inline bool is_plain(std::uint64_t word) noexcept { return (word & (kKnown | kOurs)) == kKnown && recording_already(); }

[[gnu::always_inline]] inline ssize_t finish_plain(std::uint16_t op_code, std::uint64_t word, std::int64_t offset_bytes,
                                                   std::uint64_t begin, std::uint64_t end, ssize_t result) {
  const std::uint64_t duration = end - begin;
  const std::uint64_t duration_result = duration | static_cast<std::uint64_t>(result) << 32;
  const std::uint64_t path_op_flags =
      path_of(word) | static_cast<std::uint64_t>(op_code) << 32 | static_cast<std::uint64_t>(flags_of(word)) << 48;
  if (result >= 0 && duration <= hot.slow_ticks &&
      emit_if_plain<schema::IoOp>(begin, static_cast<std::uint64_t>(offset_bytes), duration_result, path_op_flags))
      [[likely]]
    return result;
  return record_and_return(begin, end, offset_bytes, result, word, op_code);
}
static_assert(sizeof(schema::IoOp) == 32 && offsetof(schema::IoOp, offset_bytes) == 8 &&
              offsetof(schema::IoOp, duration_ticks) == 16 && offsetof(schema::IoOp, result_bytes) == 20 &&
              offsetof(schema::IoOp, path_id) == 24 && offsetof(schema::IoOp, op_code) == 28 &&
              offsetof(schema::IoOp, io_flags) == 30 && std::endian::native == std::endian::little);

template <std::uint16_t kOp, auto& kReal, class... A>
[[gnu::noinline]] ssize_t on_descriptor_slowly(std::int64_t offset_bytes, std::size_t bytes, int fd, A... rest) {
  if (!on() || !recording()) return kReal(fd, rest...);
  const std::uint64_t word = word_for_use(fd, fd_table.at(fd));
  if ((word & kOurs) != 0) return kReal(fd, rest...);
  const std::uint64_t begin = begin_call(bytes);
  const ssize_t result = kReal(fd, rest...);
  return record_and_return(begin, now_ticks(), offset_bytes, result, word, kOp);
}

// A call on a descriptor at a known place (pread, fsync, recv, ...): offset_bytes is -1 where it has none.
// `bytes` is what it may copy at most.
template <std::uint16_t kOp, auto& kReal, class... A>
[[gnu::always_inline]] inline ssize_t on_descriptor(std::int64_t offset_bytes, std::size_t bytes, int fd, A... rest) {
  if (paused()) return kReal(fd, rest...);
  const std::uint64_t word = fd_table.near(fd).word.load(std::memory_order_relaxed);
  if (is_plain(word)) [[likely]] {
    const std::uint64_t begin = counter_ticks();
    if (begin < evidence.due_ticks && bytes < kLargeBytes) [[likely]] {
      const ssize_t result = kReal(fd, rest...);
      return finish_plain(kOp, word, offset_bytes, begin, counter_ticks(), result);
    }
  }
  return on_descriptor_slowly<kOp, kReal>(offset_bytes, bytes, fd, rest...);
}

inline std::uint16_t op_on(std::uint64_t word, std::uint16_t op_code, std::uint16_t socket_op) noexcept {
  return (flags_of(word) & flag::socket) != 0 ? socket_op : op_code;
}

template <std::uint16_t kOp, std::uint16_t kSocketOp, auto& kReal, class... A>
[[gnu::noinline]] ssize_t at_position_slowly(std::size_t bytes, int fd, A... rest) {
  if (!on() || !recording()) return kReal(fd, rest...);
  FdEntry& entry = fd_table.at(fd);
  const std::uint64_t word = word_for_use(fd, entry);
  if ((word & kOurs) != 0) return kReal(fd, rest...);
  const std::uint64_t begin = begin_call(bytes);
  const ssize_t result = kReal(fd, rest...);
  const std::uint64_t end = now_ticks();
  return record_and_return(begin, end, entry.advance(result), result, word, op_on(word, kOp, kSocketOp));
}

// A call that moves the descriptor's position (read, write, readv, writev). On a socket it is kSocketOp.
template <std::uint16_t kOp, std::uint16_t kSocketOp, auto& kReal, class... A>
[[gnu::always_inline]] inline ssize_t at_position(std::size_t bytes, int fd, A... rest) {
  if (paused()) return kReal(fd, rest...);
  FdEntry& entry = fd_table.near(fd);
  const std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  if (is_plain(word)) [[likely]] {
    const std::uint64_t begin = counter_ticks();
    if (begin < evidence.due_ticks && bytes < kLargeBytes) [[likely]] {
      const ssize_t result = kReal(fd, rest...);
      const std::uint64_t end = counter_ticks();
      return finish_plain(op_on(word, kOp, kSocketOp), word, entry.advance(result), begin, end, result);
    }
  }
  return at_position_slowly<kOp, kSocketOp, kReal>(bytes, fd, rest...);
}

// A call on a path, with -1 for failure.
template <class Call>
inline auto on_path(std::uint16_t op_code, int dirfd, const char* path, Call call) {
  if (!on() || !recording()) [[unlikely]]
    return call();
  const std::uint64_t begin = begin_call(0);
  const auto result = call();
  const std::uint64_t end = now_ticks();
  record_named(op_code, dirfd, path, begin, end, result >= 0 ? 0 : -errno);
  return result;
}

}  // namespace stashtrace::posix_io
