// Timing events for work on devices: the interface of the collectors cuda, nccl and cupti. SPDX-License-Identifier: Apache-2.0
//
// A bracket is two events on a stream around something the host asked for; a harvester thread polls them, writes rows.
// Callers are hooks on the job's threads. No function waits for a device, allocates once the pool is warm, or takes a
// lock that is held around a call of CUDA; all do nothing without a driver, in a forked child, and after stop().
// Only the stream's context is used; none is created, retained or made current for longer than a call.
#pragma once

#include <cstdint>

#include "schema/schema.h"

namespace stashtrace {
class Context;
}

namespace stashtrace::device {

#pragma GCC visibility push(hidden)

using Stream = void*;  // CUstream == cudaStream_t; 0 is the legacy default stream, kPerThreadStream the thread's own
namespace bracket_code = schema::codes::Bracket;
namespace awaited_code = schema::codes::Awaited;
namespace bracket_flag = schema::codes::BracketFlag;

bool available() noexcept;  // a driver was found and a context is current on this thread
bool timing_allowed() noexcept;  // false: CUDA_DEVICE_MAX_CONNECTIONS=1 without STASHTRACE_FORCE_EVENTS=1, or a driver too old
bool capturing(Stream stream) noexcept;  // also true when the answer is "invalidated" or "implicit": back off

std::uint64_t stream_key(Stream stream) noexcept;   // writes stream_info at first sight; 0 only if unknown
std::int32_t device_index(Stream stream) noexcept;  // -1 if unknown
std::int32_t current_device() noexcept;             // of the calling thread's context, -1 if there is none

struct Begin {
  std::uint32_t bracket_id = 0;  // 0: nothing was begun
  std::uint32_t slot = 0;        // for bracket_end() alone
  bool stream_unknown =
      false;  // a default stream on a thread without a context: begin again, untimed, when the call has made one
};

struct BracketExtra {
  std::int64_t size_bytes = 0;
  std::uint16_t copy_code = 0;
  std::uint16_t awaited = 0;          // Awaited
  std::uint32_t awaited_bracket = 0;  // stream_wait: becomes correlation_id, and awaited_device_ns is looked up by it
  std::uint16_t flags = 0;            // BracketFlag bits, added to those of bracket_begin
  bool has_correlation = false;       // `correlation` takes the place of what bracket_begin was given
  std::uint64_t correlation = 0;
  std::uint64_t call_ticks = 0;  // when the call began, where that was before bracket_begin
};

// Records the first event on `stream`. If events are not allowed, during capture, or over budget, the bracket begins
// without events and its row is flagged untimed.
Begin bracket_begin(std::uint16_t kind, Stream stream, std::uint64_t correlation, std::uint16_t flags) noexcept;
// Records the second event and the moment of return; the harvester writes the row when both events are done.
void bracket_end(Begin begin, const BracketExtra& extra) noexcept;
// The same for a launch that another thread made after the call had returned, by now: the bracket is timed only if its
// stream was given nothing else since note_work(stream, awaited, 0). Returns whether it may have times.
bool bracket_launched(Begin begin, std::uint16_t awaited, BracketExtra extra) noexcept;
// The call failed before it launched anything: no row.
void bracket_cancel(Begin begin) noexcept;

// Records one event: step, mark or awaited; returns its id, 0 if none. A step or batch_wait marks a compute stream.
std::uint32_t mark(std::uint16_t kind, Stream stream, std::uint64_t correlation) noexcept;

// Notes the last work on this stream: it decides `awaited_code` of later waits for it, and `copy_code` if it is a copy.
void note_work(Stream stream, std::uint16_t awaited, std::uint32_t bracket_id, std::uint16_t copy_code = 0) noexcept;

// For calls of cudaEventRecord and cudaStreamWaitEvent by the job; the collector cuda does, others may. Call it before the
// real call. False: the stream is not known yet; then call it again afterwards, when no mark of ours can go in front.
bool note_event_record(void* event, Stream stream, bool afterwards = false) noexcept;
void note_event_gone(void* event) noexcept;
struct Wait {
  Begin begin;
  std::uint16_t awaited = 0;
  std::uint32_t awaited_bracket = 0;
  std::uint16_t copy_code = 0;
};
Wait wait_begin(Stream stream, void* event, std::uint16_t flags = 0) noexcept;
void wait_end(const Wait& wait, Stream stream, bool succeeded, std::uint64_t call_ticks = 0) noexcept;

// A stream was made or destroyed: its handle may come back for another stream.
// `maker`: an address in the code that made it.
void note_stream_created(Stream stream, const void* maker) noexcept;
void note_stream_gone(Stream stream) noexcept;
// The stream was made in an execution context of the runtime, which reveals its driver's context in no other way.
void note_execution_context(Stream stream, void* handle) noexcept;

// Loads the kernel that reads %globaltimer into the calling thread's context. Must be called while no kernel of NCCL can spin
// on its device (loading a module while one does can deadlock); later calls on the same context do nothing. From then on
// globaltimer readings are taken with the event anchors.
void prepare_globaltimer() noexcept;

// During its lifetime a library makes CUDA calls for a call that is already recorded: hooks pass them through.
class Inside {
 public:
  Inside() noexcept;
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  static bool already() noexcept;
};

// Collectors that use events call it in their start(); cheap, idempotent, touches no driver.
void use(Context& context) noexcept;
// Harvests what is done and gives up the rest; waits for neither a device nor the harvester for longer than 50 ms.
void stop() noexcept;
// For a call by which the job destroys contexts, with all events and streams in them. Finished brackets are harvested
// first; until the outcome is reported, and for ever if they ended, the driver is not asked about them. Work in flight
// is written without times and counted. Other contexts, and the next one with the same pointer, are recorded as ever.
class EndingContexts {
 public:
  static EndingContexts with_handle(void* context) noexcept;
  static EndingContexts of_device(int device) noexcept;  // those that may be its primary one
  static EndingContexts of_current_device() noexcept;    // null context: of whichever device turns out to be reset
  // Green contexts hold the primary context of their device, which ends with its last holder.
  static EndingContexts of_green_context(void* green) noexcept;
  static EndingContexts of_execution_context(void* handle) noexcept;

  void ended() const noexcept;              // the call has destroyed them
  void ended_if_inactive() const noexcept;  // those of devices that have no primary context now
  void kept() const noexcept;               // it was refused

 private:
  explicit EndingContexts(std::uint32_t held, std::uint32_t perhaps) noexcept : held_(held), perhaps_(perhaps) {}
  std::uint32_t held_;     // bits of the table of contexts: they end
  std::uint32_t perhaps_;  // and those that end if their devices have no primary context then
};
void after_fork() noexcept;  // no CUDA in the child of a process that used it

#pragma GCC visibility pop

}  // namespace stashtrace::device
