// Single operations: row, events, order. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/calls.h"

#include "collectors/nccl/groups.h"
#include "collectors/nccl/late_launches.h"
#include "collectors/nccl/plugin.h"
#include "core/raw_syscall.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl {

constinit thread_local ThreadState thread = {};

bool wants_events() noexcept {
  if (settings.source == NcclSource::plugin) return false;
  return settings.source == NcclSource::events || !plugin::wants_stamps();
}

void begin_call(const Operation& operation, Started& started) noexcept {
  started.entry = find_or_adopt(operation.comm);
  started.comm = operation.comm;
  lose_late_launches(operation.comm);
  started.stream = operation.stream;
  started.grouped = thread.depth > 0;
  started.bracket_id = 0;
  const std::uint64_t sequence =
      started.entry != nullptr ? started.entry->sequence.fetch_add(1, std::memory_order_relaxed) : 0;
  if (started.grouped) count_in_group(started.entry);
  started.recorded = recording();
  // Before the real call, which reads which events are wanted; of a call that is not recorded as well.
  if (plugin::wants_stamps() && device::capturing(operation.stream)) plugin::stop_stamps();
  if (!started.recorded) return;
  schema::NcclCall& row = started.row;
  row = {};
  row.call_ticks = now_ticks();
  row.group_hash = started.entry != nullptr ? started.entry->group_hash : 0;
  row.sequence = sequence;
  const std::int64_t ranks =
      operation.per_rank && started.entry != nullptr && started.entry->size > 0 ? started.entry->size : 1;
  row.message_bytes = static_cast<std::int64_t>(operation.elements) * bytes_of(operation.type) * ranks;
  row.stream_key = device::stream_key(operation.stream);
  row.call_id = new_call_id();
  row.tid = detail::thread_state.tid != 0 ? detail::thread_state.tid : static_cast<std::uint32_t>(raw::gettid());
  row.peer_rank = operation.peer;
  row.op_code = operation.op;
  row.source_code = source_code::events;
  const bool captured = device::capturing(operation.stream);
  row.nccl_flags =
      static_cast<std::uint16_t>((started.grouped ? nccl_flag::grouped : 0) | (captured ? nccl_flag::captured : 0) |
                                 (settings.attached.load(std::memory_order_relaxed) ? nccl_flag::attached : 0));
  thread.current_call_id = row.call_id;
  if (started.entry != nullptr)
    plugin::note_call(*started.entry, row, operation.elements * static_cast<std::uint64_t>(bytes_of(operation.type)));
  if (started.grouped || !wants_events()) return;
  const device::Begin begun = device::bracket_begin(device::bracket_code::collective, operation.stream, row.call_id,
                                                    captured ? device::bracket_flag::captured : 0);
  started.bracket_id = begun.bracket_id;
  started.bracket_slot = begun.slot;
}

void end_call(Started& started, Result result) noexcept {
  thread.current_call_id = 0;
  if (!started.recorded) return;
  schema::NcclCall& row = started.row;
  row.return_ticks = now_ticks();
  finish_row(row, result);
  const bool failed = result != kSuccess && result != kInProgress;
  if (started.grouped && !failed) {
    keep_in_group(row, started.comm, started.stream, wants_events());
    return;
  }
  if (!started.grouped)
    end_bracket({started.comm, started.stream, {started.bracket_id, started.bracket_slot}, row.message_bytes}, result);
  emit(row);
}

void finish_row(schema::NcclCall& row, Result result) noexcept {
  row.status_code = static_cast<std::uint16_t>(result);
  if (result == kInProgress) row.nccl_flags |= nccl_flag::non_blocking;
  else if (result != kSuccess) row.nccl_flags |= nccl_flag::failed;
}

}  // namespace stashtrace::nccl
