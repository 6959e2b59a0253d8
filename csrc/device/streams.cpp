// Implementation of streams.h. SPDX-License-Identifier: Apache-2.0
#include "device/streams.h"

#include <dlfcn.h>

#include <cstring>
#include <string_view>

#include "core/futex_lock.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "device/driver.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace::device {

namespace {

constexpr std::uint64_t kGone = 1;
constexpr std::uint64_t kReserved =
    2;  // a thread's default stream whose context is gone: only that thread gives the place back
constexpr std::uintptr_t kGoneContext = 1;
constexpr std::size_t kMostProbes = 64;
constexpr std::size_t kMostRefused = 256;

constinit StreamState g_streams[kMostStreams]{};
constinit ContextState g_contexts[kMostContexts]{};
constinit std::atomic<std::uint64_t> g_next_key{1};
constinit std::atomic<int> g_maker_known{0};  // 1: being written, 2: there
char g_maker[512];                            // of the first blocking stream
constinit std::atomic<bool> g_reported_full{false};
constinit cuda::Context g_refused[kMostRefused]{};  // contexts that found no place and were counted
constinit std::size_t g_refused_count = 0;
constinit FutexLock g_lock;
constinit thread_local std::uint32_t t_tid = 0;
constinit thread_local std::uint32_t t_own =
    0;  // place + 1 of the latest of this thread's default streams, one per context

std::size_t hash_of(std::uint64_t key) noexcept { return (key * 0x9E3779B97F4A7C15ULL) >> 40; }

cuda::Stream normal(cuda::Stream stream) noexcept {
  return stream == nullptr ? reinterpret_cast<cuda::Stream>(cuda::kLegacyStream) : stream;
}

bool is_handle(cuda::Stream stream, std::uintptr_t handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream) == handle;
}

// Default streams exist once per context, or per context and thread; their keys are odd, handles never are. 0: unknown.
std::uint64_t look_up_key(cuda::Stream stream, cuda::Context& context) noexcept {
  if (!is_handle(stream, cuda::kLegacyStream) && !is_handle(stream, cuda::kPerThreadStream))
    return reinterpret_cast<std::uint64_t>(stream);
  if (driver.context_current(&context) != cuda::kSuccess || context == nullptr) return 0;
  if (is_handle(stream, cuda::kLegacyStream)) return reinterpret_cast<std::uint64_t>(context) | 1;
  const ContextState* state = find_context(context);
  if (state == nullptr) return 0;
  if (t_tid == 0) t_tid = static_cast<std::uint32_t>(raw::gettid());
  return own_stream_key(t_tid, static_cast<std::size_t>(state - g_contexts));
}

StreamState* look_up(std::uint64_t key) noexcept {
  const std::size_t start = hash_of(key);
  for (std::size_t i = 0; i < kMostProbes; ++i) {
    StreamState& stream = g_streams[(start + i) % kMostStreams];
    const std::uint64_t there = stream.look_up.load(std::memory_order_acquire);
    if (there == key) return &stream;
    if (there == 0) return nullptr;
  }
  return nullptr;
}

std::uint32_t uuid_text(std::string_view prefix, const cuda::Uuid& uuid) noexcept {
  char memory[48];
  TextBuffer text(memory, sizeof memory);
  text.add(prefix);
  for (int i = 0; i < 16; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const char pair[] = {kDigits[uuid.bytes[i] >> 4], kDigits[uuid.bytes[i] & 15]};
    if (i == 4 || i == 6 || i == 8 || i == 10) text.add("-");
    text.add(std::string_view(pair, 2));
  }
  return intern(text.text());
}

struct Uuids {
  std::uint32_t device = 0, gpu = 0;  // string ids; gpu: only of a MIG instance
};

