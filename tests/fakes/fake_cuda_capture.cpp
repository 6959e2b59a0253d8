// Stream capture and graphs of the libcuda double: which call ends a capture, and replays. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda_objects.h"

using namespace fake;

namespace fake {

int invalidate(const CapturePtr& capture, int code) {
  capture->invalidated = true;
  return code;
}

// The rule of cuThreadExchangeStreamCaptureMode: which captures forbid this thread a call that may synchronise.
int unsafe_call() {
  if (t_capture_mode == kCaptureRelaxed) return kSuccess;
  for (const CapturePtr& capture : state().captures) {
    if (capture->mode == kCaptureRelaxed) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    const bool of_another = capture->mode == kCaptureGlobal && t_capture_mode == kCaptureGlobal;
    if (own || of_another) return invalidate(capture, kCaptureUnsupported);
  }
  return kSuccess;
}

static CapturePtr capture_beside(const Stream* stream) {
  if (!stream->legacy) return nullptr;
  for (const CapturePtr& capture : state().captures) {
    const bool blocking = (capture->origin->flags & kStreamNonBlocking) == 0;
    if (blocking && capture->origin->context == stream->context) return capture;
  }
  return nullptr;
}

int legacy_use(Stream* stream) {
  const CapturePtr capture = capture_beside(stream);
  return capture == nullptr ? kSuccess : invalidate(capture, kCaptureImplicit);
}

}  // namespace fake

namespace {

struct GraphExec {
  std::shared_ptr<Graph> graph;
  std::uint64_t id = 0;
};

struct GraphHandle {
  std::shared_ptr<Graph> graph;
};

// One launch: nodes in capture order; a node begins when those it follows have ended.
struct GraphWork : Work {
  GraphWork(const GraphExec* exec, const Stream* stream, std::uint64_t launch)
      : graph(exec->graph), id(exec->id), stream_id(stream->id), correlation(launch), device(stream->context->device) {}
  std::int64_t run(std::int64_t begin_ns) override {
    std::vector<std::int64_t> ends;
    std::int64_t end_ns = begin_ns;
    for (const GraphNode& node : graph->nodes) {
      std::int64_t ready_ns = begin_ns;
      for (const int before : node.after) ready_ns = std::max(ready_ns, ends[static_cast<std::size_t>(before)]);
      ends.push_back(node.work == nullptr ? ready_ns : node.work->run(ready_ns));
      Ran ran = node.description;
      ran.stream_id = stream_id;
      ran.device = device;
      ran.graph_id = id;
      ran.correlation = correlation;  // of the launch, as CUPTI says it
      told(ran, ready_ns, ends.back());
      end_ns = std::max(end_ns, ends.back());
    }
    return end_ns;
  }
  std::shared_ptr<Graph> graph;
  std::uint64_t id, stream_id, correlation;
  int device;
};

int status_of(Stream* stream, int* status) {
  if (capture_beside(stream) != nullptr) return kCaptureImplicit;
  *status = stream->capture == nullptr ? 0 : stream->capture->invalidated ? 2 : 1;
  return kSuccess;
}

}  // namespace

#define WITH_STREAM(NAME)                                                \
  FAKE_CALL(NAME);                                                       \
  if (const int error = context_error(); error != kSuccess) return error; \
  std::unique_lock lock(state().mutex);                                  \
  Stream* stream = find_stream(handle);                                  \
  if (stream == nullptr) return no_stream(handle)

FAKE_API int cuThreadExchangeStreamCaptureMode(int* mode) {
  AS_READ(cuThreadExchangeStreamCaptureMode, false);  // cuda.h 13.5, 17471: it lists no error of a context
  if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, t_capture_mode);
  return kSuccess;
}

FAKE_API int cuStreamIsCapturing(void* handle, int* status) {
  STREAM_AS_READ(cuStreamIsCapturing, false);
  return status_of(stream, status);
}

FAKE_API int cuStreamGetCaptureInfo_v2(void* handle, int* status, std::uint64_t* id, void** graph, const void*** nodes,
                                       std::size_t* count) {
  WITH_STREAM(cuStreamGetCaptureInfo_v2);
  if (const int error = status_of(stream, status); error != kSuccess) return error;
  if (id != nullptr) *id = stream->capture == nullptr ? 0 : stream->capture->id;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (count != nullptr) *count = 0;
  return kSuccess;
}

