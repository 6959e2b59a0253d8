// The thread that polls timing events and writes rows. SPDX-License-Identifier: Apache-2.0
//
// Callers: timeline.cpp starts it with the first bracket, stop() ends it. It never synchronises with a device, uses
// relaxed capture mode, and holds no lock when it calls CUDA. Anchors (anchors.cpp) run on it.
#pragma once

#include <cstdint>

#include "device/streams.h"

namespace stashtrace::device {

#pragma GCC visibility push(hidden)

void start_harvester() noexcept;  // at a safe point; idempotent
void stop_harvester() noexcept;
bool harvester_runs() noexcept;
void wake_harvester() noexcept;

// Replaces std::llround: the library needs libc only, not libm.
constexpr std::int64_t rounded_ns(double ms) noexcept {
  return static_cast<std::int64_t>(ms * 1e6 + (ms < 0 ? -0.5 : 0.5));
}

// On the harvester's thread: sets its capture mode, once. False: the driver refuses that, so it must ask for no event.
bool stays_out_of_captures() noexcept;

// In timeline.cpp: forgets events that were recorded on a stream that is gone with its context.
void forget_events_on(std::uint64_t stream_key) noexcept;

// anchors.cpp, on the harvester's thread. True if `context` has an anchor to measure from.
bool keep_anchored(ContextState& context, std::int64_t now_ns, bool last_chance) noexcept;
void lose_anchor(ContextState& context) noexcept;  // its handles are no longer valid
// Device time of a completed event, 0 if the driver refuses.
std::int64_t event_ns(const ContextState& context, cuda::Event event) noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::device
