// Stream-taking calls and groups of the NCCL double. SPDX-License-Identifier: Apache-2.0
//
// Each function is a strong pncclX with a weak alias ncclX, and ncclBcast calls ncclBroadcast through the import table: the
// two things of the real library that an interposer has to know.
#include <thread>

#include "nccl_api.h"

using namespace fake;

namespace fake {

thread_local Group t_group;

namespace {

// In a group several communicators may take part; each has its own kernel.
int launch_all(std::vector<std::pair<CommPtr, Op>> calls) {
  int result = nccl::kSuccess;
  while (!calls.empty()) {
    const CommPtr comm = calls.front().first;
    std::vector<Op> ops;
    std::vector<std::pair<CommPtr, Op>> others;
    for (auto& [of, op] : calls) {
      if (of == comm) ops.push_back(op);
      else others.emplace_back(of, op);
    }
    calls = std::move(others);
    if (comm->blocking) {
      if (const int error = launch_ops(comm, std::move(ops)); error != 0) result = error;
      continue;
    }
    // 2.30.7 src/group.cc:855, ncclGroupEndInternal: a group of non-blocking communicators is launched by a thread of its own
    // (groupLaunchNonBlocking), on the communicator's device (groupLaunch: cudaSetDevice), after ncclInProgress was returned.
    comm->pending.fetch_add(1);
    std::thread([comm, later = std::move(ops)] {
      pause_ns(setting("nccl.nonblocking.delay", 200e3));
      const OnDevice current(comm->device);
      if (const int error = launch_ops(comm, later); error != 0) comm->async_error.store(error);
      comm->pending.fetch_sub(1);
    }).detach();
    if (result == nccl::kSuccess) result = nccl::kInProgress;
  }
  return result;
}

}  // namespace

void group_begin() {
  if (t_group.depth++ == 0) t_group.plugin = nullptr;
}

int group_end() {
  if (t_group.depth == 0) return nccl::kInvalidUsage;
  if (--t_group.depth > 0) return nccl::kSuccess;
  auto calls = std::move(t_group.calls);
  auto inits = std::move(t_group.inits);
  t_group.calls.clear();
  t_group.inits.clear();
  const CommPtr told = t_group.plugin;
  t_group.plugin.reset();
  int result = nccl::kSuccess;
  if (told != nullptr) group_end_called();
  for (const CommPtr& comm : inits) open_plugin(*comm);
  for (const CommPtr& comm : inits) {
    if (!comm->meeting->wait_attached()) result = nccl::kSystemError;
  }
  if (t_group.error != nccl::kSuccess) {
    result = std::exchange(t_group.error, nccl::kSuccess);
  } else if (!calls.empty()) {
    result = launch_all(std::move(calls));
  }
  if (told != nullptr) group_api_end();
  return result;
}

int call(nccl::Comm handle, Op op) {
  if (handle == nullptr || handle->state == nullptr) return nccl::kInvalidArgument;
  const CommPtr comm = handle->state;
  // 2.30.7 src/init.cc, ncclCommEnsureReady: "Attempt to use communicator before the previous operation returned ncclSuccess".
  if (!comm->blocking && comm->pending.load() != 0) return nccl::kInvalidArgument;
  if (op.point_to_point() && op.kind != OpKind::wait_signal && (op.root < 0 || op.root >= comm->size)) {
    return nccl::kInvalidArgument;
  }
  const bool captured = engine()->capturing(op.stream);
  const bool outermost = t_group.depth == 0;
  group_begin();
  // 2.28.3 src/enqueue.cc, collTaskAppend and p2pTaskAppend: the first task of a group begins its API event. What makes no
  // task tells nothing: empty collectives, collectives of one rank, one-sided operations (taskAppend, rmaTaskAppend).
  const bool telling = !op.one_sided() && (op.point_to_point() || (op.count != 0 && comm->size > 1));
  if (telling && t_group.plugin == nullptr) {
    t_group.plugin = comm;
    comm->plugin->group_api_begin(t_group.depth, captured);
    group_start_returned();
  }
  if (telling) comm->plugin->append(op, captured);
  t_group.calls.emplace_back(comm, std::move(op));
  if (outermost) return group_end();
  --t_group.depth;
  return nccl::kSuccess;
}

}  // namespace fake

