// Implementation of hazards.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/hazards.h"

#include <sys/statfs.h>

#include <atomic>

#include "collectors/nccl/functions.h"
#include "collectors/nccl/plugin.h"
#include "collectors/nccl/room.h"
#include "core/raw_syscall.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl::hazards {

namespace {

// The crash reports have Docker's default of 64 MiB; what NCCL itself takes of it depends on ranks and channels.
constexpr std::uint64_t kEnoughSharedBytes = 128u << 20;
constexpr int kShiftFirst = 22900, kShiftEnd = 23200, kCostlyFirst = 23100;

constinit bool g_allgatherv_off = false;
constinit std::atomic<bool> g_told_shift{false};

std::uint64_t free_shared_bytes() noexcept {
  struct statfs shm{};
  if (raw::call(SYS_statfs, raw::address("/dev/shm"), raw::address(&shm)) != 0) return 0;
  return static_cast<std::uint64_t>(shm.f_bavail) * static_cast<std::uint64_t>(shm.f_bsize);
}

}  // namespace

void set_allgatherv_off(bool off) noexcept { g_allgatherv_off = off; }

bool stamps_are_safe(int plugin_version) noexcept {
  if (plugin_version < 4) return false;
  if (free_shared_bytes() < kEnoughSharedBytes) {
    report_loss(
        kCollectorCode, "shm_too_small", 1,
        "less than 128 MiB free in /dev/shm: NCCL's device stamps are off, since it can crash with them; hint: --shm-size=1g",
        schema::codes::Severity::error);
    return false;
  }
  const bool other_source = settings.source == NcclSource::automatic && device::timing_allowed();
  if (other_source && (plugin_version >= 7 || nccl_version() >= kCostlyFirst)) {
    report_loss(
        kCollectorCode, "stamps_cost", 0,
        "NCCL 2.31 takes several percent for device stamps: events are used instead; --nccl-source plugin asks for stamps",
        schema::codes::Severity::info);
    return false;
  }
  return true;
}

bool broadcast_shifts_stamps() noexcept {
  if (g_allgatherv_off || !plugin::wants_stamps()) return false;
  const int version = nccl_version();
  // An NCCL that does not tell its version (static) is judged by its plugin interface.
  const bool hit = version != 0 ? version >= kShiftFirst && version < kShiftEnd : plugin::version() >= 6;
  if (hit && !g_told_shift.exchange(true))
    report_loss(
        kCollectorCode, "stamps_shifted", 1,
        "NCCL 2.29 to 2.31 gives wrong device stamps after a broadcast: not used there; hint: NCCL_ALLGATHERV_ENABLE=0",
        schema::codes::Severity::error);
  return hit;
}

}  // namespace stashtrace::nccl::hazards
