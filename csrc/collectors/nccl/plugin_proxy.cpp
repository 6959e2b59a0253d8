// Proxy operations: bytes on a network, and what each step waited for. SPDX-License-Identifier: Apache-2.0
//
// Steps are summed into their operation and have no rows: a collective has thousands.
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin_events.h"
#include "core/raw_syscall.h"
#include "runtime/emit.h"

namespace stashtrace::nccl::plugin {

namespace {

constexpr std::uint64_t kLostSeconds = 600;

unsigned wait_of(int state) noexcept {
  switch (state) {
    case profiler::kSendGpuWait:
    case profiler::kRecvGpuWait: return kGpu;
    case profiler::kSendPeerWait: return kPeer;
    case profiler::kSendWait:
    case profiler::kRecvWait: return kWire;
    case profiler::kRecvFlushWait: return kFlush;
    default: return kNoWait;
  }
}

void leave_state(ProxyStep& step, std::uint64_t now) noexcept {
  if (step.state == kNoWait) return;
  if (ProxyOp* op = pools.proxy_ops.find(step.op))
    op->wait_ticks[step.state].fetch_add(now - step.state_ticks, std::memory_order_relaxed);
  step.state = kNoWait;
}

}  // namespace

void* start_proxy_op(const Event& event) noexcept {
  if (!recording()) return nullptr;
  void* handle = nullptr;
  ProxyOp* op = pools.proxy_ops.take(handle);
  if (op == nullptr) {
    count(Count::pool_full);
    return nullptr;
  }
  op->begin_ticks = now_ticks();
  op->peer = event.proxy_op.peer;
  op->channel = event.proxy_op.channel;
  op->is_send = event.proxy_op.is_send != 0;
  if (event.proxy_op.pid != raw::getpid()) {
    count(Count::other_process);  // PXN: this process sends for another one, which owns the parent's handle
  } else if (Task* task = pools.tasks.find(event.parent)) {
    op->task_id = task->task_id;
    if (adopt_child(*task)) op->task = event.parent;
  } else if (event.parent != nullptr) {
    count(Count::late_child);
  }
  pools.proxy_ops.show(handle);
  return handle;
}

void stop_proxy_op(ProxyOp& op, void* handle) noexcept {
  void* const parent = op.task;
  schema::NcclProxy row{};
  const std::uint64_t first = op.first_ticks.load(std::memory_order_relaxed);
  const std::uint64_t last = op.last_ticks.load(std::memory_order_relaxed);
  row.begin_ticks = first != 0 ? first : op.begin_ticks;
  row.end_ticks = last != 0 ? last : now_ticks();
  row.transfer_bytes = op.bytes.load(std::memory_order_relaxed);
  row.gpu_wait_ticks = op.wait_ticks[kGpu].load(std::memory_order_relaxed);
  row.peer_wait_ticks = op.wait_ticks[kPeer].load(std::memory_order_relaxed);
  row.wire_wait_ticks = op.wait_ticks[kWire].load(std::memory_order_relaxed);
  row.flush_wait_ticks = op.wait_ticks[kFlush].load(std::memory_order_relaxed);
  row.task_id = op.task_id;
  row.peer_rank = op.peer;
  row.steps_count = op.steps.load(std::memory_order_relaxed);
  row.channel_index = op.channel;
  row.is_send_code = op.is_send ? 1 : 0;
  if (!pools.proxy_ops.give_back(handle)) return;
  emit(row);
  if (Task* task = parent != nullptr ? pools.tasks.find(parent) : nullptr) child_ended(*task, parent);
}

void* start_proxy_step(const Event& event) noexcept {
  ProxyOp* op = pools.proxy_ops.find(event.parent);
  if (op == nullptr) return nullptr;
  void* handle = nullptr;
  ProxyStep* step = pools.proxy_steps.take(handle);
  if (step == nullptr) {
    count(Count::pool_full);
    return nullptr;
  }
  step->op = event.parent;
  std::uint64_t none = 0;
  op->first_ticks.compare_exchange_strong(none, now_ticks(), std::memory_order_relaxed);
  return handle;
}

void proxy_state(ProxyStep& step, int state, const profiler::StateArgs* args) noexcept {
  const std::uint64_t now = now_ticks();
  leave_state(step, now);
  step.state = wait_of(state);
  step.state_ticks = now;
  // The size is known from the state in which it is posted on; earlier states give 0 or the size of the step before.
  if (args != nullptr && step.state != kNoWait && step.state != kPeer)
    step.bytes = static_cast<std::int64_t>(args->transfer_bytes);
}

void stop_proxy_step(ProxyStep& step, void* handle) noexcept {
  const std::uint64_t now = now_ticks();
  leave_state(step, now);
  if (ProxyOp* op = pools.proxy_ops.find(step.op)) {
    op->last_ticks.store(now, std::memory_order_relaxed);
    op->bytes.fetch_add(step.bytes, std::memory_order_relaxed);
    op->steps.fetch_add(1, std::memory_order_relaxed);
  }
  pools.proxy_steps.give_back(handle);
}

void sweep_proxy_ops(std::uint64_t now, bool all, std::uint64_t tick_hz) noexcept {
  pools.proxy_ops.each([&](void* handle, ProxyOp& op) {
    const std::uint64_t last = op.last_ticks.load(std::memory_order_relaxed);
    const std::uint64_t sign = last != 0 ? last : op.begin_ticks;
    if (all || (now > sign && now - sign > kLostSeconds * tick_hz)) stop_proxy_op(op, handle);
  });
}

}  // namespace stashtrace::nccl::plugin
