// Which operations of a group become tasks of one kernel, in which order, and how many works. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>

#include "nccl_comm.h"

namespace fake {

namespace {

// 2.29.2 src/enqueue.cc, collTaskAppend: NCCL_ALLGATHERV_ENABLE, 1 by default.
bool all_gather_v() {
  const char* value = getenv("NCCL_ALLGATHERV_ENABLE");
  return release() >= 229 && (value == nullptr || std::string_view(value) != "0");
}

// 2.27.7 src/enqueue.cc, ncclFuncTrafficPerByte.
std::size_t traffic(const Task& task, int size) {
  const std::string_view func = task.func;
  const std::size_t bytes = task.count * static_cast<std::size_t>(nccl::bytes_of(task.type));
  if (func == "AllReduce") return 2 * bytes;
  return func == "AllGather" || func == "ReduceScatter" ? bytes * static_cast<std::size_t>(size) : bytes;
}

// 2.27.7 src/enqueue.cc, ncclPrepareTasks: sorted by traffic, largest first, then binned by function and type, each bin in
// the other order.
void order_collectives(std::vector<Task*>& tasks, int size) {
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const Task* a, const Task* b) { return traffic(*a, size) > traffic(*b, size); });
  std::vector<std::vector<Task*>> bins;
  for (Task* task : tasks) {
    const auto bin = std::find_if(bins.begin(), bins.end(), [&](const std::vector<Task*>& one) {
      return one.front()->type == task->type && std::string_view(one.front()->func) == task->func;
    });
    if (bin == bins.end()) bins.push_back({task});
    else bin->insert(bin->begin(), task);
  }
  tasks.clear();
  for (const auto& bin : bins) tasks.insert(tasks.end(), bin.begin(), bin.end());
}

// 2.27.7 src/enqueue.cc, scheduleP2pTasksToPlan: round by round, a send to one rank and a receive from another are one
// work; in a round with itself, a rank moves nothing where both buffers are the same.
void order_messages(Plan& plan, std::vector<Task*> messages, const CommState& comm) {
  while (!messages.empty()) {
    for (int round = 0; round < comm.size; ++round) {
      const auto take = [&](const char* func, int peer) -> Task* {
        const auto found = std::find_if(messages.begin(), messages.end(), [&](const Task* task) {
          return task->peer == peer && std::string_view(task->func) == func;
        });
        if (found == messages.end()) return nullptr;
        Task* task = *found;
        messages.erase(found);
        return task;
      };
      Task* send = take("Send", (comm.rank + round) % comm.size);
      Task* receive = take("Recv", (comm.rank - round + comm.size) % comm.size);
      if (send == nullptr && receive == nullptr) continue;
      const bool in_place = round == 0 && send != nullptr && receive != nullptr &&
                            send->send_buffer == receive->receive_buffer;
      for (Task* task : {send, receive}) {
        if (task == nullptr) continue;
        task->work = in_place ? ~std::size_t{0} : plan.works;
        if (!in_place) plan.messages.push_back(task);
      }
      if (!in_place) ++plan.works;
    }
  }
}

}  // namespace

// 2.29.2 src/ce_coll.cc, ncclCeAvailable: these four.
bool copied(const Op& op) {
  const bool can = op.kind == OpKind::all_gather || op.kind == OpKind::all_to_all || op.kind == OpKind::gather ||
                   op.kind == OpKind::scatter;
  return can && release() >= 229 && setting("nccl.ce", 0) != 0;
}

void plan_tasks(Plan& plan, const CommState& comm) {
  std::vector<Task*> messages, broadcasts;
  for (Op& op : plan.ops) {
    for (Task& task : op.tasks) {
      if (task.point_to_point) messages.push_back(&task);
      else if (copied(op)) plan.copies.push_back(&task);
      else plan.collectives.push_back(&task);
      if (op.kind == OpKind::broadcast && all_gather_v()) broadcasts.push_back(&task);
      if (copied(op)) task.work = ~std::size_t{0};
    }
  }
  // 2.29.2 src/enqueue.cc, collTaskAppend and ncclPrepareTasks: a broadcast becomes another task, which keeps neither the
  // mask nor the API event. With several roots they stay what src/scheduler/allgatherv_sched.cc makes of them.
  for (Task* task : broadcasts) {
    task->told = false;
    task->all_gather_v = std::any_of(broadcasts.begin(), broadcasts.end(),
                                     [&](const Task* other) { return other->peer != task->peer; });
  }
  order_collectives(plan.collectives, comm.size);
  for (Task* task : plan.collectives) task->work = plan.works++;
  order_messages(plan, std::move(messages), comm);
  // Who has proxy operations: those of the network, and before 2.31 the profiler's own (2.27.7 src/enqueue.cc,
  // addProfilerProxyOpIfNeeded); from 2.31.0 on plan->hasProfilerOps. A message to oneself has neither before 2.31.
  bool proxies = false;
  for (const auto* list : {&plan.collectives, &plan.messages}) {
    for (const Task* task : *list) {
      const bool own = task->point_to_point && task->peer == comm.rank;
      const bool stamps = task->told && (task->mask & profiler::kKernelCh) != 0;
      proxies |= (stamps && (!own || release() >= 231)) || (nodes_of(comm) > 1 && !own);
    }
  }
  plan.host_function = plan.persistent && proxies;
}

}  // namespace fake
