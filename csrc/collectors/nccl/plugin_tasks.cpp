// Operations as enqueued and their channels on the device. SPDX-License-Identifier: Apache-2.0
//
// A task's row is written once: when it was enqueued and all its channels and proxies have ended, or when nothing more
// is expected. Its slot can still be read by late children; they write separate rows, which name the task.
#include <strings.h>

#include <algorithm>

#include "collectors/nccl/hazards.h"
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin_events.h"
#include "core/string_table.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl::plugin {

namespace {

constexpr std::uint64_t kPartlyTimedSeconds = 10;  // since its last sign of life
constexpr std::uint64_t kUntimedSeconds = 120;     // a kernel may wait long for a late rank

void stretch(std::atomic<std::int64_t>& value, std::int64_t to, bool lower) noexcept {
  std::int64_t now = value.load(std::memory_order_relaxed);
  while (now == -1 || (lower ? to < now : to > now))
    if (value.compare_exchange_weak(now, to, std::memory_order_relaxed)) return;
}

void grow_to(std::atomic<std::uint64_t>& value, std::uint64_t to) noexcept {
  std::uint64_t now = value.load(std::memory_order_relaxed);
  while (to > now && !value.compare_exchange_weak(now, to, std::memory_order_relaxed)) continue;
}

// Operations that were enqueued before keep their stamps, even if these come later.
bool is_distrusted(ContextSlot& context, std::uint16_t op, bool to_itself) noexcept {
  if ((op == op_code::broadcast && hazards::broadcast_shifts_stamps()) ||
      hazards::message_shifts_stamps(context.version, to_itself))
    context.distrusted.store(true, std::memory_order_relaxed);
  return context.distrusted.load(std::memory_order_relaxed);
}

void write_task(Task& task, void* handle) noexcept {
  if (task.written.exchange(true, std::memory_order_acq_rel)) return;
  const bool use = !task.distrusted;
  const std::uint32_t timed = use ? task.timed.load(std::memory_order_acquire) : 0;
  schema::NcclTask row{};
  row.begin_ticks = task.begin_ticks;
  row.end_ticks = task.end_ticks.load(std::memory_order_relaxed);
  row.group_hash = task.context->group_hash.load(std::memory_order_relaxed);
  row.plugin_index = task.plugin_index;
  row.begin_device_ns = timed > 0 ? task.begin_device_ns.load(std::memory_order_relaxed) : -1;
  row.end_device_ns = timed > 0 ? task.end_device_ns.load(std::memory_order_relaxed) : -1;
  row.call_id = task.call_id;
  row.task_id = task.task_id;
  row.algorithm_id = task.algorithm_id;
  row.protocol_id = task.protocol_id;
  row.channels_count = std::max<std::uint16_t>(
      task.channels, static_cast<std::uint16_t>(task.channels_ended.load(std::memory_order_relaxed)));
  row.timed_count = static_cast<std::uint16_t>(timed);
  row.op_code = task.op;
  row.nccl_flags = task.flags;
  row.device_index = task.device;
  emit(row);
  if (task.expects_stamps && timed == 0) count(Count::untimed);
  pools.tasks.give_back(handle);
}

// Before 2.31 such a collective (CollNet) says 0 channels and has them nevertheless (src/enqueue.cc,
// scheduleCollTasksToPlan: task->nChannels is set for the others alone).
bool is_in_network(const char* algorithm) noexcept {
  return algorithm != nullptr && ::strncasecmp(algorithm, "collnet", 7) == 0;
}

std::uint32_t id_of(const char* text) noexcept { return text != nullptr && *text != '\0' ? intern(text) : 0; }

}  // namespace

void* start_task(ContextSlot& context, const Event& event) noexcept {
  void* handle = nullptr;
  Task* task = pools.tasks.take(handle);
  if (task == nullptr) {
    count(Count::pool_full);
    return nullptr;
  }
  announce(context);
  const bool copy_engine = event.type == profiler::kCeColl;
  task->context = &context;
  task->begin_ticks = now_ticks();
  task->op = op_of(event.func);
  task->flags = static_cast<std::uint16_t>((copy_engine ? nccl_flag::copy_engine : 0) |
                                           (event.symmetric ? nccl_flag::symmetric : 0));
  task->call_id = call_of(context, event, task->op, task->flags);
  task->task_id = new_task_id();
  task->plugin_index = event.sequence;
  task->algorithm_id = id_of(event.algorithm);
  task->protocol_id = id_of(event.protocol);
  task->channels = event.channels;
  task->device = context.device;
  const bool to_itself = event.type == profiler::kP2p && event.peer == context.rank;
  heed_override();
  task->distrusted = is_distrusted(context, task->op, to_itself);
  task->expects_stamps = wants_stamps() && !copy_engine && !(to_itself && context.version < 7);
  // One that never ends keeps a row open of which the number is not known: the sweep writes it when no more come.
  const int channels = event.channels == 0 && is_in_network(event.algorithm) ? 1 : event.channels;
  task->pending.store(1 + (task->expects_stamps ? channels : 0), std::memory_order_release);
  pools.tasks.show(handle);
  return handle;
}

