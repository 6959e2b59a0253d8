// From a hooked call to its rows: order, groups, events on the stream. SPDX-License-Identifier: Apache-2.0
//
// Callers: interpose*.cpp, on the job's threads. One row per operation, one pair of events per call, or per stream of
// the outermost group, since several operations of a group become one kernel. A call that a hooked call makes itself
// (ncclBcast calls ncclBroadcast) is passed on. The job gets NCCL's result in every case.
#pragma once

#include <cstdint>

#include "collectors/nccl/comms.h"
#include "collectors/nccl/nccl_collector.h"
#include "core/clock.h"
#include "device/timeline.h"
#include "schema/schema.h"

namespace stashtrace::nccl {

#pragma GCC visibility push(hidden)

struct Operation {
  std::uint16_t op;
  std::uint64_t elements;  // as given to the call
  DataType type;
  bool per_rank;  // the input is `elements` for each rank
  int peer;       // root or peer, -1 if none
  Comm comm;
  Stream stream;
};

struct ThreadState {
  bool inside;                    // a hook of this collector is on the stack
  std::uint16_t group;            // 1 + index of the group's buffer, 0 if none
  int depth;                      // ncclGroupStart without its ncclGroupEnd
  std::uint32_t current_call_id;  // the operation whose real call runs now: the plugin's API event belongs to it
};
extern constinit thread_local ThreadState thread;

struct Started {
  schema::NcclCall row;
  CommEntry* entry;
  Comm comm;
  Stream stream;
  std::uint32_t bracket_id, bracket_slot;
  bool recorded, grouped;
};
void begin_call(const Operation& operation, Started& started) noexcept;
void end_call(Started& started, Result result) noexcept;

// The form of a hook. Not noexcept: a cancelled thread unwinds through us.
template <class Call>
Result traced(const Operation& operation, Call call) {
  if (!is_on() || thread.inside) return call();
  Started started;
  thread.inside = true;
  begin_call(operation, started);
  Result result;
  {
    const device::Inside what_nccl_asks_of_cuda;
    result = call();
  }
  end_call(started, result);
  thread.inside = false;
  return result;
}

void group_began(Result result) noexcept;
struct EndingGroup {
  bool outermost;
  std::uint16_t buffer;
  std::uint64_t begin_ticks;
};
EndingGroup group_ends(bool simulated) noexcept;                                     // before the real call
void group_ended(const EndingGroup& group, Result result, bool simulated) noexcept;  // after it

// Of a group that made communicators: *where is filled in when the outermost ncclGroupEnd returns.
bool group_open() noexcept;
bool await_comm(Comm* where, const NewComm& facts) noexcept;  // false: no place, the caller must promise it instead

void forget_groups() noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::nccl
