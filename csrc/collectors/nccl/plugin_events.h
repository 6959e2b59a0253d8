// The slots of the plugin's events. SPDX-License-Identifier: Apache-2.0
//
// Callers: plugin.cpp, plugin_tasks.cpp. Values that several threads write are atomic; the others are written before
// the handle is given out. Sizes: an event is counted as lost when this number is in flight.
#pragma once

#include <atomic>
#include <cstdint>

#include "collectors/nccl/plugin.h"
#include "collectors/nccl/slab.h"

namespace stashtrace::nccl::plugin {

#pragma GCC visibility push(hidden)

struct ContextSlot {
  std::atomic<bool> in_use;
  std::atomic<bool> announced;            // its nccl_comm row is written
  std::atomic<bool> distrusted;           // something was enqueued after which NCCL mixes stamps up
  std::atomic<CommEntry*> entry;          // joined communicator, null if only the plugin knows it
  std::atomic<std::uint64_t> group_hash;  // of the entry, else comm_id
  std::uint64_t comm_id, init_ticks;
  std::uint32_t name_id;
  std::int32_t nodes, size, rank, device, version;
  std::atomic<std::uint64_t> sequence;  // of calls that no hook saw
};

// Group, collective or point-to-point call as the API sees it.
struct ApiEvent {
  ContextSlot* context;
  std::uint32_t call_id;
  bool captured, own_row, is_group;
  std::atomic<bool> open;          // of a group: it has not ended
  void* in;                        // handle of the group that it was made in
  void* group;                     // the same, if the group writes its row
  std::atomic<void*> first, next;  // of a group: calls without a hook; in a list of them
  std::uint32_t calls_count, batch_id;
  schema::NcclCall row;
  void reset() noexcept {
    context = nullptr;
    call_id = calls_count = batch_id = 0;
    captured = own_row = is_group = false;
    open.store(false, std::memory_order_relaxed);
    in = group = nullptr;
    first.store(nullptr, std::memory_order_relaxed);
    next.store(nullptr, std::memory_order_relaxed);
    row = {};
  }
};

// Collective or point-to-point operation as enqueued: one nccl_task row.
struct Task {
  ContextSlot* context;
  std::uint64_t begin_ticks, plugin_index;
  std::uint32_t call_id, task_id, algorithm_id, protocol_id;
  std::int32_t device;
  std::uint16_t op, flags, channels;
  bool expects_stamps, distrusted;    // distrusted: enqueued after NCCL began to mix stamps up
  std::atomic<std::int32_t> pending;  // its own stop, channels, proxy operations; 0: row written
  std::atomic<std::uint32_t> channels_ended, timed;
  std::atomic<std::uint64_t> end_ticks;
  std::atomic<std::int64_t> begin_device_ns, end_device_ns;
  std::atomic<bool> stopped, written;
  void reset() noexcept {
    context = nullptr;
    begin_ticks = plugin_index = 0;
    call_id = task_id = algorithm_id = protocol_id = 0;
    device = -1;
    op = flags = channels = 0;
    expects_stamps = distrusted = false;
    pending.store(0, std::memory_order_relaxed);
    channels_ended.store(0, std::memory_order_relaxed);
    timed.store(0, std::memory_order_relaxed);
    end_ticks.store(0, std::memory_order_relaxed);
    begin_device_ns.store(-1, std::memory_order_relaxed);
    end_device_ns.store(-1, std::memory_order_relaxed);
    stopped.store(false, std::memory_order_relaxed);
    written.store(false, std::memory_order_relaxed);
  }
};

struct KernelCh {
  void* task;
  std::uint64_t begin_ticks;
  std::uint64_t begin_timer;
  std::atomic<std::uint64_t> end_timer;
  std::uint16_t channel;
  void reset() noexcept {
    task = nullptr;
    begin_ticks = begin_timer = 0;
    end_timer.store(0, std::memory_order_relaxed);
    channel = 0;
  }
};

enum Wait : unsigned { kGpu, kPeer, kWire, kFlush, kWaits, kNoWait = kWaits };

struct ProxyOp {
  void* task;
  std::uint64_t begin_ticks;
  std::uint32_t task_id;
  std::int32_t peer;
  std::uint16_t channel;
  bool is_send;
  std::atomic<std::uint64_t> first_ticks, last_ticks, wait_ticks[kWaits];
  std::atomic<std::int64_t> bytes;
  std::atomic<std::uint32_t> steps;
  void reset() noexcept {
    task = nullptr;
    begin_ticks = 0;
    task_id = 0;
    peer = -1;
    channel = 0;
    is_send = false;
    first_ticks.store(0, std::memory_order_relaxed);
    last_ticks.store(0, std::memory_order_relaxed);
    for (auto& ticks : wait_ticks) ticks.store(0, std::memory_order_relaxed);
    bytes.store(0, std::memory_order_relaxed);
    steps.store(0, std::memory_order_relaxed);
  }
};

// One thread at a time: the proxy thread of its communicator.
struct ProxyStep {
  void* op;
  std::uint64_t state_ticks;
  unsigned state;
  std::int64_t bytes;
  void reset() noexcept {
    op = nullptr;
    state_ticks = 0;
    state = kNoWait;
    bytes = 0;
  }
};

struct Pools {
  Slab<ApiEvent, 8192, 1> api;
  Slab<Task, 8192, 2> tasks;
  Slab<KernelCh, 32768, 3> kernels;
  Slab<ProxyOp, 8192, 4> proxy_ops;
  Slab<ProxyStep, 16384, 5> proxy_steps;
  bool prepare() noexcept {
    return api.prepare() && tasks.prepare() && kernels.prepare() && proxy_ops.prepare() && proxy_steps.prepare();
  }
  // In a forked child: what is in flight belongs to the parent, and so do its rows.
  void forget() noexcept {
    api.forget();
    tasks.forget();
    kernels.forget();
    proxy_ops.forget();
    proxy_steps.forget();
  }
};
extern constinit Pools pools;

std::uint16_t op_of(const char* func) noexcept;
std::int64_t bytes_of_type(const char* datatype) noexcept;

// plugin_tasks.cpp
void* start_task(ContextSlot& context, const Event& event) noexcept;
void stop_task(Task& task, void* handle) noexcept;
void* start_kernel(const Event& event) noexcept;
void stop_kernel(KernelCh& kernel, void* handle) noexcept;
void sweep_tasks(std::uint64_t now, bool all, std::uint64_t tick_hz) noexcept;
void end_tasks(ContextSlot& context) noexcept;  // of a communicator that ends
bool adopt_child(Task& task) noexcept;          // false: its row is written already
void child_ended(Task& task, void* handle) noexcept;
void announce(ContextSlot& context) noexcept;

// plugin_proxy.cpp
void* start_proxy_op(const Event& event) noexcept;
void stop_proxy_op(ProxyOp& op, void* handle) noexcept;
void* start_proxy_step(const Event& event) noexcept;
void proxy_state(ProxyStep& step, int state, const profiler::StateArgs* args) noexcept;
void stop_proxy_step(ProxyStep& step, void* handle) noexcept;
void sweep_proxy_ops(std::uint64_t now, bool all, std::uint64_t tick_hz) noexcept;

// plugin_api.cpp
void* start_api(ContextSlot& context, const Event& event) noexcept;
void forget_api() noexcept;  // in a forked child
void stop_api(ApiEvent& api, void* handle) noexcept;
void write_own_call(ApiEvent& api, std::uint64_t returned, std::uint32_t batch_id) noexcept;
std::uint32_t call_of(ContextSlot& context, const Event& event, std::uint16_t op, std::uint16_t& flags) noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::nccl::plugin
