// Streams of the libcuda double: queue, worker, and what waits for them. SPDX-License-Identifier: Apache-2.0
#include <sys/syscall.h>

#include <algorithm>

#include "cuda_objects.h"

namespace fake {

thread_local std::vector<Context*> t_contexts;
thread_local int t_capture_mode = kCaptureGlobal;

State& state() {
  static State* const only = new State();
  return *only;
}

int device_count() { return static_cast<int>(setting("devices", 1)); }

int ready_error() {
  if (!state().initialized.load()) return kNotInitialized;
  return state().owner_pid == static_cast<int>(getpid()) ? kSuccess : kNotInitialized;  // a forked child
}

int context_error() {
  if (const int error = ready_error(); error != kSuccess) return error;
  const Context* context = current_context();
  if (context == nullptr) return kInvalidContext;
  return context->dead ? kContextDestroyed : kSuccess;
}

bool reads_context(const char* call, bool named) {
  const char* variable = getenv("FAKE_CONTEXT");
  const std::string all = text_setting("context", variable != nullptr ? variable : named ? "needed" : "free");
  return text_setting(std::string("context.") + call, all) == "needed";
}

int read_error(bool needed) { return needed ? context_error() : ready_error(); }

void told(const Ran& description, std::int64_t begin_ns, std::int64_t end_ns) {
  const RanObserver observer = state().observer.load();
  if (observer == nullptr || description.kind == RanKind::event) return;
  Ran ran = description;
  ran.begin_ns = begin_ns;
  ran.end_ns = end_ns;
  observer(ran);
}

bool is_done(const CompletionPtr& done) {
  return done->done;
}

void wait_for(std::unique_lock<std::mutex>& lock, const CompletionPtr& done) {
  state().completed.wait(lock, [&] { return done->done; });
}

static void complete(Stream* stream, const Item& item, std::int64_t end_ns) {
  stream->tail_ns = std::max(stream->tail_ns, end_ns);
  item.done->time_ns = end_ns;
  item.done->done = true;
  state().completed.notify_all();
}

static bool dependencies_done(const Item& item) {
  return std::all_of(item.after.begin(), item.after.end(), [](const CompletionPtr& done) { return done->done; });
}

static std::int64_t begin_of(const Stream* stream, const Item& item) {
  std::int64_t begin_ns = std::max(stream->tail_ns, item.submitted_ns);
  for (const CompletionPtr& done : item.after) begin_ns = std::max(begin_ns, done->time_ns);
  return begin_ns;
}

static void work_off(Stream* stream) {
  std::unique_lock lock(state().mutex);
  for (;;) {
    stream->wake.wait(lock, [&] { return !stream->queue.empty() || stream->dead; });
    if (stream->queue.empty()) return;
    Item item = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->busy = true;
    state().completed.wait(lock, [&] { return dependencies_done(item); });
    const std::int64_t begin_ns = begin_of(stream, item);
    lock.unlock();
    state().clock.work_until(begin_ns);
    const std::int64_t end_ns = item.work->run(begin_ns);
    told(item.description, begin_ns, end_ns);
    item.work.reset();  // may be the last owner of a communicator: not under the mutex
    lock.lock();
    stream->busy = false;
    complete(stream, item, end_ns);
  }
}

int use_of_a_dead_handle() {
  FAKE_CALL(use_of_a_dead_handle);
  return kContextDestroyed;
}

int no_stream(void* handle) {
  const bool known = reinterpret_cast<std::uintptr_t>(handle) > 2 && state().streams.contains(handle);
  const bool detached = known && static_cast<Stream*>(handle)->context->base != nullptr;
  return detached ? kStreamDetached : kInvalidHandle;
}

Stream* make_stream(Context* context, unsigned flags, int priority) {
  auto* stream = new Stream();
  stream->context = context;
  stream->life = context->life;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = state().next_id.fetch_add(1);
  context->streams.push_back(stream);
  return stream;
}

namespace {
// A thread's default streams end with it; what is queued still runs. The map stays, for calls that come later yet.
struct OwnStreams {
  std::map<Context*, Stream*>* streams = new std::map<Context*, Stream*>;
  ~OwnStreams() {
    const std::lock_guard lock(state().mutex);
    for (const auto& [context, stream] : *streams) {
      stream->dead = true;
      stream->wake.notify_one();
    }
  }
};
}  // namespace

Stream* find_stream(void* handle) {
  Context* context = current_context();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 1) return context == nullptr ? nullptr : context->legacy;
  if (number == 2) {
    if (context == nullptr) return nullptr;
    thread_local OwnStreams own;
    Stream*& stream = (*own.streams)[context];
    if (stream == nullptr || stream->life != context->life) {
      stream = make_stream(context, 0, 0);
      stream->per_thread = true;
    }
    return stream;
  }
  if (!state().streams.contains(handle)) return nullptr;
  auto* stream = static_cast<Stream*>(handle);
  if (is_gone(*stream) && stream->context->base == nullptr) use_of_a_dead_handle();  // else that has an answer: no_stream()
  return is_gone(*stream) ? nullptr : stream;
}

