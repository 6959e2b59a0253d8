// Contexts of the plugin, and which events go where. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/plugin.h"

#include "collectors/nccl/activation.h"
#include "collectors/nccl/calls.h"
#include "collectors/nccl/functions.h"
#include "collectors/nccl/hazards.h"
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin_events.h"
#include "core/futex_lock.h"
#include "core/string_table.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl::plugin {

constinit Pools pools;

namespace {

constexpr unsigned kContexts = 1024;
constinit ContextSlot g_contexts[kContexts] = {};
constinit ContextSlot g_nobody = {};  // used if there is no place; its events are dropped and counted
void* const kGroupHandle =
    reinterpret_cast<void*>(14);  // of each group, of a kind that no pool has: nothing is kept of it
constinit FutexLock g_lock;
constinit FutexLock g_deciding;
constexpr std::int64_t kDecisionNs = 1'000'000'000;
constinit std::atomic<int> g_version{0};
constinit std::atomic<bool> g_stamps{false};

constexpr std::uint64_t kHostEvents = profiler::kGroupApi | profiler::kCollApi | profiler::kP2pApi | profiler::kColl |
                                      profiler::kP2p | profiler::kProxyOp | profiler::kProxyStep | profiler::kCeColl;

std::uint64_t events_of(int version) noexcept {
  std::uint64_t mask = kHostEvents | (wants_stamps() ? std::uint64_t{profiler::kKernelCh} : 0);
  if (version < 6) mask &= ~std::uint64_t{profiler::kCeColl};
  if (version < 5) mask &= ~std::uint64_t{profiler::kGroupApi | profiler::kCollApi | profiler::kP2pApi};
  if (version < 5) mask |= profiler::kGroup;  // NCCL 2.27 reports no task that has no group
  return mask;
}

// Decides for all communicators, at the first. Another thread that makes one waits, or the two would ask NCCL, which
// has one mask, for different events; its wait has a limit, since this asks the loader, whose lock it may hold.
// False: its events are not followed.
bool decide(int version_of_it, bool& first) noexcept {
  const raw::SignalsBlocked quiet;
  if (!g_deciding.lock_within(kDecisionNs)) {
    if (version() == 0) count(Count::registry_full);
    return version() != 0;
  }
  first = version() == 0;
  const bool room = !first || pools.prepare();
  if (first && room) g_stamps.store(hazards::stamps_are_wanted(version_of_it), std::memory_order_relaxed);
  if (room) g_version.store(version_of_it, std::memory_order_release);
  g_deciding.unlock();
  if (!room)
    report_loss(kCollectorCode, "plugin_no_memory", 1, "no memory for the events of NCCL's plugin",
                schema::codes::Severity::error);
  return room;
}

ContextSlot* take_context() noexcept {
  for (ContextSlot& slot : g_contexts) {
    bool free = false;
    if (!slot.in_use.load(std::memory_order_relaxed) && slot.in_use.compare_exchange_strong(free, true)) return &slot;
  }
  return nullptr;
}

}  // namespace

bool loaded() noexcept { return version() != 0; }
int version() noexcept { return g_version.load(std::memory_order_acquire); }
bool wants_stamps() noexcept { return g_stamps.load(std::memory_order_relaxed); }

void* init(const CommFacts& facts, std::uint64_t* mask) noexcept {
  *mask = 0;
  enter_process();
  if (!is_on() || settings.source == NcclSource::events) return &g_nobody;
  bool first = false;
  if (!decide(facts.version, first)) return &g_nobody;
  // Each device of the process has its own clock; NCCL made the communicator's current here.
  if (wants_stamps()) prepare_stamps(first);
  if (first) {
    reach_imports();
    write_fact("nccl_plugin_version", facts.version);
  }
  ContextSlot* context = take_context();
  *mask = events_of(
      facts.version);  // NCCL has one mask for all communicators: one without a place must not clear it either
  if (context == nullptr) {
    count(Count::registry_full);
    return &g_nobody;
  }
  context->announced.store(false, std::memory_order_relaxed);
  context->distrusted.store(false, std::memory_order_relaxed);
  context->entry.store(nullptr, std::memory_order_relaxed);
  context->group_hash.store(facts.comm_id, std::memory_order_relaxed);
  context->comm_id = facts.comm_id;
  context->name_id = facts.name != nullptr ? intern(facts.name) : 0;
  context->nodes = facts.nodes;
  context->size = facts.size;
  context->rank = facts.rank;
  context->version = facts.version;
  context->device = device::current_device();
  context->sequence.store(0, std::memory_order_relaxed);
  context->init_ticks = now_ticks();
  return context;
}

void finalize(void* context) noexcept {
  auto* slot = static_cast<ContextSlot*>(context);
  if (slot == nullptr || slot == &g_nobody) return;
  announce(*slot);
  end_tasks(*slot);  // the next owner of the slot must not be taken for their owner
  slot->entry.store(nullptr, std::memory_order_release);
  slot->in_use.store(false, std::memory_order_release);
}

// One row per communicator, written when it is known whether the hooks see it too.
void announce(ContextSlot& context) noexcept {
  if (context.announced.exchange(true, std::memory_order_acq_rel)) return;
  const CommEntry* entry = context.entry.load(std::memory_order_acquire);
  schema::NcclComm row{};
  row.begin_ticks = row.end_ticks = context.init_ticks;
  row.group_hash = context.group_hash.load(std::memory_order_relaxed);
  row.comm_key = entry != nullptr ? reinterpret_cast<std::uintptr_t>(entry->comm.load(std::memory_order_relaxed)) : 0;
  row.name_id = context.name_id;
  row.group_rank = context.rank;
  row.group_size = context.size;
  row.nodes_count = context.nodes;
  row.device_index = context.device;
  row.event_code = comm_event::plugin_init;
  row.source_code = source_code::plugin;
  emit(row);
  if (entry == nullptr) report_source(false);
}