// Of a MIG instance, the second form of the call gives its own UUID and the first that of the GPU, by which NVML knows it.
Uuids uuids_of(cuda::Device device) noexcept {
  cuda::Uuid own{}, gpu{};
  if (driver.device_uuid == nullptr || driver.device_uuid(&own, device) != cuda::kSuccess) return {};
  const bool known = driver.gpu_uuid != nullptr && driver.gpu_uuid(&gpu, device) == cuda::kSuccess;
  if (!known || std::memcmp(own.bytes, gpu.bytes, sizeof own.bytes) == 0) return {.device = uuid_text("GPU-", own)};
  return {uuid_text("MIG-", own), uuid_text("GPU-", gpu)};
}

int attribute(int which, cuda::Device device, int otherwise) noexcept {
  int value = otherwise;
  if (driver.device_attribute == nullptr || driver.device_attribute(&value, which, device) != cuda::kSuccess)
    return otherwise;
  return value;
}

void write_device(cuda::Device device) noexcept {
  char name[128] = {}, bus[32] = {};
  std::size_t bytes = 0;
  int version = 0;
  const bool named = driver.device_name != nullptr && driver.device_name(name, sizeof name - 1, device) == 0;
  const bool placed = driver.device_bus != nullptr && driver.device_bus(bus, sizeof bus - 1, device) == 0;
  const bool sized = driver.device_memory != nullptr && driver.device_memory(&bytes, device) == 0;
  driver.driver_version(&version);
  const Uuids uuids = uuids_of(device);
  emit(schema::DeviceInfo{.ticks = now_ticks(),
                          .memory_bytes = sized ? static_cast<std::int64_t>(bytes) : -1,
                          .uuid_id = uuids.device,
                          .name_id = named ? intern(name) : 0,
                          .bus_id = placed ? intern(bus) : 0,
                          .device_index = device,
                          .multiprocessors_count = attribute(cuda::kMultiprocessorCount, device, -1),
                          .capability_code = 10 * attribute(cuda::kCapabilityMajor, device, 0) +
                                             attribute(cuda::kCapabilityMinor, device, 0),
                          .driver_code = version,
                          .gpu_uuid_id = uuids.gpu});
}

void write_stream(const StreamState& stream) noexcept {
  const bool compute = stream.carries_compute.load(std::memory_order_relaxed);
  emit(schema::StreamInfo{.ticks = now_ticks(),
                          .stream_key = stream.stream_key,
                          .handle_key = stream.handle_key,
                          .device_index = stream.context->device,
                          .priority_index = stream.priority,
                          .name_id = 0,
                          .stream_flags = static_cast<std::uint16_t>(
                              stream.flags | (compute ? schema::codes::StreamFlag::carries_compute : 0)),
                          .reserved_flags = 0});
}

// What the driver says of a stream that is new to us.
struct Seen {
  ContextState* context = nullptr;
  unsigned long long driver_id = 0;
  std::int32_t priority = 0;
  std::uint16_t flags = 0;
};

// Before CUDA 13 the first call refuses streams of green contexts; the second does not.
cuda::Context context_of(cuda::Stream handle) noexcept {
  cuda::Context context = nullptr, primary = nullptr;
  cuda::GreenContext green = nullptr;
  const cuda::Result result = driver.stream_context(handle, &context);
  if (result == cuda::kSuccess) return context;
  if (result != cuda::kNotSupported || driver.stream_contexts == nullptr || driver.context_of_green == nullptr ||
      driver.stream_contexts(handle, &primary, &green) != cuda::kSuccess || green == nullptr ||
      driver.context_of_green(&context, green) != cuda::kSuccess)
    return nullptr;
  return context;
}

