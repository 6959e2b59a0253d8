// When the legacy default stream had done its work, next to blocking streams. SPDX-License-Identifier: Apache-2.0
//
// What is put on the legacy stream waits for all blocking streams of its context, and what they get later waits for it
// (CUDA Runtime API, "Stream synchronization behavior"; cuda.h names cuEventRecord and cuStreamWaitEvent among it). An
// event directly in front of the job's work there, or behind it, joins nothing that this work does not join. One
// between them does: so a step or batch wait, which stands next to no work, gets the event behind the work before it.
//
//   legacy     kernel kernel|E           kernel       E: behind the last work
//   host                        step ^                the step ends when E is done, at the call at the earliest
//
// Which work is the last is known only when the mark comes. So events are recorded from the work on that was the last in
// earlier rounds; they move one event on. Callers: timeline.cpp and streams.cpp, job threads.
#pragma once

#include <cstdint>

#include "device/streams.h"

namespace stashtrace::device::tails {

#pragma GCC visibility push(hidden)

bool are_needed(const StreamState& stream) noexcept;  // legacy, next to a blocking stream, and events are not forced
// Work was put on such a stream; the bracket's second event stands behind it, 0: none.
void note_work(StreamState& stream, std::uint32_t bracket_id) noexcept;

// The event behind the last work, or the bracket whose end it is; neither: not known.
struct Tail {
  cuda::Event event = nullptr;
  std::uint32_t bracket_id = 0;
};
// For the first (`at` 0) or second (1) moment of the bracket `own`; marks of one kind come after equal amounts of work.
Tail take(StreamState& stream, std::uint16_t kind, unsigned at, std::uint32_t own) noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::device::tails