void stop_task(Task& task, void* handle) noexcept {
  if (task.stopped.exchange(true, std::memory_order_acq_rel)) return;
  grow_to(task.end_ticks, now_ticks());
  child_ended(task, handle);
}

bool adopt_child(Task& task) noexcept {
  std::int32_t pending = task.pending.load(std::memory_order_relaxed);
  while (pending > 0)
    if (task.pending.compare_exchange_weak(pending, pending + 1, std::memory_order_acq_rel)) return true;
  return false;
}

void child_ended(Task& task, void* handle) noexcept {
  grow_to(task.end_ticks, now_ticks());
  if (task.pending.fetch_sub(1, std::memory_order_acq_rel) == 1) write_task(task, handle);
}

void* start_kernel(const Event& event) noexcept {
  if (!recording()) return nullptr;
  // A chained plugin may ask for stamps where we do not.
  if (const Task* task = pools.tasks.find(event.parent); task != nullptr && !task->expects_stamps) return nullptr;
  void* handle = nullptr;
  KernelCh* kernel = pools.kernels.take(handle);
  if (kernel == nullptr) {
    count(Count::pool_full);
    return nullptr;
  }
  kernel->task = event.parent;
  kernel->begin_ticks = now_ticks();
  kernel->begin_timer = event.kernel_ch.p_timer;
  kernel->channel = event.kernel_ch.channel;
  pools.kernels.show(handle);
  return handle;
}

void stop_kernel(KernelCh& kernel, void* handle) noexcept {
  const KernelCh seen{kernel.task, kernel.begin_ticks, kernel.begin_timer,
                      kernel.end_timer.load(std::memory_order_acquire), kernel.channel};
  if (!pools.kernels.give_back(handle)) return;
  Task* task = pools.tasks.find(seen.task);
  const std::uint64_t end = seen.end_timer.load(std::memory_order_relaxed);
  // Before 2.31 the proxy may poll a stop of the round before: it lies before the start, and the time is unknown.
  const bool timed = seen.begin_timer != 0 && end != 0 && end >= seen.begin_timer;
  if (!timed) count(Count::stamp_order);
  if (task == nullptr) {
    count(Count::late_child);
    return;
  }
  if (!task->distrusted)
    emit(
        schema::NcclChannel{.begin_device_ns = seen.begin_timer != 0 ? static_cast<std::int64_t>(seen.begin_timer) : -1,
                            .end_device_ns = timed ? static_cast<std::int64_t>(end) : -1,
                            .task_id = task->task_id,
                            .channel_index = seen.channel,
                            .reserved_flags = 0});
  const std::uint32_t ended = task->channels_ended.fetch_add(1, std::memory_order_relaxed) + 1;
  if (timed && !task->written.load(std::memory_order_acquire)) {
    stretch(task->begin_device_ns, static_cast<std::int64_t>(seen.begin_timer), true);
    stretch(task->end_device_ns, static_cast<std::int64_t>(end), false);
    task->timed.fetch_add(1, std::memory_order_release);
    grow_to(task->end_ticks, now_ticks());
  }
  if (task->expects_stamps && ended <= task->channels) child_ended(*task, seen.task);
}

void end_tasks(ContextSlot& context) noexcept {
  pools.kernels.each([&](void* handle, KernelCh& kernel) {
    const Task* task = pools.tasks.find(kernel.task);
    if (task != nullptr && task->context == &context) stop_kernel(kernel, handle);
  });
  pools.tasks.each([&](void* handle, Task& task) {
    if (task.context == &context) write_task(task, handle);
  });
}

void sweep_tasks(std::uint64_t now, bool all, std::uint64_t tick_hz) noexcept {
  pools.kernels.each([&](void* handle, KernelCh& kernel) {
    if (all || now - kernel.begin_ticks > kUntimedSeconds * tick_hz) stop_kernel(kernel, handle);
  });
  pools.tasks.each([&](void* handle, Task& task) {
    const bool stopped = task.stopped.load(std::memory_order_acquire);
    const std::uint64_t last = task.end_ticks.load(std::memory_order_relaxed);  // 0: being stopped right now
    const std::uint64_t limit = task.timed.load(std::memory_order_relaxed) > 0 ? kPartlyTimedSeconds : kUntimedSeconds;
    const bool old = stopped && last != 0 && now > last && now - last > limit * tick_hz;
    if (all || old) write_task(task, handle);
  });
}

}  // namespace stashtrace::nccl::plugin
