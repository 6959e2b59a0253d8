// API events: which call an operation belongs to, and calls that no hook saw. SPDX-License-Identifier: Apache-2.0
//
// They come on the thread that calls NCCL, inside the call. With a hook on the stack the event takes its call_id; if
// there is none (a static NCCL, dlsym) the event is the call, and its row is written when the group around it ends.
#include <cstring>

#include "collectors/nccl/calls.h"
#include "collectors/nccl/hazards.h"
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin_events.h"
#include "core/raw_syscall.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl::plugin {

namespace {

struct Named {
  const char* name;
  std::uint16_t op;
};
constexpr Named kOps[] = {
    {"AllReduce", op_code::all_reduce}, {"AllGather", op_code::all_gather}, {"ReduceScatter", op_code::reduce_scatter},
    {"Broadcast", op_code::broadcast},  {"Reduce", op_code::reduce},        {"Send", op_code::send},
    {"Recv", op_code::receive},         {"AlltoAll", op_code::all_to_all},  {"Gather", op_code::gather},
    {"Scatter", op_code::scatter},      {"AllGatherV", op_code::broadcast},
};

constexpr struct {
  const char* name;
  std::int64_t bytes;
} kTypes[] = {
    {"ncclInt8", 1},       {"ncclUint8", 1},      {"ncclInt32", 4},   {"ncclUint32", 4},  {"ncclInt64", 8},
    {"ncclUint64", 8},     {"ncclFloat16", 2},    {"ncclFloat32", 4}, {"ncclFloat64", 8}, {"ncclBfloat16", 2},
    {"ncclFloat8e4m3", 1}, {"ncclFloat8e5m2", 1}, {"Unknown", 1},  // ncclUint8, which src/misc/utils.cc leaves out in all releases; in 2.27 also the two of eight bits
};

// NCCL does not say when a graph is gone: captured calls may keep half of the slots, the rest is for calls that end.
constexpr std::uint32_t kMostKept = 4096;
constinit std::atomic<std::uint32_t> g_kept{0};

void give_back(const ApiEvent& api, void* handle) noexcept {
  if (api.captured && g_kept.load(std::memory_order_relaxed) < kMostKept) {
    g_kept.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (api.captured) count(Count::pool_full);
  pools.api.give_back(handle);
}

void fill_own_row(ContextSlot& context, const Event& event, std::uint16_t op, schema::NcclCall& row) noexcept {
  row.call_ticks = now_ticks();
  row.group_hash = context.group_hash.load(std::memory_order_relaxed);
  CommEntry* entry = context.entry.load(std::memory_order_acquire);
  std::atomic<std::uint64_t>& numbers = entry != nullptr ? entry->sequence : context.sequence;
  row.sequence = numbers.fetch_add(1, std::memory_order_relaxed);
  const bool per_rank = op == op_code::reduce_scatter || op == op_code::all_to_all || op == op_code::scatter;
  row.message_bytes = static_cast<std::int64_t>(event.elements) * bytes_of_type(event.datatype) *
                      (per_rank && context.size > 0 ? context.size : 1);
  row.stream_key = event.stream != nullptr ? device::stream_key(event.stream) : 0;
  row.call_id = new_call_id();
  row.tid = static_cast<std::uint32_t>(raw::gettid());
  const bool rootless = op == op_code::all_reduce || op == op_code::all_gather || op == op_code::reduce_scatter ||
                        op == op_code::all_to_all;
  row.peer_rank = rootless ? -1 : event.peer;
  row.op_code = op;
  row.nccl_flags = event.captured ? nccl_flag::captured : 0;
  row.source_code = source_code::plugin;
}

}  // namespace

void forget_api() noexcept { g_kept.store(0, std::memory_order_relaxed); }

std::uint16_t op_of(const char* func) noexcept {
  if (func != nullptr)
    for (const Named& known : kOps)
      if (std::strcmp(known.name, func) == 0) return known.op;
  return op_code::other;
}

std::int64_t bytes_of_type(const char* datatype) noexcept {
  if (datatype != nullptr)
    for (const auto& known : kTypes)
      if (std::strcmp(known.name, datatype) == 0) return known.bytes;
  return 0;
}

void* start_api(ContextSlot& context, const Event& event) noexcept {
  void* handle = nullptr;
  ApiEvent* api = pools.api.take(handle);
  if (api == nullptr) {
    count(Count::pool_full);
    return nullptr;
  }
  api->context = &context;
  api->captured = event.captured;
  api->is_group = event.type == profiler::kGroupApi;
  api->in = event.parent;
  // A hook has seen to it before. Without one NCCL has decided on this call already, and asks again at the next.
  if (event.captured) stop_stamps();
  if (api->is_group) {
    api->open.store(true, std::memory_order_release);
    return handle;
  }
  // From 2.29 on a broadcast has no event but this one.
  if (op_of(event.func) == op_code::broadcast && hazards::broadcast_shifts_stamps())
    context.distrusted.store(true, std::memory_order_relaxed);
  api->call_id = thread.current_call_id;
  if (api->call_id != 0 || thread.inside || !recording()) return handle;
  api->own_row = true;
  announce(context);
  fill_own_row(context, event, op_of(event.func), api->row);
  api->call_id = api->row.call_id;
  if (ApiEvent* group = pools.api.find(event.parent); group != nullptr && group->is_group) {
    api->group = event.parent;
    ++group->calls_count;
    api->next.store(group->first.load(std::memory_order_relaxed), std::memory_order_relaxed);
    group->first.store(handle, std::memory_order_release);
  }
  return handle;
}

void write_own_call(ApiEvent& api, std::uint64_t returned, std::uint32_t batch_id) noexcept {
  api.row.return_ticks = returned;
  api.row.batch_id = batch_id;
  if (batch_id != 0) api.row.nccl_flags |= nccl_flag::grouped;
  api.own_row = false;
  emit(api.row);
}

void stop_api(ApiEvent& api, void* handle) noexcept {
  if (api.is_group) {
    const std::uint64_t returned = now_ticks();
    const std::uint32_t batch_id = api.calls_count > 1 ? new_batch_id() : 0;
    for (void* at = api.first.load(std::memory_order_acquire); at != nullptr;) {
      ApiEvent* call = pools.api.find(at);
      if (call == nullptr) break;
      void* next = call->next.load(std::memory_order_relaxed);
      if (call->own_row) write_own_call(*call, returned, batch_id);
      give_back(*call, at);
      at = next;
    }
    api.open.store(false, std::memory_order_release);
    pools.api.give_back(handle);
    return;
  }
  if (api.own_row && api.group != nullptr) return;  // its group is still open
  if (api.own_row) write_own_call(api, now_ticks(), 0);
  // A captured call is the parent of an operation at each replay, for as long as its graph lives: it keeps its slot.
  give_back(api, handle);
}

namespace {

// Whether this is reported while the call is captured, not when its graph runs: the group around the call is still open.
// NCCL reports a captured operation then if nothing on the host takes part in it, and never again.
bool being_captured(const ApiEvent& call) noexcept {
  const ApiEvent* group = pools.api.find(call.in);
  return group != nullptr && group->is_group && group->open.load(std::memory_order_acquire);
}

// In the order of the calls: the oldest one that is not matched yet and asks for the same. NCCL reports a group's
// messages in another order, and all-gathers and broadcasts in bytes.
std::uint32_t match(CommEntry& entry, const Event& event, std::uint16_t op, bool captured) noexcept {
  const bool message = op == op_code::send || op == op_code::receive;
  const std::uint64_t bytes = event.elements * static_cast<std::uint64_t>(bytes_of_type(event.datatype));
  const std::uint32_t newest = entry.recent_at.load(std::memory_order_acquire);
  for (std::uint32_t i = newest > kRecentCalls ? newest - kRecentCalls : 0; i < newest; ++i) {
    RecentCall& recent = entry.recent[i % kRecentCalls];
    std::uint32_t call_id = recent.call_id.load(std::memory_order_acquire);
    if (call_id == 0 || recent.op != op || recent.captured != captured || recent.bytes != bytes) continue;
    if (message && recent.peer != event.peer) continue;
    if (recent.call_id.compare_exchange_strong(call_id, 0, std::memory_order_acq_rel)) return call_id;
  }
  return 0;
}

}  // namespace

std::uint32_t call_of(ContextSlot& context, const Event& event, std::uint16_t op, std::uint16_t& flags) noexcept {
  if (context.version >= 5) {
    ApiEvent* api = pools.api.find(event.parent);
    if (api == nullptr || api->is_group) return 0;
    if (api->captured && !being_captured(*api)) flags |= nccl_flag::replayed;
    // A message's API event does not say to whom, its task does: before the row is written, on the same thread.
    if (api->own_row && api->row.peer_rank < 0 && event.type == profiler::kP2p &&
        api->row.tid == static_cast<std::uint32_t>(raw::gettid()))
      api->row.peer_rank = event.peer;
    return api->call_id;
  }
  if (CommEntry* entry = context.entry.load(std::memory_order_acquire)) {
    if (const std::uint32_t call_id = match(*entry, event, op, false)) return call_id;
    if (!entry->captured.load(std::memory_order_relaxed)) return 0;
    // Behind a hook it is being captured; else the host function of its graph reports it, for which no call is made.
    if (thread.inside) return match(*entry, event, op, true);
    flags |= nccl_flag::replayed;
    return 0;
  }
  if (!recording()) return 0;
  schema::NcclCall row{};
  announce(context);
  fill_own_row(context, event, op, row);
  row.return_ticks = row.call_ticks;
  emit(row);
  return row.call_id;
}

}  // namespace stashtrace::nccl::plugin
