// A double of libcupti: activity buffers, one subscriber, versions. SPDX-License-Identifier: Apache-2.0
//
// Work is not executed here: the double of the driver, or a test by ctypes, tells what ran (fake_cupti_work,
// fake_cupti_call), in times of fake::Clock; CUPTI's own clock is that plus an offset, as the real one shows Unix time.
// Buffers come back on a thread of its own, as in CUPTI. Settings of the script:
//   cupti_version N        130001 without it; record sizes follow
//   cupti_subscriber other    somebody holds the only place already
//   cupti_refuse N         enabling activity kind N gives CUPTI_ERROR_NOT_SUPPORTED
#include "abi/cupti_abi.h"

#include <dlfcn.h>
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

#include "engine.h"
#include "script.h"
#include "clock.h"

using namespace stashtrace::abi::cupti;

namespace {

constexpr std::int64_t kEpochNs = 1'750'000'000'000'000'000;
constexpr int kNotSupported = 27, kInvalidParameter = 1, kInvalidOperation = 7;

struct Buffer {
  std::uint8_t* memory = nullptr;
  std::size_t bytes = 0, used = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  fake::Clock clock;
  BufferRequested requested = nullptr;
  BufferCompleted completed = nullptr;
  std::set<std::uint32_t> enabled;
  bool subscribed = fake::text_setting("cupti_subscriber", "") == "other";
  Buffer current;
  std::deque<Buffer> full;
  bool delivering = false, has_thread = false;
  std::size_t dropped = 0;
  int thread_id_type = 0;
  std::uint32_t version = static_cast<std::uint32_t>(fake::setting("cupti_version", 130001));
};

State& state() {
  static State* const made = [] {
    // A child of fork() may look at this state too, whichever thread held the lock at that moment.
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); }, [] { state().mutex.unlock(); });
    return new State();  // never destroyed: its thread outlives main
  }();
  return *made;
}

std::size_t record_bytes(ActivityKind kind) {
  const std::uint32_t version = state().version;
  const bool thirteen = version >= 130000, newest = version >= 130500;
  switch (kind) {
    case ActivityKind::kernel:
    case ActivityKind::concurrent_kernel: return newest ? 248 : thirteen ? 216 : 208;
    case ActivityKind::memcpy: return newest ? 112 : version >= 26 ? 96 : 88;
    case ActivityKind::memcpy_peer: return 96;
    case ActivityKind::memset: return newest ? 104 : 88;
    case ActivityKind::synchronization: return version >= 26 ? 56 : 40;
    case ActivityKind::graph_trace: return 56;
    default: return sizeof(ActivityApi);
  }
}

void deliver() {
  State& s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return !s.full.empty(); });
    const Buffer buffer = s.full.front();
    s.full.pop_front();
    s.delivering = true;
    const BufferCompleted completed = s.completed;
    lock.unlock();
    completed(nullptr, 0, buffer.memory, buffer.bytes, buffer.used);
    lock.lock();
    s.delivering = false;
    s.changed.notify_all();
  }
}

void* deliver_main(void*) {
  deliver();
  return nullptr;
}

void hand_over(State& s) {
  if (s.current.memory == nullptr) return;
  s.full.push_back(s.current);
  s.current = {};
  if (!s.has_thread) {
    pthread_t thread;
    s.has_thread = pthread_create(&thread, nullptr, &deliver_main, nullptr) == 0;
  }
  s.changed.notify_all();
}

// Room for a record, zeroed, or null: then it is dropped.
template <class Record>
Record* place(State& s, ActivityKind kind) {
  if (!s.enabled.contains(static_cast<std::uint32_t>(kind))) return nullptr;
  const std::size_t bytes = record_bytes(kind);
  if (s.current.memory != nullptr && s.current.used + bytes > s.current.bytes) hand_over(s);
  if (s.current.memory == nullptr) {
    std::size_t most_records = 0;
    if (s.requested != nullptr) s.requested(&s.current.memory, &s.current.bytes, &most_records);
    s.current.used = 0;
    if (s.current.memory == nullptr) {
      ++s.dropped;
      return nullptr;
    }
  }
  auto* record = reinterpret_cast<Record*>(s.current.memory + s.current.used);
  std::memset(static_cast<void*>(record), 0, bytes);
  s.current.used += bytes;
  record->kind = kind;
  return record;
}

// Start and end of a record of device work.
std::uint64_t* times_of(std::uint8_t* record) {
  switch (reinterpret_cast<Activity*>(record)->kind) {
    case ActivityKind::concurrent_kernel: return &reinterpret_cast<ActivityKernel*>(record)->start_ns;
    case ActivityKind::memcpy: return &reinterpret_cast<ActivityMemcpy*>(record)->start_ns;
    case ActivityKind::memcpy_peer: return &reinterpret_cast<ActivityMemcpyPeer*>(record)->start_ns;
    case ActivityKind::memset: return &reinterpret_cast<ActivityMemset*>(record)->start_ns;
    case ActivityKind::graph_trace: return &reinterpret_cast<ActivityGraphTrace*>(record)->start_ns;
    default: return nullptr;
  }
}

