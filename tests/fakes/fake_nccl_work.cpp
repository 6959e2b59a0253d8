// What a communicator of the NCCL double does on a stream. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "nccl_comm.h"

namespace fake {

std::int64_t Op::bytes(int size) const {
  const std::int64_t block = static_cast<std::int64_t>(count) * nccl::bytes_of(type);
  switch (kind) {
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
    case OpKind::gather:
    case OpKind::scatter: return block * size;
    case OpKind::signal:
    case OpKind::wait_signal: return 0;
    default: return block;
  }
}

// nccl.nodes for every communicator, or nccl.node.ranks: so many ranks share a node.
int nodes_of(const CommState& comm) {
  const int together = static_cast<int>(setting("nccl.node.ranks", 0));
  if (together > 0) return (comm.size + together - 1) / together;
  return std::min(comm.size, static_cast<int>(setting("nccl.nodes", 1)));
}

// nccl.latency and nccl.bandwidth hold inside a node; nccl.network.latency and .bandwidth where there are more.
std::int64_t transfer_ns(const Op& op, const CommState& comm) {
  const bool network = nodes_of(comm) > 1;
  const double latency = setting("nccl.latency", 10e3), bandwidth = setting("nccl.bandwidth", 10e9);
  const double own_latency = network ? setting("nccl.network.latency", latency) : latency;
  const double own_bandwidth = network ? setting("nccl.network.bandwidth", bandwidth) : bandwidth;
  return static_cast<std::int64_t>(own_latency + static_cast<double>(op.bytes(comm.size)) / own_bandwidth * 1e9);
}

namespace {

// Who must have entered before this rank can end.
bool needed(const Op& op, int own_rank, int peer) {
  switch (op.kind) {
    case OpKind::broadcast:
    case OpKind::scatter: return own_rank != op.root && peer == op.root;
    case OpKind::reduce:
    case OpKind::gather: return own_rank == op.root;
    default: return true;
  }
}

struct NcclKernel : Work {
  std::int64_t run(std::int64_t begin_ns) override {
    std::unique_lock lock(comm->mutex);
    if (!captured) comm->turn.wait(lock, [&] { return comm->served == ticket; });
    begin_ns = std::max(begin_ns, comm->last_end_ns);
    lock.unlock();
    engine()->work_until(begin_ns);
    const std::int64_t end_ns = run_ops(begin_ns);
    lock.lock();
    comm->last_end_ns = std::max(comm->last_end_ns, end_ns);
    if (!captured) ++comm->served;
    comm->turn.notify_all();
    return end_ns;
  }

  std::int64_t run_ops(std::int64_t begin_ns) {
    struct Message {
      Op* op;
      std::uint64_t number;
      PluginSession::Proxies proxies;
    };
    std::vector<Message> messages;
    std::int64_t end_ns = begin_ns;
    running = comm->plugin->kernel_begins(*plan, begin_ns);
    for (Op& op : plan->ops) {
      if (!op.point_to_point()) continue;
      const bool sends = op.kind != OpKind::receive && op.kind != OpKind::wait_signal;
      messages.push_back({&op, next_message(op.root, sends), {}});
      begin_network(op, &messages.back().proxies);
      if (!comm->meeting->offer(op.root, sends, messages.back().number, begin_ns)) return engine()->now();
    }
    for (Op& op : plan->ops) {
      if (op.point_to_point()) continue;
      end_ns = collective(op, end_ns);
      if (end_ns < 0) return engine()->now();
    }
    for (Message& message : messages) {
      const Op& op = *message.op;
      const bool sends = op.kind != OpKind::receive && op.kind != OpKind::wait_signal;
      const bool waits = op.kind != OpKind::put && op.kind != OpKind::signal;
      const std::int64_t last_ns = comm->meeting->accept(op.root, sends, message.number, waits);
      if (last_ns < 0) return engine()->now();
      const std::int64_t own_end_ns = last_ns + transfer_ns(op, *comm);
      finish(*message.op, last_ns, own_end_ns, &message.proxies);
      end_ns = std::max(end_ns, own_end_ns);
    }
    comm->plugin->kernel_ends(running);
    return end_ns;
  }