bool ask_driver(cuda::Stream handle, cuda::Context context, Seen& seen) noexcept {
  const RelaxedCapture relaxed;
  if (context == nullptr && (context = context_of(handle)) == nullptr) return false;
  seen.context = find_context(context);
  if (seen.context == nullptr) return false;
  if (is_handle(handle, cuda::kLegacyStream)) {
    seen.flags = schema::codes::StreamFlag::legacy;
    return true;
  }
  if (is_handle(handle, cuda::kPerThreadStream)) {
    seen.flags = schema::codes::StreamFlag::per_thread;
    return true;
  }
  const CurrentContext current(context);  // this thread may have none yet
  unsigned flags = 0;
  if (driver.stream_flags(handle, &flags) == cuda::kSuccess && (flags & cuda::kStreamNonBlocking) != 0)
    seen.flags = schema::codes::StreamFlag::non_blocking;
  if (driver.stream_priority != nullptr) driver.stream_priority(handle, &seen.priority);
  if (driver.stream_id != nullptr && driver.stream_id(handle, &seen.driver_id) != cuda::kSuccess) seen.driver_id = 0;
  return true;
}

StreamState* free_place(std::uint64_t key) noexcept {
  const std::size_t start = hash_of(key);
  for (std::size_t i = 0; i < kMostProbes; ++i) {
    StreamState& stream = g_streams[(start + i) % kMostStreams];
    const std::uint64_t there = stream.look_up.load(std::memory_order_acquire);
    if (there == 0 || (there == kGone && stream.open.load(std::memory_order_acquire) == 0)) return &stream;
  }
  return nullptr;
}

void lay_down(StreamState& stream, cuda::Stream handle, const Seen& seen, std::uint64_t key) noexcept {
  stream.handle = handle;
  stream.stream_key = g_next_key.fetch_add(1, std::memory_order_relaxed);
  stream.handle_key = reinterpret_cast<std::uint64_t>(handle);
  stream.driver_id = seen.driver_id;
  stream.context = seen.context;
  stream.priority = seen.priority;
  stream.flags = seen.flags;
  stream.carries_compute.store(false, std::memory_order_relaxed);
  const bool blocks = seen.flags == 0 || seen.flags == schema::codes::StreamFlag::per_thread;
  stream.blocking.store(blocks, std::memory_order_relaxed);
  if (blocks) seen.context->blocking_streams.fetch_add(1, std::memory_order_relaxed);
  stream.last.store(0, std::memory_order_relaxed);
  stream.tail.store(nullptr, std::memory_order_relaxed);
  stream.tail_bracket.store(0, std::memory_order_relaxed);
  stream.works_since.store(0, std::memory_order_relaxed);
  for (auto& works : stream.works_before) works.store(0, std::memory_order_relaxed);
  stream.look_up.store(key, std::memory_order_release);
}

void retire(StreamState& stream, std::uint64_t as = kGone) noexcept {
  if (stream.blocking.exchange(false, std::memory_order_relaxed))
    stream.context->blocking_streams.fetch_sub(1, std::memory_order_relaxed);
  stream.look_up.store(as, std::memory_order_release);
}

// The calling thread gives back the places of those of its default streams whose contexts are gone.
void give_back_reserved() noexcept {
  for (std::uint32_t* link = &t_own; *link != 0;) {
    StreamState& stream = g_streams[*link - 1];
    const std::uint32_t next = stream.next_own;
    if (stream.look_up.load(std::memory_order_relaxed) != kReserved) {
      link = &stream.next_own;
      continue;
    }
    *link = next;
    stream.look_up.store(kGone, std::memory_order_release);
  }
}

StreamState* meet(cuda::Stream handle, std::uint64_t key, cuda::Context context) noexcept {
  Seen seen;
  if (!ask_driver(handle, context, seen)) return nullptr;
  StreamState* stream = nullptr;
  bool fresh = false;
  {
    const raw::SignalsBlocked quiet;
    g_lock.lock();
    stream = look_up(key);
    if (stream == nullptr && (stream = free_place(key)) != nullptr) {
      lay_down(*stream, handle, seen, key);
      fresh = true;
    }
    g_lock.unlock();
  }
  if (fresh && seen.flags == schema::codes::StreamFlag::per_thread) {
    give_back_reserved();
    stream->next_own = t_own;
    t_own = static_cast<std::uint32_t>(stream - g_streams) + 1;
    watch_thread_end();
  }
  if (fresh) write_stream(*stream);
  if (stream == nullptr && !g_reported_full.exchange(true))
    report("too_many_streams", 1, "streams that found no place in the table are not recorded",
           schema::codes::Severity::data_loss);
  return stream;
}

}  // namespace