FAKE_API int cuStreamGetCaptureInfo_v3(void* handle, int* status, std::uint64_t* id, void** graph, const void*** nodes,
                                       const void** edges, std::size_t* count) {
  FAKE_CALL(cuStreamGetCaptureInfo_v3);
  if (edges != nullptr) *edges = nullptr;
  return cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}

FAKE_API int cuStreamBeginCapture_v2(void* handle, int mode) {
  WITH_STREAM(cuStreamBeginCapture_v2);
  if (stream->legacy || stream->capture != nullptr) return kCaptureUnsupported;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->id = state().next_id.fetch_add(1);
  capture->graph->id = capture->id;
  capture->streams = {stream};
  stream->capture = capture;
  stream->capture_after.clear();
  state().captures.push_back(capture);
  return kSuccess;
}

FAKE_API int cuStreamEndCapture(void* handle, void** graph) {
  WITH_STREAM(cuStreamEndCapture);
  *graph = nullptr;
  const CapturePtr capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return kCaptureUnmatched;
  if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  // Joined: the other streams' last nodes are behind something that the origin has waited for.
  std::set<int> reached(stream->capture_after.begin(), stream->capture_after.end());
  for (auto node = static_cast<int>(capture->graph->nodes.size()) - 1; node >= 0; --node) {
    if (!reached.contains(node)) continue;
    const auto& after = capture->graph->nodes[static_cast<std::size_t>(node)].after;
    reached.insert(after.begin(), after.end());
  }
  bool unjoined = false;
  for (Stream* member : capture->streams) {
    for (const int node : member->capture_after) unjoined = unjoined || !reached.contains(node);
    member->capture.reset();
    member->capture_after.clear();
  }
  capture->ended = true;
  std::erase(state().captures, capture);
  if (capture->invalidated) return kCaptureInvalidated;
  if (unjoined) return kCaptureUnjoined;
  auto* made = new GraphHandle{capture->graph};
  state().graphs.insert(made);
  *graph = made;
  return kSuccess;
}

FAKE_API int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  FAKE_CALL(cuGraphInstantiateWithFlags);
  if (const int error = context_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (!state().graphs.contains(graph)) return kInvalidValue;
  auto* made = new GraphExec{static_cast<GraphHandle*>(graph)->graph, state().next_id.fetch_add(1)};
  state().graph_execs.insert(made);
  *exec = made;
  return kSuccess;
}

FAKE_API int cuGraphInstantiate_v2(void** exec, void* graph, void*, char*, std::size_t) {
  FAKE_CALL(cuGraphInstantiate_v2);
  return cuGraphInstantiateWithFlags(exec, graph, 0);
}

FAKE_API int cuGraphLaunch(void* exec, void* handle) {
  WITH_STREAM(cuGraphLaunch);
  if (!state().graph_execs.contains(exec)) return kInvalidValue;
  Ran description{RanKind::graph};
  description.name = "graph";
  description.graph_id = static_cast<GraphExec*>(exec)->id;
  description.correlation = state().next_correlation.fetch_add(1);
  auto work = std::make_shared<GraphWork>(static_cast<GraphExec*>(exec), stream, description.correlation);
  return submit(lock, stream, std::move(work), description);
}

FAKE_API int cuGraphGetNodes(void* graph, void**, std::size_t* count) {
  FAKE_CALL(cuGraphGetNodes);
  const std::lock_guard lock(state().mutex);
  if (!state().graphs.contains(graph)) return kInvalidValue;
  *count = static_cast<GraphHandle*>(graph)->graph->nodes.size();
  return kSuccess;
}

FAKE_API int cuGraphDestroy(void* graph) {
  FAKE_CALL(cuGraphDestroy);
  const std::lock_guard lock(state().mutex);
  return state().graphs.erase(graph) == 0 ? kInvalidValue : kSuccess;
}

FAKE_API int cuGraphExecDestroy(void* exec) {
  FAKE_CALL(cuGraphExecDestroy);
  const std::lock_guard lock(state().mutex);
  return state().graph_execs.erase(exec) == 0 ? kInvalidValue : kSuccess;
}
