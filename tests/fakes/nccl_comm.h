// Communicators, operations and the plugin of the NCCL double. SPDX-License-Identifier: Apache-2.0
//
// A communicator is owned by its handle and by its work on streams: one that is destroyed with work in flight lives until
// that work has ended. Calls to the profiler plugin come from the caller's thread (API, enqueue, launch) and from the
// stream's worker (what happens on the device), as with NCCL's proxy thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/nccl_abi.h"
#include "abi/nccl_profiler_v7.h"
#include "engine.h"
#include "nccl_rendezvous.h"
#include "script.h"

namespace fake {

namespace nccl = stashtrace::nccl;
namespace profiler = stashtrace::nccl::profiler;

Engine* engine();  // of the libcuda double, null without one
inline int nccl_version() { return static_cast<int>(setting("nccl.version", 22809)); }

enum class OpKind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter, send, receive,
                    put, signal, wait_signal };

struct CommState;

struct Op {
  OpKind kind = OpKind::all_reduce;
  const char* name = "";  // as the plugin says it: "AllReduce"
  const void* send_buffer = nullptr;
  void* receive_buffer = nullptr;
  std::size_t count = 0;
  int type = 7;
  int root = -1;  // or peer
  void* stream = nullptr;
  void *api_event = nullptr, *group_event = nullptr, *task_event = nullptr;  // handles of the plugin
  std::uint64_t plugin_sequence = 0;
  bool point_to_point() const { return kind >= OpKind::send; }
  // What moves: the larger of both buffers.
  std::int64_t bytes(int size) const;
};

// Calls the plugin that NCCL_PROFILER_PLUGIN names, in the version that this NCCL has; nothing without one.
class PluginSession {
 public:
  PluginSession(const CommState& comm);
  ~PluginSession();
  bool active() const { return context_ != nullptr || loaded_; }
  void group_api_begin(int depth, bool captured);
  void group_start_returned();
  void group_end_called();
  void group_api_end();
  void api_begin(Op& op, bool captured);
  void api_end(Op& op);
  void launch(std::vector<Op>& ops, bool captured);   // group, tasks and kernel launch, as enqueued
  void replay_begin(Op& op);                          // a captured task, at each launch of its graph
  void replay_end(Op& op);
  void kernel_begin(const Op& op, std::int64_t begin_ns, std::vector<void*>* channels);
  void kernel_end(std::int64_t end_ns, const std::vector<void*>& channels);
  struct Proxies {
    void* operations[2] = {};  // [1] sends
    void* steps[2] = {};
  };
  void network_begin(const Op& op, Proxies* proxies);
  void network_end(const Op& op, Proxies* proxies, std::int64_t last_ns, std::int64_t end_ns);

 private:
  struct Event;
  void task_begin(Op& op);
  void task_end(Op& op);
  void step_begin(Proxies* proxies, int step);
  void* start(const Event& event);
  void state(void* handle, profiler::State what, std::uint64_t word);
  void stop(void* handle);
  bool wanted(std::uint64_t bits) const;

  const CommState& comm_;
  bool loaded_ = false;
  void* context_ = nullptr;
  void* group_api_ = nullptr;
  std::map<std::string, std::uint64_t> sequences_;
};

struct CommState {
  std::string name;  // of the meeting
  std::uint64_t hash = 0;
  int size = 1, rank = 0, device = 0;
  bool blocking = true;
  std::string comm_name;
  std::unique_ptr<Rendezvous> meeting;
  std::unique_ptr<PluginSession> plugin;
  std::uint64_t admin_number = 0;  // splits and the like so far, equal on all ranks
  std::atomic<int> pending{0};     // calls that a thread of a non-blocking communicator has still to make
  std::atomic<int> async_error{0};

  // Of the device: kernels of one communicator run in the order of their launches, on whatever streams.
  std::mutex launch_mutex, mutex;
  std::condition_variable turn;
  std::uint64_t next_ticket = 0, served = 0;
  std::uint64_t number = 0;  // collectives so far
  std::map<std::pair<int, bool>, std::uint64_t> messages;
  std::int64_t last_end_ns = 0;
};
using CommPtr = std::shared_ptr<CommState>;

std::int64_t transfer_ns(const Op& op, const CommState& comm);
int nodes_of(const CommState& comm);
// Puts the operations of one communicator on their streams. Returns an ncclResult_t.
int launch_ops(const CommPtr& comm, std::vector<Op> ops);

}  // namespace fake

// What a ncclComm_t points at.
namespace stashtrace::nccl {
struct CommOpaque {
  fake::CommPtr state;
};
}  // namespace stashtrace::nccl