bool is_legacy(const StreamState& stream) noexcept { return is_handle(stream.handle, cuda::kLegacyStream); }
bool blocking_stream_exists(const StreamState& stream) noexcept {
  return stream.context->blocking_streams.load(std::memory_order_relaxed) != 0;
}

// Once in a process: dladdr takes a lock of the loader.
void note_maker(const StreamState& stream, const void* address) noexcept {
  Dl_info about{};
  int unknown = 0;
  if (address == nullptr || !stream.blocking.load(std::memory_order_relaxed) ||
      !g_maker_known.compare_exchange_strong(unknown, 1) || dladdr(address, &about) == 0 || about.dli_fname == nullptr)
    return;
  TextBuffer text(g_maker, sizeof g_maker);
  text.add("made by ").add(about.dli_fname);
  if (about.dli_sname != nullptr) text.add(": ").add(about.dli_sname);
  text.c_str();
  g_maker_known.store(2, std::memory_order_release);
}

const char* maker() noexcept {
  return g_maker_known.load(std::memory_order_acquire) == 2 ? g_maker : "nobody saw who made it";
}

StreamState* find_known_stream(cuda::Stream stream) noexcept {
  cuda::Context context = nullptr;
  const std::uint64_t key = look_up_key(normal(stream), context);
  return key == 0 ? nullptr : look_up(key);
}

StreamState* find_stream(cuda::Stream stream) noexcept {
  const cuda::Stream handle = normal(stream);
  cuda::Context context = nullptr;
  const std::uint64_t key = look_up_key(handle, context);
  if (key == 0) return nullptr;
  StreamState* known = look_up(key);
  if (known == nullptr) return meet(handle, key, context);
  // Where destruction is not seen (a static runtime) the driver's own number identifies a reused handle.
  if (known->driver_id == 0) return known;
  unsigned long long id = 0;
  const cuda::Context own = known->context->context.load(std::memory_order_relaxed);
  const cuda::Result result = ask_in(own, [&] { return driver.stream_id(handle, &id); });
  if (result == cuda::kStreamDetached || result == cuda::kContextIsDestroyed) {
    end_unseen(*known->context);
    return nullptr;
  }
  if (result != cuda::kSuccess || id == known->driver_id) return known;
  forget_stream(stream);
  return meet(handle, key, context);
}

void forget_stream(cuda::Stream stream) noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  if (StreamState* known = look_up(reinterpret_cast<std::uint64_t>(stream))) retire(*known);
  g_lock.unlock();
}

// No lock: no other thread gives these places back, and none is reused before its brackets are harvested.
void forget_own_streams() noexcept {
  while (t_own != 0) {
    StreamState& stream = g_streams[t_own - 1];
    t_own = stream.next_own;
    retire(stream);
  }
}

void set_carries_compute(StreamState& stream) noexcept {
  if (stream.carries_compute.load(std::memory_order_relaxed)) return;
  if (!stream.carries_compute.exchange(true, std::memory_order_relaxed)) write_stream(stream);
}

ContextState* context_at(std::size_t i) noexcept {
  if (i >= kMostContexts || g_contexts[i].context.load(std::memory_order_acquire) == nullptr) return nullptr;
  return &g_contexts[i];
}

namespace {

// Under the lock. True at the first time that this context finds no place.
bool is_newly_refused(cuda::Context context) noexcept {
  for (std::size_t i = 0; i < g_refused_count; ++i)
    if (g_refused[i] == context) return false;
  if (g_refused_count == kMostRefused) return false;
  g_refused[g_refused_count++] = context;
  return true;
}

void report_refused() noexcept {
  char memory[160];
  TextBuffer text(memory, sizeof memory);
  text.add("contexts that found no place among ").add(std::int64_t{kMostContexts});
  text.add(" live ones: their copies, waits and collectives have no device times");
  report("too_many_contexts", 1, text.c_str(), schema::codes::Severity::data_loss);
}

}  // namespace

