// Stream and event entry points of the libcuda double. SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "cuda_objects.h"

using namespace fake;

namespace {

int enter() { return context_error(); }

Event* find_event(void* handle) {
  if (!state().events.contains(handle)) return nullptr;
  auto* event = static_cast<Event*>(handle);
  if (is_gone(*event)) use_of_a_dead_handle();
  return is_gone(*event) ? nullptr : event;
}

int record(void* event_handle, void* stream_handle, unsigned flags) {
  std::unique_lock lock(state().mutex);
  Event* event = find_event(event_handle);
  Stream* stream = find_stream(stream_handle);
  if (stream == nullptr) return no_stream(stream_handle);
  if (event == nullptr || event->context != owner_of_events(stream->context)) return kInvalidHandle;
  if (const int error = legacy_use(stream); error != kSuccess) return error;
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return kCaptureInvalidated;
    if ((flags & kRecordExternal) != 0) {  // a real node: stamps the event at each launch of the graph
      struct Stamp : Work {
        explicit Stamp(Event* target) : event(target) {}
        std::int64_t run(std::int64_t begin_ns) override {
          const std::lock_guard guard(state().mutex);
          event->recorded = std::make_shared<Completion>(Completion{true, begin_ns});
          return begin_ns;
        }
        Event* event;
      };
      return submit(lock, stream, std::make_shared<Stamp>(event), Ran{RanKind::event});
    }
    event->captured = stream->capture;
    event->captured_after = stream->capture_after;
    return kSuccess;
  }
  event->captured.reset();
  return submit(lock, stream, std::make_shared<InstantWork>(), Ran{RanKind::event}, &event->recorded);
}

int wait_event(void* stream_handle, void* event_handle) {
  std::unique_lock lock(state().mutex);
  Stream* stream = find_stream(stream_handle);
  Event* event = find_event(event_handle);
  if (stream == nullptr) return no_stream(stream_handle);
  if (event == nullptr) return kInvalidHandle;
  if (const int error = legacy_use(stream); error != kSuccess) return error;
  if (event->captured != nullptr && !event->captured->ended) {
    if (event->captured->invalidated) return kCaptureInvalidated;
    if (stream->capture != nullptr && stream->capture != event->captured) {
      invalidate(event->captured, kCaptureMerge);
      return invalidate(stream->capture, kCaptureMerge);
    }
    stream->capture = event->captured;
    stream->capture->streams.insert(stream);
    stream->capture_after.insert(stream->capture_after.end(), event->captured_after.begin(),
                                 event->captured_after.end());
    return kSuccess;
  }
  if (event->captured != nullptr) return kCapturedEvent;
  if (stream->capture != nullptr) {
    return event->recorded == nullptr ? kSuccess : invalidate(stream->capture, kCaptureIsolation);
  }
  if (event->recorded == nullptr) return kSuccess;
  const CompletionPtr awaited = event->recorded;
  Item item;
  item.work = std::make_shared<InstantWork>();
  item.description.kind = RanKind::event;
  item.after = implicit_dependencies(stream);
  item.after.push_back(awaited);
  item.submitted_ns = state().clock.now();
  return submit_item(stream, std::move(item));
}

}  // namespace