// NAME without the prefix, parameters, and the operation.
#define STREAM_CALL(NAME, PARAMETERS, ...)                                                       \
  FAKE_API int pnccl##NAME PARAMETERS {                                                          \
    FAKE_CALL(nccl##NAME);                                                                       \
    Op op;                                                                                       \
    op.name = #NAME;                                                                             \
    __VA_ARGS__;                                                                                 \
    op.stream = stream;                                                                          \
    return call(comm, op);                                                                       \
  }                                                                                              \
  FAKE_ALIAS(NAME, PARAMETERS)

#define COLLECTIVE(NAME, KIND, PARAMETERS, CONFIG_PARAMETERS, ROOT)                              \
  STREAM_CALL(NAME, PARAMETERS, op.kind = OpKind::KIND; op.send_buffer = from; op.receive_buffer = to; \
              op.count = count; op.type = type; op.root = ROOT)                                  \
  STREAM_CALL(NAME##Config, CONFIG_PARAMETERS, op.name = #NAME; op.kind = OpKind::KIND; op.send_buffer = from; \
              op.receive_buffer = to; op.count = count; op.type = type; op.root = ROOT; (void)config)

#define BUFFERS const void *from, void *to, std::size_t count, int type
#define WHERE nccl::Comm comm, void *stream
#define CONFIG const nccl::CollConfig *config

COLLECTIVE(AllReduce, all_reduce, (BUFFERS, int, WHERE), (BUFFERS, int, WHERE, CONFIG), -1)
COLLECTIVE(Reduce, reduce, (BUFFERS, int, int root, WHERE), (BUFFERS, int, int root, WHERE, CONFIG), root)
COLLECTIVE(Broadcast, broadcast, (BUFFERS, int root, WHERE), (BUFFERS, int root, WHERE, CONFIG), root)
COLLECTIVE(AllGather, all_gather, (BUFFERS, WHERE), (BUFFERS, WHERE, CONFIG), -1)
COLLECTIVE(ReduceScatter, reduce_scatter, (BUFFERS, int, WHERE), (BUFFERS, int, WHERE, CONFIG), -1)
COLLECTIVE(AlltoAll, all_to_all, (BUFFERS, WHERE), (BUFFERS, WHERE, CONFIG), -1)
COLLECTIVE(Gather, gather, (BUFFERS, int root, WHERE), (BUFFERS, int root, WHERE, CONFIG), root)
COLLECTIVE(Scatter, scatter, (BUFFERS, int root, WHERE), (BUFFERS, int root, WHERE, CONFIG), root)

STREAM_CALL(Send, (const void* from, std::size_t count, int type, int peer, WHERE), op.kind = OpKind::send;
            op.send_buffer = from; op.count = count; op.type = type; op.root = peer)
STREAM_CALL(Recv, (void* to, std::size_t count, int type, int peer, WHERE), op.kind = OpKind::receive;
            op.receive_buffer = to; op.count = count; op.type = type; op.root = peer)
STREAM_CALL(PutSignal, (const void* from, std::size_t count, int type, int peer, nccl::Window, std::size_t, int, int,
                        unsigned, WHERE),
            op.kind = OpKind::put; op.send_buffer = from; op.count = count; op.type = type; op.root = peer)
STREAM_CALL(Signal, (int peer, int, int, unsigned, WHERE), op.kind = OpKind::signal; op.root = peer)
STREAM_CALL(WaitSignal, (int, nccl::WaitSignalDesc* awaited, WHERE), op.kind = OpKind::wait_signal;
            op.root = awaited->peer)

FAKE_API int pncclBcast(void* buffer, std::size_t count, int type, int root, WHERE) {
  FAKE_CALL(ncclBcast);
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
FAKE_ALIAS(Bcast, (void*, std::size_t, int, int, nccl::Comm, void*))

FAKE_API int pncclGroupStart() {
  FAKE_CALL(ncclGroupStart);
  group_begin();
  return nccl::kSuccess;
}
FAKE_ALIAS(GroupStart, ())

namespace {
int count_group_end() {
  FAKE_CALL(ncclGroupEnd);
  return nccl::kSuccess;
}
}  // namespace

FAKE_API int pncclGroupEnd() {
  const int injected = count_group_end();
  if (injected == nccl::kSuccess) return group_end();
  t_group = {};  // NCCL closes a group that failed, and drops its calls
  return injected;
}
FAKE_ALIAS(GroupEnd, ())

FAKE_API int pncclGroupSimulateEnd(nccl::SimInfo*) {
  FAKE_CALL(ncclGroupSimulateEnd);
  if (t_group.depth == 0) return nccl::kInvalidUsage;
  --t_group.depth;
  t_group.calls.clear();
  return nccl::kSuccess;
}
FAKE_ALIAS(GroupSimulateEnd, (nccl::SimInfo*))
