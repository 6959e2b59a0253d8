// When a Work of gloo ends, written by the thread of gloo that runs it.
// SPDX-License-Identifier: Apache-2.0
//
// c10d's future reports an end to Python by a callback, which takes the GIL from the step thread at each collective. The
// hook of AsyncWork::execute sees begin and end of each Work instead, and learns from the first callback of a class how
// its objects are laid out. Callers: csrc/python/works.cpp. Any thread; no lock, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::gloo {

// A collective whose call has returned.
struct Collective {
  std::uint64_t call_ticks, return_ticks;
  std::uint32_t id;
};

// The Work that this thread runs, null outside of one.
const void* running_work() noexcept;

// Called in a callback of the future of the Work that this thread runs: from now on, ends of Works of its
// class can be written here.
void learn_from_callback() noexcept;

// Writes collective_done when the Work ends, now if it has ended. False: its class is unknown, or too many are in
// flight; nothing will be written.
bool follow(const void* work, const Collective& collective) noexcept;

// Followed Works that have not ended.
std::size_t in_flight_count() noexcept;

// For a forked child, which has no thread of gloo.
void forget() noexcept;

}  // namespace stashtrace::gloo