FAKE_API int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  FAKE_CALL(cuStreamCreateWithPriority);
  if (const int error = enter(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  Stream* made = make_stream(current_context(), flags, priority);
  state().streams.insert(made);
  *stream = made;
  return kSuccess;
}

FAKE_API int cuStreamCreate(void** stream, unsigned flags) {
  FAKE_CALL(cuStreamCreate);
  return cuStreamCreateWithPriority(stream, flags, 0);
}

FAKE_API int cuStreamDestroy_v2(void* handle) {
  FAKE_CALL(cuStreamDestroy_v2);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (state().streams.erase(handle) == 0) return kInvalidHandle;
  auto* stream = static_cast<Stream*>(handle);
  stream->dead = true;  // what is queued still runs
  stream->wake.notify_one();
  return kSuccess;
}

#define WITH_STREAM(NAME)                                                \
  FAKE_CALL(NAME);                                                       \
  if (const int error = enter(); error != kSuccess) return error;        \
  std::unique_lock lock(state().mutex);                                  \
  Stream* stream = find_stream(handle);                                  \
  if (stream == nullptr) return no_stream(handle)

FAKE_API int cuStreamGetFlags(void* handle, unsigned* flags) {
  STREAM_AS_READ(cuStreamGetFlags, true);
  *flags = stream->flags;
  return kSuccess;
}

FAKE_API int cuStreamGetPriority(void* handle, int* priority) {
  STREAM_AS_READ(cuStreamGetPriority, true);
  *priority = stream->priority;
  return kSuccess;
}

FAKE_API int cuStreamGetId(void* handle, unsigned long long* id) {
  STREAM_AS_READ(cuStreamGetId, false);
  *id = stream->id;
  return kSuccess;
}

FAKE_API int cuStreamGetCtx(void* handle, void** context) {
  STREAM_AS_READ(cuStreamGetCtx, false);
  if (stream->capture != nullptr && stream->capture->invalidated) return kCaptureInvalidated;
  // cuda.h 12.9, 15407: not for streams of green contexts; 13.5, 17064: their context is what cuCtxFromGreenCtx() gives.
  if (stream->context->base != nullptr && setting("driver", 13000) < 13000) return kNotSupported;
  *context = stream->context;
  return kSuccess;
}

FAKE_API int cuStreamGetCtx_v2(void* handle, void** context, void** green) {
  WITH_STREAM(cuStreamGetCtx_v2);
  // cuda.h 13.5, 17113: the primary context beside a green one; 17132: no thread has a default stream of its own there.
  if (stream->per_thread && stream->context->base != nullptr) return kInvalidHandle;
  *context = owner_of_events(stream->context);
  *green = green_of(stream->context);
  return kSuccess;
}

FAKE_API int cuStreamGetDevice(void* handle, int* device) {
  WITH_STREAM(cuStreamGetDevice);
  *device = stream->context->device;
  return kSuccess;
}

FAKE_API int cuStreamQuery(void* handle) {
  WITH_STREAM(cuStreamQuery);
  if (const int error = legacy_use(stream); error != kSuccess) return error;
  if (stream->capture != nullptr) return invalidate(stream->capture, kCaptureUnsupported);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  return is_done(stream->last) ? kSuccess : kNotReady;
}

FAKE_API int cuStreamSynchronize(void* handle) {
  WITH_STREAM(cuStreamSynchronize);
  if (const int error = legacy_use(stream); error != kSuccess) return error;
  if (stream->capture != nullptr) return invalidate(stream->capture, kCaptureUnsupported);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  const auto others = implicit_dependencies(stream);
  wait_for(lock, stream->last);
  if (stream->legacy) {
    for (const CompletionPtr& done : others) wait_for(lock, done);
  }
  return kSuccess;
}

FAKE_API int cuStreamWaitEvent(void* handle, void* event, unsigned) {
  FAKE_CALL(cuStreamWaitEvent);
  if (const int error = enter(); error != kSuccess) return error;
  return wait_event(handle, event);
}

FAKE_API int cuEventCreate(void** event, unsigned flags) {
  FAKE_CALL(cuEventCreate);
  if (const int error = enter(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  auto* made = new Event();
  made->context = owner_of_events(current_context());
  made->life = made->context->life;
  made->flags = flags;
  state().events.insert(made);
  *event = made;
  return kSuccess;
}

FAKE_API int cuEventDestroy_v2(void* event) {
  FAKE_CALL(cuEventDestroy_v2);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (state().events.erase(event) == 0) return kInvalidHandle;
  static_cast<Event*>(event)->dead = true;
  return kSuccess;
}

FAKE_API int cuEventRecord(void* event, void* stream) {
  AS_READ(cuEventRecord, true);
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2 && context_error() != kSuccess) return context_error();
  return record(event, stream, 0);
}

FAKE_API int cuEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  AS_READ(cuEventRecordWithFlags, true);
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2 && context_error() != kSuccess) return context_error();
  return record(event, stream, flags);
}

