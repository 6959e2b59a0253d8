// What the files of this collector share: settings, counters of losses, the choice of the source. SPDX-License-Identifier: Apache-2.0
//
// Settings are written by start(), before any hook does anything, and by the first communicator; read from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/config.h"
#include "schema/schema.h"

namespace stashtrace::nccl {

#pragma GCC visibility push(hidden)

namespace op_code = schema::codes::CollectiveOp;
namespace nccl_flag = schema::codes::NcclFlag;
namespace source_code = schema::codes::CollectiveSource;
namespace comm_event = schema::codes::CommEvent;

inline constexpr std::uint16_t kCollectorCode = 9;  // records.def

struct Settings {
  std::atomic<bool> on{false};        // start() succeeded and stop() was not called
  std::atomic<bool> attached{false};  // by import tables, not by preload
  NcclSource source = NcclSource::automatic;
  bool lookup_hook = false;
  const char* chain = "";  // the plugin that was configured before ours
};
extern constinit Settings settings;

// Forgets what a forked child has from its parent, once per process. The core informs a child only at its first record,
// and from within it; so code that begins something that lasts calls this first.
void enter_process() noexcept;

// Called before the first communicator exists, or when the plugin hears of it where no hook does.
void reach_imports() noexcept;

inline bool is_on() noexcept { return settings.on.load(std::memory_order_relaxed); }

// Events on hot paths that are counted, and reported on the drainer's tick and at the end.
enum class Count : unsigned {
  pool_full,    // plugin events without a slot
  group_full,   // calls of a group without event and time of return
  stamp_order,  // KernelCh stop before its start, or without one
  untimed,      // tasks that should have had device stamps and got none
  late_child,   // an event whose parent was forgotten
  registry_full,
  late_launch,    // brackets of launches that the job did not ask for, or put other work behind
  other_process,  // proxy operations of another process (PXN)
  kCount
};
void count(Count what, std::uint64_t by = 1) noexcept;
void report_counts() noexcept;

bool operation_seen() noexcept;  // in this process: from then on a kernel of NCCL may wait on a device

// Stamps are needed, and a communicator is about to be made on the current device: loads the kernel that reads their clock,
// %globaltimer, while no kernel of NCCL can spin there. That is before the first operation, and for the first communicator
// of a device at any time: NCCL itself loads its kernels and takes memory there for it. `first`: the process surely has
// none yet.
void prepare_stamps(bool first) noexcept;
void note_communicator_on(std::int32_t device) noexcept;  // below zero: unknown, so it may be any
std::uint32_t new_call_id() noexcept;
std::uint32_t new_task_id() noexcept;
std::uint32_t new_batch_id() noexcept;

// Writes a metadata row.
void write_fact(const char* key, const char* value) noexcept;
void write_fact(const char* key, std::int64_t value) noexcept;

std::uint64_t tick_hz() noexcept;  // of now_ticks()

// Reports which source this process has, once, when the first communicator exists. `hooked`: by calls that reach us, which
// events stand around; else NCCL's plugin alone knows of it.
void report_source(bool hooked) noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::nccl