// Is something in the buffer still running? With `force` its times are taken away, as CUPTI gives such records.
bool unfinished(State& s, bool force) {
  const auto now = static_cast<std::uint64_t>(s.clock.now() + kEpochNs);
  bool any = false;
  for (std::size_t at = 0; at < s.current.used;) {
    std::uint8_t* record = s.current.memory + at;
    std::uint64_t* times = times_of(record);
    if (times != nullptr && times[1] > now) {
      any = true;
      if (force) times[1] = 0;
    }
    at += record_bytes(reinterpret_cast<Activity*>(record)->kind);
  }
  return any;
}

}  // namespace

FAKE_COUNTS_AT_EXIT("cupti")

FAKE_API int cuptiGetVersion(std::uint32_t* version) {
  FAKE_CALL(cuptiGetVersion);
  *version = state().version;
  return 0;
}

FAKE_API int cuptiGetTimestamp(std::uint64_t* timestamp) {
  FAKE_CALL(cuptiGetTimestamp);
  *timestamp = static_cast<std::uint64_t>(state().clock.now() + kEpochNs);
  return 0;
}

FAKE_API int cuptiSubscribe(Subscriber* subscriber, Callback, void*) {
  FAKE_CALL(cuptiSubscribe);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.subscribed) return kMultipleSubscribers;
  s.subscribed = true;
  *subscriber = &s;
  return 0;
}

FAKE_API int cuptiUnsubscribe(Subscriber subscriber) {
  FAKE_CALL(cuptiUnsubscribe);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (subscriber != &s || !s.subscribed) return kInvalidParameter;
  s.subscribed = false;
  return 0;
}

FAKE_API int cuptiActivityRegisterCallbacks(BufferRequested requested, BufferCompleted completed) {
  FAKE_CALL(cuptiActivityRegisterCallbacks);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.requested = requested;
  s.completed = completed;
  return 0;
}

static void watch_driver();

FAKE_API int cuptiActivityEnable(ActivityKind kind) {
  FAKE_CALL(cuptiActivityEnable);
  watch_driver();
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (static_cast<double>(kind) == fake::setting("cupti_refuse", -1)) return kNotSupported;
  s.enabled.insert(static_cast<std::uint32_t>(kind));
  return 0;
}

FAKE_API int cuptiActivityDisable(ActivityKind kind) {
  FAKE_CALL(cuptiActivityDisable);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.enabled.erase(static_cast<std::uint32_t>(kind));
  return 0;
}

FAKE_API int cuptiActivityFlushAll(std::uint32_t flag) {
  FAKE_CALL(cuptiActivityFlushAll);
  State& s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  if (s.completed == nullptr) return kInvalidOperation;
  if (!unfinished(s, flag == kFlushForced) || flag == kFlushForced) hand_over(s);
  s.changed.wait(lock, [&] { return s.full.empty() && !s.delivering; });
  return 0;
}

FAKE_API int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes, Activity** record) {
  FAKE_CALL(cuptiActivityGetNextRecord);
  std::uint8_t* next = buffer;
  if (*record != nullptr)
    next = reinterpret_cast<std::uint8_t*>(*record) + record_bytes((*record)->kind);
  if (next >= buffer + valid_bytes) return kMaxLimitReached;
  *record = reinterpret_cast<Activity*>(next);
  return 0;
}

FAKE_API int cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* dropped) {
  FAKE_CALL(cuptiActivityGetNumDroppedRecords);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  *dropped = s.dropped;
  s.dropped = 0;
  return 0;
}

FAKE_API int cuptiSetThreadIdType(int type) {
  FAKE_CALL(cuptiSetThreadIdType);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.thread_id_type = type;
  return 0;
}

// For the double of the driver and for tests -----------------------------------------------------------------------

FAKE_API std::int64_t fake_cupti_now() { return state().clock.now(); }

// Bit 0: somebody subscribed, bit 1: some kind is enabled, bit 2: thread ids are the kernel's.
FAKE_API int fake_cupti_state() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return (s.subscribed ? 1 : 0) | (s.enabled.empty() ? 0 : 2) | (s.thread_id_type != 0 ? 4 : 0);
}

// How many bytes of records are not read yet.
FAKE_API std::uint64_t fake_cupti_unread() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  std::uint64_t bytes = s.current.used + (s.delivering ? 1 : 0);
  for (const Buffer& buffer : s.full) bytes += buffer.used;
  return bytes;
}