void join(CommEntry& entry, std::uint64_t since) noexcept {
  if (!loaded() || entry.size < 0 || entry.rank < 0) return;
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  ContextSlot* found = nullptr;
  for (ContextSlot& slot : g_contexts)
    if (slot.in_use.load(std::memory_order_acquire) && slot.entry.load(std::memory_order_relaxed) == nullptr &&
        slot.size == entry.size && slot.rank == entry.rank && slot.init_ticks >= since &&
        !slot.announced.load(std::memory_order_relaxed) && (found == nullptr || slot.init_ticks < found->init_ticks))
      found = &slot;
  if (found != nullptr && entry.wants_plugin.exchange(false, std::memory_order_relaxed)) {
    // Ranks that joined a grown communicator share only NCCL's own identity with those that were in it before; the same
    // goes for ranks whose communicator was made past the hooks.
    if (entry.grown || entry.unseen) entry.group_hash = found->comm_id;
    entry.nodes = found->nodes;
    if (entry.name_id == 0) entry.name_id = found->name_id;
    found->group_hash.store(entry.group_hash, std::memory_order_relaxed);
    found->entry.store(&entry, std::memory_order_release);
  } else {
    found = nullptr;
  }
  g_lock.unlock();
  if (found != nullptr) announce(*found);
}

void leave(CommEntry& entry) noexcept {
  for (ContextSlot& slot : g_contexts)
    if (slot.entry.load(std::memory_order_acquire) == &entry) slot.entry.store(nullptr, std::memory_order_release);
}

void* start(void* opaque, const Event& event) noexcept {
  auto* context = static_cast<ContextSlot*>(opaque);
  if (context == &g_nobody || !is_on()) return nullptr;
  // With PXN their context is one of another process, so it is not looked at.
  switch (event.type) {
    case profiler::kKernelCh: return start_kernel(event);
    case profiler::kProxyOp: return start_proxy_op(event);
    case profiler::kProxyStep: return start_proxy_step(event);
    default: break;
  }
  if (context == nullptr) return nullptr;
  switch (event.type) {
    case profiler::kGroup: return kGroupHandle;
    case profiler::kGroupApi:
    case profiler::kCollApi:
    case profiler::kP2pApi: return start_api(*context, event);
    case profiler::kColl:
    case profiler::kP2p:
    case profiler::kCeColl: return start_task(*context, event);
    default: return nullptr;  // requested by a chained plugin
  }
}

void stop(void* handle) noexcept {
  if (handle == nullptr || handle == kGroupHandle) return;
  if (Task* task = pools.tasks.find(handle)) return stop_task(*task, handle);
  if (KernelCh* kernel = pools.kernels.find(handle)) return stop_kernel(*kernel, handle);
  if (ProxyStep* step = pools.proxy_steps.find(handle)) return stop_proxy_step(*step, handle);
  if (ProxyOp* op = pools.proxy_ops.find(handle)) return stop_proxy_op(*op, handle);
  if (ApiEvent* api = pools.api.find(handle)) return stop_api(*api, handle);
  count(Count::late_child);
}

void state(void* handle, int state, const profiler::StateArgs* args) noexcept {
  if (handle == nullptr) return;
  if (ProxyStep* step = pools.proxy_steps.find(handle)) return proxy_state(*step, state, args);
  KernelCh* kernel = pools.kernels.find(handle);
  if (kernel != nullptr && state == profiler::kKernelChStop && args != nullptr)
    kernel->end_timer.store(args->p_timer, std::memory_order_release);
}

void note_call(CommEntry& entry, const schema::NcclCall& row, std::uint64_t bytes) noexcept {
  if (version() != 4) return;  // later versions report the call by its API event
  const bool captured = (row.nccl_flags & nccl_flag::captured) != 0;
  if (captured) entry.captured.store(true, std::memory_order_relaxed);
  RecentCall& recent = entry.recent[entry.recent_at.fetch_add(1, std::memory_order_relaxed) % kRecentCalls];
  recent.call_id.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // nobody may take the old id with new words
  recent.op = row.op_code;
  recent.captured = captured;
  recent.peer = row.peer_rank;
  recent.bytes = bytes;
  recent.call_id.store(row.call_id, std::memory_order_release);
}

namespace {
bool give_stamps_up() noexcept {
  if (!wants_stamps() || !g_stamps.exchange(false, std::memory_order_relaxed)) return false;
  activation::drop(profiler::kKernelCh);
  for (ContextSlot& slot : g_contexts) slot.distrusted.store(true, std::memory_order_relaxed);
  return true;
}
}  // namespace

void stop_stamps() noexcept {
  if (give_stamps_up()) hazards::report_captured();
}

void heed_override() noexcept {
  if (wants_stamps() && activation::is_overridden() && give_stamps_up()) hazards::report_overridden();
}

void sweep(std::uint64_t now, bool all) noexcept {
  if (!loaded()) return;
  const std::uint64_t hz = tick_hz();
  sweep_proxy_ops(now, all, hz);
  sweep_tasks(now, all, hz);
  if (!all) return;
  for (ContextSlot& slot : g_contexts)
    if (slot.in_use.load(std::memory_order_acquire)) announce(slot);
}

void forget() noexcept {
  g_lock.reset();
  g_deciding.reset();
  g_version.store(0, std::memory_order_relaxed);
  pools.forget();
  forget_api();
  for (ContextSlot& slot : g_contexts) slot.in_use.store(false, std::memory_order_relaxed);
}

}  // namespace stashtrace::nccl::plugin