ContextState* find_context(cuda::Context context) noexcept {
  if (context == nullptr) return nullptr;
  for (std::size_t i = 0; ContextState* known = context_at(i); ++i)
    if (known->context.load(std::memory_order_relaxed) == context) return known;
  cuda::Device device = -1;
  {
    const CurrentContext current(context);
    if (!current || driver.context_device(&device) != cuda::kSuccess) return nullptr;
  }
  const bool not_primary = !is_primary_active(device);
  ContextState* found = nullptr;
  bool new_device = true, refused = false;
  {
    const raw::SignalsBlocked quiet;
    g_lock.lock();
    for (auto& state : g_contexts) {
      const cuda::Context there = state.context.load(std::memory_order_relaxed);
      if (there == context) {
        found = &state;
        new_device = false;
        break;
      }
      if (there == nullptr || state.life.load(std::memory_order_acquire) == kFree) {
        state.device = device;
        state.not_primary = not_primary;
        state.life.store(kLive, std::memory_order_relaxed);
        state.context.store(context, std::memory_order_release);
        found = &state;
        break;
      }
      if (state.device == device) new_device = false;
    }
    refused = found == nullptr && is_newly_refused(context);
    g_lock.unlock();
  }
  if (refused) report_refused();
  if (found != nullptr && new_device) write_device(device);
  return found;
}

bool is_primary_active(cuda::Device device) noexcept {
  unsigned flags = 0;
  int active = 1;
  return driver.primary_state == nullptr || driver.primary_state(device, &flags, &active) != cuda::kSuccess ||
         active != 0;
}

void end_context(ContextState& context, void (*forget)(std::uint64_t stream_key)) noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  for (auto& stream : g_streams) {
    if (stream.look_up.load(std::memory_order_relaxed) <= kReserved || stream.context != &context) continue;
    forget(stream.stream_key);
    retire(stream, (stream.flags & schema::codes::StreamFlag::per_thread) != 0 ? kReserved : kGone);
  }
  context.context.store(reinterpret_cast<cuda::Context>(kGoneContext), std::memory_order_release);
  context.life.store(kEnded, std::memory_order_release);
  g_lock.unlock();
}

bool has_open_brackets(const ContextState& context) noexcept {
  for (const auto& stream : g_streams)
    if (stream.context == &context && stream.open.load(std::memory_order_acquire) != 0) return true;
  return false;
}

void free_context(ContextState& context) noexcept {
  drop_events(context);
  context.brackets.store(0, std::memory_order_relaxed);
  context.execution_context.store(nullptr, std::memory_order_relaxed);
  context.timer_tried.store(false, std::memory_order_relaxed);
  context.timer_host = nullptr;
  context.timer_in_flight = context.timer_missed = false;
  context.life.store(kFree, std::memory_order_release);
}

cuda::Event take_event(ContextState& context) noexcept {
  cuda::Event event = nullptr;
  if (context.events.pop(event)) return event;
  const CurrentContext current(context.context.load(std::memory_order_relaxed));
  const RelaxedCapture relaxed;
  if (current && !relaxed) {
    stop_timing();
    return nullptr;
  }
  const cuda::Result result = current ? driver.event_create(&event, cuda::kEventDefault) : cuda::kInvalidContext;
  count_result(result);
  return result == cuda::kSuccess ? event : nullptr;
}

// When the pool is full the event stays with the driver: destroying one has been seen to wait for the device.
void give_event(ContextState& context, cuda::Event event) noexcept {
  if (event != nullptr) context.events.push(event);
}

void drop_events(ContextState& context) noexcept {
  cuda::Event event = nullptr;
  while (context.events.pop(event)) {
  }
}

}  // namespace stashtrace::device
