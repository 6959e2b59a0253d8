// Implementation of late_launches.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/late_launches.h"

#include <atomic>

#include "collectors/nccl/nccl_collector.h"

namespace stashtrace::nccl {

namespace {

// A communicator has one call or group under way, a group as many brackets as streams.
constexpr unsigned kMost = 256;
const Comm kTaken = reinterpret_cast<Comm>(1);  // a thread fills or empties the place

struct Place {
  std::atomic<Comm> comm;  // null: free
  Launch launch;
};
constinit Place g_places[kMost] = {};
constinit std::atomic<std::uint32_t> g_kept{0};

bool take(Place& place, Comm comm) noexcept {
  return place.comm.compare_exchange_strong(comm, kTaken, std::memory_order_acquire, std::memory_order_relaxed);
}

void give_back(Place& place) noexcept {
  place.comm.store(nullptr, std::memory_order_release);
  g_kept.fetch_sub(1, std::memory_order_relaxed);
}

void lose(const Launch& launch) noexcept {
  count(Count::late_launch);
  device::bracket_end(launch.begun, {.size_bytes = launch.message_bytes,
                                     .flags = device::bracket_flag::untimed | device::bracket_flag::late_launch});
}

void keep(const Launch& launch) noexcept {
  for (Place& place : g_places) {
    if (!take(place, nullptr)) continue;
    place.launch = launch;
    g_kept.fetch_add(1, std::memory_order_relaxed);
    place.comm.store(launch.comm, std::memory_order_release);
    return;
  }
  lose(launch);
}

// Calls `with` for each bracket that is kept of a communicator, of all for null.
template <class With>
void for_each_kept(Comm comm, With with) noexcept {
  if (g_kept.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  for (Place& place : g_places) {
    const Comm there = place.comm.load(std::memory_order_relaxed);
    if (there == nullptr || there == kTaken || (comm != nullptr && there != comm) || !take(place, there)) continue;
    const Launch launch = place.launch;
    give_back(place);
    with(launch);
  }
}

}  // namespace

void end_bracket(const Launch& launch, Result result) noexcept {
  const bool failed = result != kSuccess && result != kInProgress;
  if (failed) return device::bracket_cancel(launch.begun);
  // The end of what is launched later is marked by the job's event behind it, if by nothing else.
  const bool late = result == kInProgress;
  if (!late) device::bracket_end(launch.begun, {.size_bytes = launch.message_bytes});
  device::note_work(launch.stream, device::awaited_code::collective, late ? 0 : launch.begun.bracket_id);
  if (late && launch.begun.bracket_id != 0) keep(launch);
}

void end_late_launches(Comm comm, Result state) noexcept {
  for_each_kept(comm, [=](const Launch& launch) {
    if (state != kSuccess) return device::bracket_cancel(launch.begun);
    if (!device::bracket_launched(launch.begun, device::awaited_code::collective, {.size_bytes = launch.message_bytes}))
      count(Count::late_launch);
  });
}

void lose_late_launches(Comm comm) noexcept { for_each_kept(comm, lose); }

void forget_late_launches() noexcept {
  if (g_kept.load(std::memory_order_relaxed) == 0) return;  // a child copies no pages for nothing
  for (Place& place : g_places) place.comm.store(nullptr, std::memory_order_relaxed);
  g_kept.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace::nccl