// The legacy stream waits for all blocking streams of its context, and they for it.
std::vector<CompletionPtr> implicit_dependencies(Stream* stream) {
  std::vector<CompletionPtr> after;
  if (stream->legacy) {
    for (Stream* other : stream->context->streams) {
      if (other != stream && !other->dead && (other->flags & kStreamNonBlocking) == 0 && !is_done(other->last)) {
        after.push_back(other->last);
      }
    }
  } else if ((stream->flags & kStreamNonBlocking) == 0 && !is_done(stream->context->legacy->last)) {
    after.push_back(stream->context->legacy->last);
  }
  return after;
}

int submit_item(Stream* stream, Item item) {
  item.description.stream_id = stream->id;
  item.description.device = stream->context->device;
  stream->last = item.done;
  // An event on an idle stream needs no thread to be stamped; a device would not wait for a CPU either.
  if (item.work->instant() && stream->queue.empty() && !stream->busy && dependencies_done(item)) {
    const std::int64_t begin_ns = begin_of(stream, item), end_ns = item.work->run(begin_ns);
    complete(stream, item, end_ns);
    return kSuccess;
  }
  stream->queue.push_back(std::move(item));
  if (!stream->has_worker) std::thread(work_off, stream).detach();
  stream->has_worker = true;
  stream->wake.notify_one();
  return kSuccess;
}

static void capture_node(Stream* stream, std::shared_ptr<Work> work, const Ran& description,
                         const std::vector<Stream*>& joined) {
  std::vector<int> after = stream->capture_after;
  for (Stream* other : joined) after.insert(after.end(), other->capture_after.begin(), other->capture_after.end());
  auto& nodes = stream->capture->graph->nodes;
  nodes.push_back({std::move(work), description, std::move(after)});
  stream->capture_after = {static_cast<int>(nodes.size()) - 1};
  for (Stream* other : joined) {
    other->capture = stream->capture;
    other->capture_after = stream->capture_after;
    stream->capture->streams.insert(other);
  }
}

int submit(std::unique_lock<std::mutex>& lock, Stream* stream, std::shared_ptr<Work> work, const Ran& description,
           CompletionPtr* done, const std::vector<Stream*>& joined) {
  if (const int error = legacy_use(stream); error != kSuccess) return error;
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return kCaptureInvalidated;
    capture_node(stream, std::move(work), description, joined);
    return kSuccess;
  }
  const auto limit = static_cast<std::size_t>(setting("launch.queue", 1024));
  if (description.kind != RanKind::event) {
    state().completed.wait(lock, [&] { return stream->queue.size() < limit; });
  }
  Item item;
  item.after = implicit_dependencies(stream);
  for (Stream* other : joined) {
    if (!other->last->done) item.after.push_back(other->last);
    item.submitted_ns = std::max(item.submitted_ns, other->tail_ns);
  }
  item.submitted_ns = std::max(item.submitted_ns, state().clock.now());
  item.work = std::move(work);
  item.description = description;
  item.description.launched_ns = state().clock.now();
  if (state().observer.load() != nullptr) item.description.launch_tid = static_cast<unsigned>(syscall(SYS_gettid));
  if (done != nullptr) *done = item.done;
  for (Stream* other : joined) {
    Item held;
    held.work = std::make_shared<InstantWork>();
    held.description.kind = RanKind::event;
    held.submitted_ns = item.submitted_ns;
    held.after = {item.done};
    submit_item(other, std::move(held));
  }
  return submit_item(stream, std::move(item));
}

}  // namespace fake
