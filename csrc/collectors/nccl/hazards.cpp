// Implementation of hazards.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/hazards.h"

#include <sys/statfs.h>

#include <atomic>

#include "collectors/nccl/functions.h"
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin.h"
#include "core/raw_syscall.h"
#include "device/timeline.h"
#include "runtime/emit.h"

#define STASHTRACE_USE_EVENTS \
  "hint: --nccl-source auto; with CUDA_DEVICE_MAX_CONNECTIONS=1 also STASHTRACE_FORCE_EVENTS=1"

namespace stashtrace::nccl::hazards {

namespace {

// The crash reports have Docker's default of 64 MiB; what NCCL itself takes of it depends on ranks and channels.
constexpr std::uint64_t kEnoughSharedBytes = 128u << 20;
constexpr int kShiftFirst = 22900;

constinit bool g_allgatherv_off = false;
constinit std::atomic<bool> g_reported_broadcast{false}, g_reported_message{false};

std::uint64_t free_shared_bytes() noexcept {
  struct statfs shm{};
  if (raw::call(SYS_statfs, raw::address("/dev/shm"), raw::address(&shm)) != 0) return 0;
  return static_cast<std::uint64_t>(shm.f_bavail) * static_cast<std::uint64_t>(shm.f_bsize);
}

}  // namespace

void set_allgatherv_off(bool off) noexcept { g_allgatherv_off = off; }

bool stamps_are_needed() noexcept {
  return settings.source == NcclSource::plugin ||
         (settings.source == NcclSource::automatic && !device::timing_allowed());
}

bool stamps_are_wanted(int plugin_version) noexcept {
  if (plugin_version < 4 || !stamps_are_needed()) return false;
  if (free_shared_bytes() < kEnoughSharedBytes) {
    report_loss(
        kCollectorCode, "shm_too_small", 1,
        "less than 128 MiB free in /dev/shm: NCCL's device stamps are off, since it can crash with them; hint: --shm-size=1g",
        schema::codes::Severity::error);
    return false;
  }
  return true;
}

bool broadcast_shifts_stamps() noexcept {
  if (g_allgatherv_off || !plugin::wants_stamps()) return false;
  const int version = nccl_version();
  // An NCCL that does not report its version (static) is judged by its plugin interface.
  const bool hit = version != 0 ? version >= kShiftFirst : plugin::version() >= 6;
  if (hit && !g_reported_broadcast.exchange(true))
    report_loss(
        kCollectorCode, "stamps_shifted", 1,
        "NCCL 2.29 and later gives wrong device stamps after a broadcast: not used there; hint: NCCL_ALLGATHERV_ENABLE=0",
        schema::codes::Severity::error);
  return hit;
}

bool message_shifts_stamps(int plugin_version, bool to_itself) noexcept {
  if (!to_itself || plugin_version >= 7 || !plugin::wants_stamps()) return false;
  if (!g_reported_message.exchange(true))
    report_loss(
        kCollectorCode, "stamps_shifted", 1,
        "NCCL before 2.31 gives wrong device stamps after a message of a rank to itself, as in an all-to-all: not "
        "used there; " STASHTRACE_USE_EVENTS,
        schema::codes::Severity::error);
  return true;
}

void report_captured() noexcept {
  report_loss(
      kCollectorCode, "stamps_captured", 1,
      "a CUDA graph was captured: device stamps would add a host function to each collective in it and be wrong "
      "afterwards, so NCCL is not asked for them any more; " STASHTRACE_USE_EVENTS,
      schema::codes::Severity::error);
}

void report_overridden() noexcept {
  report_loss(kCollectorCode, "stamps_overridden", 1,
              "NCCL's RAS client replaced the events that profilers are sent: device stamps are not used from there on",
              schema::codes::Severity::error);
}

}  // namespace stashtrace::nccl::hazards