  // -1: aborted.
  std::int64_t collective(Op& op, std::int64_t begin_ns) {
    PluginSession::Proxies proxies;
    begin_network(op, &proxies);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(comm->mutex);
      number = comm->number++;
    }
    const std::int64_t last_ns =
        comm->meeting->meet(number, begin_ns, [&](int peer) { return needed(op, comm->rank, peer); });
    if (last_ns < 0) return -1;
    const std::int64_t end_ns = last_ns + transfer_ns(op, *comm);
    finish(op, last_ns, end_ns, &proxies);
    return end_ns;
  }

  void begin_network(const Op& op, PluginSession::Proxies* proxies) {
    if (nodes_of(*comm) > 1) comm->plugin->network_begin(op, proxies);
  }

  void finish(Op& op, std::int64_t last_ns, std::int64_t end_ns, PluginSession::Proxies* proxies) {
    comm->plugin->network_end(op, proxies, last_ns, end_ns);
    engine()->work_until(end_ns);
    PluginSession::operation_ends(running, op, end_ns);
  }

  std::uint64_t next_message(int peer, bool sends) {
    const std::lock_guard lock(comm->mutex);
    return comm->messages[{peer, sends}]++;
  }

  CommPtr comm;
  std::shared_ptr<Plan> plan;
  PluginSession::Running running;
  std::uint64_t ticket = 0;
  bool captured = false;
};

// 2.27.7 src/enqueue.cc:1704, ncclLaunchPrepare: cudaLaunchHostFunc(hostStream, hostStreamPlanCallback, plan), which the
// kernel waits for.
struct HostFunction : Work {
  std::int64_t run(std::int64_t begin_ns) override {
    comm->plugin->post(*plan);
    return begin_ns;
  }
  CommPtr comm;
  std::shared_ptr<Plan> plan;
};

int add_host_function(const CommPtr& comm, const std::vector<void*>& streams, const std::shared_ptr<Plan>& plan) {
  FAKE_CALL(cudaLaunchHostFunc);
  auto work = std::make_shared<HostFunction>();
  work->comm = comm;
  work->plan = plan;
  return engine()->submit(streams, work, Ran(RanKind::event));
}

}  // namespace

int launch_ops(const CommPtr& comm, std::vector<Op> ops) {
  auto work = std::make_shared<NcclKernel>();
  work->comm = comm;
  std::vector<void*> streams;
  for (const Op& op : ops) {
    if (std::find(streams.begin(), streams.end(), op.stream) == streams.end()) streams.push_back(op.stream);
  }
  work->captured = engine()->capturing(streams.front());
  Ran description(RanKind::communication);
  description.name = std::string("ncclDevKernel_") + ops.front().name + "_Sum_f32_RING_SIMPLE";
  for (const Op& op : ops) description.size_bytes += op.bytes(comm->size);
  description.correlation = engine()->next_correlation();
  auto plan = std::make_shared<Plan>();
  plan->ops = std::move(ops);
  plan->persistent = work->captured;
  plan_tasks(*plan, *comm);
  work->plan = plan;
  // Launches of one communicator are in order. A full stream holds the launching thread, so not under the lock of the kernels.
  const std::lock_guard launching(comm->launch_mutex);
  if (plan->host_function && add_host_function(comm, streams, plan) != 0) return nccl::kUnhandledCudaError;
  comm->plugin->launch(*plan);
  // 2.27.7 src/enqueue.cc, ncclLaunchKernelAfter_NoCuda: if (!plan->isHostCbEnq), for captured plans too. NCCL posts behind
  // the launch; here it comes first, so that the order in which a test sees the device's events is one.
  if (!plan->host_function) comm->plugin->post(*plan);
  if (!work->captured) {
    const std::lock_guard lock(comm->mutex);
    work->ticket = comm->next_ticket++;
  }
  const int error = engine()->submit(streams, work, description);
  if (error != 0 && !work->captured) {
    const std::lock_guard lock(comm->mutex);
    --comm->next_ticket;
  }
  return error == 0 ? nccl::kSuccess : nccl::kUnhandledCudaError;
}

}  // namespace fake