FAKE_API int cuEventQuery(void* handle) {
  AS_READ(cuEventQuery, false);
  const std::lock_guard lock(state().mutex);
  const Event* event = find_event(handle);
  if (event == nullptr) return kInvalidHandle;
  if (const int error = unsafe_call(); error != kSuccess) return error;
  if (event->captured != nullptr) {
    return event->captured->ended ? kCapturedEvent : invalidate(event->captured, kCapturedEvent);
  }
  if (event->recorded == nullptr || is_done(event->recorded)) return kSuccess;
  return kNotReady;
}

FAKE_API int cuEventSynchronize(void* handle) {
  AS_READ(cuEventSynchronize, true);
  std::unique_lock lock(state().mutex);
  const Event* event = find_event(handle);
  if (event == nullptr) return kInvalidHandle;
  if (const int error = unsafe_call(); error != kSuccess) return error;
  if (event->captured != nullptr) {
    return event->captured->ended ? kCapturedEvent : invalidate(event->captured, kCapturedEvent);
  }
  if (event->recorded != nullptr) wait_for(lock, CompletionPtr(event->recorded));
  return kSuccess;
}

static int elapsed_time(float* milliseconds, void* first, void* second) {
  const std::lock_guard lock(state().mutex);
  const Event *from = find_event(first), *to = find_event(second);
  if (from == nullptr || to == nullptr || from->context != to->context) return kInvalidHandle;
  if (((from->flags | to->flags) & kEventDisableTiming) != 0) return kInvalidHandle;
  if (from->captured != nullptr || to->captured != nullptr) return kCapturedEvent;
  if (from->recorded == nullptr || to->recorded == nullptr) return kInvalidHandle;
  if (!is_done(from->recorded) || !is_done(to->recorded)) return kNotReady;
  const int device = from->context->device;
  const std::int64_t ns = fake_engine()->event_time(device, to->recorded->time_ns) -
                          fake_engine()->event_time(device, from->recorded->time_ns);
  const double step_ns = device_setting(device, "event.step", 500);
  *milliseconds = static_cast<float>(std::floor(static_cast<double>(ns) / step_ns + 0.5) * step_ns / 1e6);
  return kSuccess;
}

FAKE_API int cuEventElapsedTime(float* milliseconds, void* first, void* second) {
  AS_READ(cuEventElapsedTime, true);
  return elapsed_time(milliseconds, first, second);
}

FAKE_API int cuEventElapsedTime_v2(float* milliseconds, void* first, void* second) {
  AS_READ(cuEventElapsedTime_v2, true);
  return elapsed_time(milliseconds, first, second);
}

namespace {
struct HostWork : Work {
  HostWork(void (*function)(void*), void* data) : call(function), argument(data) {}
  std::int64_t run(std::int64_t begin_ns) override {
    call(argument);
    return std::max(begin_ns, state().clock.now());
  }
  void (*call)(void*);
  void* argument;
};
}  // namespace

FAKE_API int cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  WITH_STREAM(cuLaunchHostFunc);
  if (function == nullptr) return kInvalidValue;
  return submit(lock, stream, std::make_shared<HostWork>(function, data), Ran{RanKind::event});
}

FAKE_API int cuLaunchHostFunc_v2(void* handle, void (*function)(void*), void* data, unsigned how) {
  FAKE_CALL(cuLaunchHostFunc_v2);
  constexpr unsigned kBlocking = 0, kSpinning = 1;
  if (how != kBlocking && how != kSpinning) return kInvalidValue;
  return cuLaunchHostFunc(handle, function, data);
}

FAKE_API int cuStreamAddCallback(void* handle, void (*function)(void*, int, void*), void* data, unsigned flags) {
  WITH_STREAM(cuStreamAddCallback);
  if (function == nullptr || flags != 0) return kInvalidValue;
  if (stream->capture != nullptr) return invalidate(stream->capture, kCaptureUnsupported);
  struct Callback : Work {
    std::int64_t run(std::int64_t begin_ns) override {
      call(stream, kSuccess, argument);
      return std::max(begin_ns, state().clock.now());
    }
    void (*call)(void*, int, void*);
    void *stream, *argument;
  };
  auto work = std::make_shared<Callback>();
  work->call = function;
  work->stream = handle;
  work->argument = data;
  return submit(lock, stream, std::move(work), Ran{RanKind::event});
}
