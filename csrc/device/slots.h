// Brackets between their first event and their row. SPDX-License-Identifier: Apache-2.0
//
// Callers: timeline.cpp fills a slot on a job thread and submits it; the harvester owns it from then on until it gives
// it back. Slots are numbered from 1. Memory is touched as it is first used.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/streams.h"
#include "schema/schema.h"

namespace stashtrace::device {

#pragma GCC visibility push(hidden)

inline constexpr std::uint32_t kMostSlots = 16384;

struct Slot {
  schema::DeviceBracket row;
  cuda::Event first, second;  // null: none; a mark has only the first
  StreamState* stream;
  std::uint32_t first_as, second_as;   // without an event: the moment at which that bracket ended; 0: none
  std::uint32_t awaited_mark;          // bracket whose end is the end of the awaited work
  std::uint32_t next;                  // harvester: behind this one on the same stream
  std::atomic<std::uint32_t> open_id;  // bracket_id between begin and end, else 0
  std::uint32_t rounds;                // harvester: how often it was postponed
};

Slot& slot_at(std::uint32_t number) noexcept;
std::uint32_t take_slot() noexcept;  // kNone if all are in use
void give_slot(std::uint32_t number) noexcept;
void submit(std::uint32_t number) noexcept;  // to the harvester
std::uint32_t next_submitted() noexcept;     // kNone if there is none
std::uint64_t submitted_count() noexcept;    // since the process began
std::uint32_t new_bracket_id() noexcept;

// Counted by job threads, reported by the harvester.
struct Counters {
  std::atomic<std::uint64_t> no_slot, thinned_steps, legacy_refused, failed, context_ended;
  std::atomic<std::uint32_t> stride;  // only each stride-th step has timing events; 0 and 1: all
};
extern constinit Counters counters;

// Which steps have timing events, so that their number per second stays within the budget.
namespace budget {
void spend(std::uint32_t events) noexcept;
bool step_is_timed() noexcept;
void step_ends(std::uint64_t number) noexcept;  // the job marked a step
void second_ends() noexcept;                    // the harvester, for jobs that mark none
}  // namespace budget

#pragma GCC visibility pop

}  // namespace stashtrace::device
