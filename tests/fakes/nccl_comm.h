// Communicators, operations and the plugin of the NCCL double. SPDX-License-Identifier: Apache-2.0
//
// A communicator is owned by its handle and by its work on streams: one that is destroyed with work in flight lives until
// that work has ended. Calls to the profiler plugin come from the caller's thread (API, enqueue, launch) and from the
// stream's worker (what happens on the device), as with NCCL's proxy thread.
//
// Beside what the double answers stands the place in NCCL that it plays, as release, file and function (and the line where
// it is known): "2.27.7 src/plugin/profiler.cc:240". Releases that say nothing else do the same.
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
inline int release() { return nccl_version() / 100; }

enum class OpKind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter, send, receive,
                    put, signal, wait_signal };

struct CommState;

// What NCCL enqueues for a call, and tells the plugin of: none for an empty collective or one of a single rank
// (2.27.7 src/enqueue.cc, taskAppend: returns early), many for an all-to-all (2.28.3 src/enqueue.cc, taskAppend).
struct Task {
  const char* func = "";  // as the plugin says it: "AllReduce"
  bool point_to_point = false;
  int peer = -1;  // or root
  const void* send_buffer = nullptr;
  void* receive_buffer = nullptr;
  std::size_t count = 0;
  int type = 7;
  void* stream = nullptr;
  int mask = 0;  // the plugin's events when the call was made: 2.27.7 src/enqueue.cc:2366, t->eActivationMask
  bool told = true;  // false: a broadcast of 2.29 and later, whose task has no events
  bool all_gather_v = false;
  void *api_event = nullptr, *group_api = nullptr, *task_event = nullptr;  // handles of the plugin
  std::uint64_t sequence = 0;
  std::size_t work = 0;        // of the plan: a send and a receive of one round are one
  std::uint64_t expected = 0;  // the work counter that its stamps are looked for under
};

struct Op {
  OpKind kind = OpKind::all_reduce;
  const char* name = "";  // as the plugin says it: "AllReduce"
  const void* send_buffer = nullptr;
  void* receive_buffer = nullptr;
  std::size_t count = 0;
  int type = 7;
  int root = -1;  // or peer
  void* stream = nullptr;
  std::vector<Task> tasks;
  bool point_to_point() const { return kind >= OpKind::send; }
  bool one_sided() const { return kind >= OpKind::put; }
  // What moves: the larger of both buffers.
  std::int64_t bytes(int size) const;
};

// The operations of one kernel. Captured, it lives as long as its graph and is posted at each launch.
struct Plan {
  std::vector<Op> ops;
  std::vector<Task*> collectives, messages, copies;  // in the order in which NCCL tells of them; copies: by copy engines
  std::size_t works = 0;                             // by which the device's counter grows
  bool persistent = false, host_function = false;
  void* group_event = nullptr;
};

// Calls the plugin that NCCL_PROFILER_PLUGIN names, in the version that this NCCL has; nothing without one.
class PluginSession {
 public:
  explicit PluginSession(const CommState& comm) : comm_(comm) {}
  ~PluginSession();
  void open();
  void group_api_begin(int depth, bool captured);
  void append(Op& op, bool captured);
  void launch(Plan& plan);  // on the launching thread, before post()
  void post(Plan& plan);    // group, tasks, stamps to look for: there, or in a graph's host function at each launch
  // Stamps that the device wrote, in the order of its counter; a task whose counter was passed gets what stands there.
  struct Running {
    std::uint64_t base = 0;             // the counter before it
    std::vector<std::int64_t> ends_ns;  // of its works
  };
  Running kernel_begins(const Plan& plan, std::int64_t begin_ns);
  static void operation_ends(Running& running, const Op& op, std::int64_t end_ns);
  void kernel_ends(const Running& running);
  struct Proxies {
    void* operations[2] = {};  // [1] sends
    void* steps[2] = {};
    bool elsewhere = false;    // PXN: they run in another process
  };
  void network_begin(const Op& op, Proxies* proxies);
  void network_end(const Op& op, Proxies* proxies, std::int64_t last_ns, std::int64_t end_ns);

 private:
  struct Event;
  struct Waiting {
    void* task_event;
    std::uint64_t expected;
    std::vector<void*> channels;
    bool started;
  };
  void start_task(Plan& plan, Task& task);
  void copy(Task& task);
  void step_begin(Proxies* proxies, int step);
  void look_for_stamps();
  void start_channels(Waiting& one);
  void stop_channels(const Waiting& one);
  void* start(const Event& event);
  void stop(void* handle);
  bool wanted(std::uint64_t bits) const;

  const CommState& comm_;
  bool loaded_ = false;
  void* context_ = nullptr;
  std::map<std::string, std::uint64_t> sequences_;
  std::uint64_t copies_ = 0;

  // 2.27.7 src/device/common.h:347: workCounter += nWorks, whether or not anybody asked for stamps; the last 64 stand.
  static constexpr std::uint64_t kStamps = 64;
  struct Stamp {
    std::uint64_t begun = 0, ended = 0;  // counters
    std::int64_t begin_ns = 0, end_ns = 0;
  };
  std::mutex stamps_mutex_;
  std::uint64_t host_work_ = 0, device_work_ = 0;
  Stamp stamps_[kStamps];
  std::vector<Waiting> waiting_;
};

// GroupStartApiStop and GroupEndApiStart of the thread's outermost group, and its end.
void group_start_returned();
void group_end_called();
void group_api_end();

bool copied(const Op& op);  // by copy engines: no kernel
void plan_tasks(Plan& plan, const CommState& comm);

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
