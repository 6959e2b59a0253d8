// Contexts, streams, events, captures and graphs of the libcuda double. SPDX-License-Identifier: Apache-2.0
//
// Included by fake_cuda*.cpp alone. Every field is guarded by State::mutex unless it says otherwise; a worker holds it
// only between pieces of work, never while one runs. Objects of the driver are leaked on purpose when they are
// destroyed (marked dead instead): a use after destroy is then an error code and not a crash.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine.h"
#include "script.h"
#include "clock.h"

namespace fake {

// CUresult, as the driver numbers them; the runtime has the same numbers for all of these but 200.
enum : int {
  kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101,
  kInvalidImage = 200, kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500, kNotReady = 600,
  kPeerAccessNotEnabled = 705, kContextDestroyed = 709, kAlreadyRegistered = 712, kNotRegistered = 713,
  kLaunchFailed = 719, kNotSupported = 801, kCaptureUnsupported = 900, kCaptureInvalidated = 901,
  kCaptureMerge = 902, kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCaptureIsolation = 905,
  kCaptureImplicit = 906, kCapturedEvent = 907, kCaptureWrongThread = 908, kStreamDetached = 917,
};
enum : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum : unsigned { kStreamNonBlocking = 1, kEventBlockingSync = 1, kEventDisableTiming = 2, kRecordExternal = 1 };

struct Completion {
  bool done = false;
  std::int64_t time_ns = 0;
};
using CompletionPtr = std::shared_ptr<Completion>;

struct GraphNode {
  std::shared_ptr<Work> work;  // null: an empty node or a wait
  Ran description;
  std::vector<int> after;
};

struct Graph {
  std::vector<GraphNode> nodes;
  std::uint64_t id = 0;
};

struct Stream;

struct Capture {
  Stream* origin = nullptr;
  int mode = kCaptureGlobal;
  std::thread::id thread;
  bool invalidated = false;
  bool ended = false;
  std::uint64_t id = 0;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::set<Stream*> streams;
};
using CapturePtr = std::shared_ptr<Capture>;

struct Item {
  std::shared_ptr<Work> work;
  Ran description;
  std::vector<CompletionPtr> after;
  CompletionPtr done = std::make_shared<Completion>();
  std::int64_t submitted_ns = 0;
};

struct Context;

struct Stream {
  Context* context = nullptr;
  std::uint64_t life = 0;  // of the context
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t id = 0;
  bool legacy = false, per_thread = false, dead = false;
  bool busy = false;  // the worker runs an item that it has taken off the queue
  bool has_worker = false;
  std::int64_t tail_ns = 0;
  std::deque<Item> queue;
  CompletionPtr last = std::make_shared<Completion>(Completion{true, 0});
  std::condition_variable wake;
  CapturePtr capture;               // set while this stream is part of one
  std::vector<int> capture_after;   // nodes that the next node of this stream follows
};

struct Event {
  Context* context = nullptr;
  std::uint64_t life = 0;
  unsigned flags = 0;
  bool dead = false;
  CompletionPtr recorded;           // null: never recorded
  CapturePtr captured;              // recorded into a capture
  std::vector<int> captured_after;
};

struct Context {
  int device = 0;
  std::uint64_t id = 0;
  bool primary = false, dead = false;
  Context* base = nullptr;  // of a context that stands for a green one: the primary context, which has all but its streams
  std::uint64_t life = 0;  // a device's primary context comes back under the same handle
  int retained = 0;
  Stream* legacy = nullptr;
  std::vector<Stream*> streams;
};

struct Allocation {
  std::size_t bytes = 0;
  int type = 0;  // CU_MEMORYTYPE_*: 1 host, 2 device
  int device = 0;
  bool managed = false, registered = false;
};

struct Function {
  std::string name;
  bool globaltimer = false, stamped = false;
};

struct State {
  std::mutex mutex;
  std::condition_variable completed;
  Clock clock;
  std::atomic<bool> initialized{false};
  int owner_pid = 0;
  std::atomic<std::uint64_t> next_id{1};
  std::atomic<std::uint64_t> next_correlation{1};
  std::atomic<RanObserver> observer{nullptr};
  std::vector<Context*> primaries;
  std::unordered_set<const void*> contexts, greens, streams, events, graphs, graph_execs;
  std::vector<CapturePtr> captures;
  std::map<std::uintptr_t, Allocation> allocations;
  std::map<int, std::size_t> used_bytes;
};

State& state();
Context* make_context(int device, bool primary);
void end_life(Context* context);  // all that belongs to it is gone with it, see is_gone(); what runs on its streams runs on
int retain_primary(int device, Context** primary);  // mutex held
void release_primary(Context* primary);
extern thread_local std::vector<Context*> t_contexts;
extern thread_local int t_capture_mode;

// Error of the calling thread's situation: not initialized, forked, no context.
int ready_error();
int context_error();
// Of a call that some read as needing a current context and some as not. `named`: cuda.h names CUDA_ERROR_INVALID_CONTEXT for it.
//   context needed|free [script or FAKE_CONTEXT]   how all of them are read; without it as cuda.h has it
//   context.CALL needed|free                       how one of them is
bool reads_context(const char* call, bool named);
int read_error(bool needed);
inline Context* current_context() { return t_contexts.empty() ? nullptr : t_contexts.back(); }

// What belongs to a context is gone with it. Whoever uses it nevertheless is counted under a name of its own, use_of_a_dead_handle: a
// real driver may answer or crash.
template <class Object>
bool is_gone(const Object& object) {
  return object.context->dead || object.context->life != object.life;
}
int use_of_a_dead_handle();
// Why find_stream() found none. cuda.h 13.5, 27703: calls with a stream of a destroyed green context are refused by 917,
// all but cuStreamDestroy.
int no_stream(void* handle);
// Events belong to the primary context also where a green one was current: cuda_runtime_api.h 13.5, 14178.
void* green_of(const Context* context);  // the CUgreenCtx that it stands for, null
inline Context* owner_of_events(Context* context) { return context->base != nullptr ? context->base : context; }

// The stream behind a handle (0 and 1: legacy, 2: per thread); null if it is none. Mutex held.
Stream* find_stream(void* handle);
Stream* make_stream(Context* context, unsigned flags, int priority);

// Queues or captures work. Mutex held by `lock`; `sync` streams join. Returns a CUresult.
int submit(std::unique_lock<std::mutex>& lock, Stream* stream, std::shared_ptr<Work> work, const Ran& description,
           CompletionPtr* done = nullptr, const std::vector<Stream*>& joined = {});
int submit_item(Stream* stream, Item item);  // no capture rules, no limit; mutex held
void wait_for(std::unique_lock<std::mutex>& lock, const CompletionPtr& done);
bool is_done(const CompletionPtr& done);

// Capture rules. Mutex held.
int unsafe_call();                            // a call that may synchronise: prohibited beside some captures
int legacy_use(Stream* stream);               // the legacy stream while a blocking stream of its context captures
int invalidate(const CapturePtr& capture, int code);

std::vector<CompletionPtr> implicit_dependencies(Stream* stream);
int device_count();
void told(const Ran& description, std::int64_t begin_ns, std::int64_t end_ns);

struct TimedWork : Work {
  explicit TimedWork(std::int64_t duration) : duration_ns(duration) {}
  std::int64_t run(std::int64_t begin_ns) override {
    state().clock.work_until(begin_ns + duration_ns);
    return begin_ns + duration_ns;
  }
  std::int64_t duration_ns;
};

struct InstantWork : Work {
  std::int64_t run(std::int64_t begin_ns) override { return begin_ns; }
  bool instant() const override { return true; }
};

}  // namespace fake

// The first lines of a call that is read in two ways; the header's is the second argument.
#define AS_READ(NAME, NAMED)                                        \
  FAKE_CALL(NAME);                                                  \
  static const bool needed_by_##NAME = reads_context(#NAME, NAMED); \
  if (const int error = read_error(needed_by_##NAME); error != kSuccess) return error

// The default streams are those of the current context, whatever is read.
#define STREAM_AS_READ(NAME, NAMED)                                                               \
  AS_READ(NAME, NAMED);                                                                           \
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2 && context_error() != kSuccess) return context_error(); \
  std::unique_lock lock(state().mutex);                                                           \
  Stream* stream = find_stream(handle);                                                           \
  if (stream == nullptr) return no_stream(handle)