// A piece of work of one of the kinds; `detail` is the copy kind of a copy, the type of a synchronization.
FAKE_API void fake_cupti_work(std::uint32_t kind_number, std::uint32_t device, std::uint32_t stream,
                              std::uint32_t correlation, std::int64_t begin_ns, std::int64_t end_ns, const char* name,
                              std::uint64_t bytes, std::uint32_t detail, std::uint64_t graph_node) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  const auto kind = static_cast<ActivityKind>(kind_number);
  const auto begin = static_cast<std::uint64_t>(begin_ns + kEpochNs), end = static_cast<std::uint64_t>(end_ns + kEpochNs);
  const auto fill = [&](auto* record) {
    if (record == nullptr) return;
    record->start_ns = begin;
    record->end_ns = end;
    record->context_id = device + 1;
    record->stream_id = stream;
    record->correlation_id = correlation;
    if constexpr (requires { record->device_id; }) record->device_id = device;
    if constexpr (requires { record->bytes; }) record->bytes = bytes;
    if constexpr (requires { record->graph_node_id; }) record->graph_node_id = graph_node;
    if constexpr (requires { record->graph_id; }) record->graph_id = static_cast<std::uint32_t>(graph_node);
    if constexpr (requires { record->name; }) record->name = name;
    if constexpr (requires { record->type; }) record->type = static_cast<SynchronizationType>(detail);
    if constexpr (requires { record->copy_kind; }) {
      record->copy_kind = static_cast<CopyKind>(detail);
      record->source_kind = detail == 1 ? 2 : 3;
      record->target_kind = detail == 2 ? 2 : 3;
    }
  };
  switch (kind) {
    case ActivityKind::concurrent_kernel: return fill(place<ActivityKernel>(s, kind));
    case ActivityKind::memcpy: return fill(place<ActivityMemcpy>(s, kind));
    case ActivityKind::memcpy_peer: return fill(place<ActivityMemcpyPeer>(s, kind));
    case ActivityKind::memset: return fill(place<ActivityMemset>(s, kind));
    case ActivityKind::synchronization: return fill(place<ActivitySynchronization>(s, kind));
    case ActivityKind::graph_trace: return fill(place<ActivityGraphTrace>(s, kind));
    default: return;
  }
}

// A call of the runtime (5) or the driver (4).
FAKE_API void fake_cupti_call(std::uint32_t kind_number, std::uint32_t tid, std::uint32_t correlation,
                              std::int64_t begin_ns, std::int64_t end_ns) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  auto* record = place<ActivityApi>(s, static_cast<ActivityKind>(kind_number));
  if (record == nullptr) return;
  record->start_ns = static_cast<std::uint64_t>(begin_ns + kEpochNs);
  record->end_ns = static_cast<std::uint64_t>(end_ns + kEpochNs);
  record->process_id = static_cast<std::uint32_t>(getpid());
  record->thread_id = tid;
  record->correlation_id = correlation;
}

// So many short pieces of work at once.
FAKE_API void fake_cupti_flood(std::uint32_t kind, std::uint32_t count) {
  const std::int64_t now = state().clock.now();
  for (std::uint32_t i = 0; i < count; ++i) fake_cupti_work(kind, 0, 7, 0, now, now + 1, "flood", 0, 0, 0);
}

// What the double of the driver has run, as records of work and of the call that launched it.
static void ran_on_device(const fake::Ran& ran) {
  static auto& names = *new std::set<std::string>();  // records point at them
  static std::mutex mutex;
  const char* name = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    name = names.insert(ran.name).first->c_str();
  }
  ActivityKind kind = ActivityKind::concurrent_kernel;
  std::uint32_t copy_kind = 0;
  if (ran.kind == fake::RanKind::memset) kind = ActivityKind::memset;
  if (ran.kind == fake::RanKind::graph) kind = ActivityKind::graph_trace;
  if (ran.kind == fake::RanKind::copy) {
    kind = ran.copy_code == 4 ? ActivityKind::memcpy_peer : ActivityKind::memcpy;
    copy_kind = ran.copy_code == 3 ? 8 : ran.copy_code == 4 ? 10 : static_cast<std::uint32_t>(ran.copy_code);
  }
  const auto correlation = static_cast<std::uint32_t>(ran.correlation);
  // One call for a graph, whose nodes have its correlation.
  const bool launched = ran.launch_tid != 0 && (ran.graph_id == 0 || ran.kind == fake::RanKind::graph);
  if (launched) {
    constexpr std::int64_t kCallNs = 3000;
    fake_cupti_call(static_cast<std::uint32_t>(ActivityKind::runtime), ran.launch_tid, correlation,
                    ran.launched_ns - kCallNs, ran.launched_ns);
  }
  fake_cupti_work(static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(ran.device),
                  static_cast<std::uint32_t>(ran.stream_id), correlation, ran.begin_ns, ran.end_ns, name,
                  static_cast<std::uint64_t>(ran.size_bytes), copy_kind, ran.graph_id);
}

static void watch_driver() {
  static const bool watching = [] {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    auto* engine = library == nullptr ? nullptr : reinterpret_cast<fake::Engine* (*)()>(dlsym(library, "fake_engine"));
    if (engine != nullptr) engine()->observe(&ran_on_device);
    return engine != nullptr;
  }();
  (void)watching;
}
