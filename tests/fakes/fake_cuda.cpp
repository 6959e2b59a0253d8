// libcuda.so.1 as a double: start, devices and contexts. SPDX-License-Identifier: Apache-2.0
//
// The driver's ABI as CUDA 12 and 13 have it, with invented devices (script.h says which). No header of NVIDIA is
// needed; the numbers here are checked against the real ones by tests/contract when those are found.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cuda_objects.h"

using namespace fake;

FAKE_COUNTS_AT_EXIT("cuda")

namespace {

struct RealEngine final : Engine {
  std::int64_t now() override { return state().clock.now(); }
  void work_until(std::int64_t ns) override { state().clock.work_until(ns); }
  std::int64_t event_time(int device, std::int64_t ns) override {
    const double drift = device_setting(device, "event.drift", 0) * 1e-6;
    return ns + static_cast<std::int64_t>(std::llround(static_cast<double>(ns) * drift)) +
           static_cast<std::int64_t>(device_setting(device, "event.offset", 0));
  }
  std::int64_t globaltimer(int device, std::int64_t ns) override {
    const double drift = device_setting(device, "globaltimer.drift", 0) * 1e-6;
    const auto offset = static_cast<std::int64_t>(device_setting(device, "globaltimer.offset", 1.7e18));
    const auto step = std::max<std::int64_t>(1, static_cast<std::int64_t>(device_setting(device, "globaltimer.step", 512)));
    const std::int64_t value = ns + static_cast<std::int64_t>(std::llround(static_cast<double>(ns) * drift)) + offset;
    return value / step * step;
  }
  int current_device() override { return current_context() == nullptr ? -1 : current_context()->device; }
  int stream_device(void* handle) override {
    const std::lock_guard lock(state().mutex);
    const Stream* stream = find_stream(handle);
    return stream == nullptr ? -1 : stream->context->device;
  }
  bool capturing(void* handle) override {
    const std::lock_guard lock(state().mutex);
    const Stream* stream = find_stream(handle);
    return stream != nullptr && stream->capture != nullptr;
  }
  int submit(const std::vector<void*>& handles, std::shared_ptr<Work> work, const Ran& description) override {
    std::unique_lock lock(state().mutex);
    std::vector<Stream*> streams;
    for (void* handle : handles) {
      streams.push_back(find_stream(handle));
      if (streams.back() == nullptr) return kInvalidHandle;
    }
    Stream* first = streams.front();
    streams.erase(streams.begin());
    return fake::submit(lock, first, std::move(work), description, nullptr, streams);
  }
  void observe(RanObserver observer) override { state().observer.store(observer); }
  std::uint64_t next_correlation() override { return state().next_correlation.fetch_add(1); }
};

void revive(Context* context) {
  context->dead = false;
  context->id = state().next_id.fetch_add(1);
  context->legacy = make_stream(context, 0, 0);
  context->legacy->legacy = true;
}

// Physical number of an ordinal of this process: CUDA_VISIBLE_DEVICES with plain numbers, or the UUID of a MIG instance,
// whose last byte is the number of its GPU here.
int physical(int ordinal) {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return ordinal;
  for (const char* at = visible; *at != '\0'; ++at) {
    if (ordinal-- == 0) {
      const std::string one(at, std::strcspn(at, ","));
      if (!one.starts_with("MIG-")) return atoi(at);
      return one.size() < 6 ? -1 : static_cast<int>(std::stoul(one.substr(one.size() - 2), nullptr, 16));
    }
    while (*at != ',' && *at != '\0') ++at;
    if (*at == '\0') break;
  }
  return -1;
}

int visible_count() {
  int count = 0;
  while (count < 64 && physical(count) >= 0 && physical(count) < device_count()) ++count;
  return count;
}

int device_error(int device) {
  if (const int error = ready_error(); error != kSuccess) return error;
  return device < 0 || device >= visible_count() ? kInvalidDevice : kSuccess;
}

}  // namespace

namespace fake {

Context* make_context(int device, bool primary) {
  auto* context = new Context();
  context->device = device;
  context->id = state().next_id.fetch_add(1);
  context->primary = primary;
  context->legacy = make_stream(context, 0, 0);
  context->legacy->legacy = true;
  state().contexts.insert(context);
  return context;
}

void end_life(Context* context) {
  context->dead = true;
  ++context->life;
  context->retained = 0;
  context->streams.clear();
}

int retain_primary(int device, Context** primary) {
  Context*& known = state().primaries[static_cast<std::size_t>(device)];
  if (known == nullptr) known = make_context(device, true);
  if (known->dead) revive(known);
  ++known->retained;
  *primary = known;
  return kSuccess;
}

void release_primary(Context* primary) {
  if (--primary->retained == 0) end_life(primary);
}

}  // namespace fake

extern "C" __attribute__((visibility("default"))) Engine* fake_engine() {
  static RealEngine* const engine = new RealEngine();
  return engine;
}

FAKE_API int cuInit(unsigned) {
  FAKE_CALL(cuInit);
  if (visible_count() == 0) return kNoDevice;
  const std::lock_guard lock(state().mutex);
  if (!state().initialized.load()) {
    state().owner_pid = static_cast<int>(getpid());
    state().primaries.assign(static_cast<std::size_t>(visible_count()), nullptr);
    state().initialized.store(true);
  }
  return state().owner_pid == static_cast<int>(getpid()) ? kSuccess : kNotInitialized;
}

FAKE_API int cuDriverGetVersion(int* version) {
  FAKE_CALL(cuDriverGetVersion);
  *version = static_cast<int>(setting("driver", 13000));
  return kSuccess;
}

FAKE_API int cuGetErrorName(int error, const char** name) {
  FAKE_CALL(cuGetErrorName);
  *name = error == kSuccess ? "CUDA_SUCCESS" : error == kNotReady ? "CUDA_ERROR_NOT_READY" : "CUDA_ERROR_OF_THE_DOUBLE";
  return kSuccess;
}

FAKE_API int cuGetErrorString(int error, const char** text) {
  FAKE_CALL(cuGetErrorString);
  *text = error == kSuccess ? "no error" : "an error of the double";
  return kSuccess;
}

FAKE_API int cuDeviceGetCount(int* count) {
  FAKE_CALL(cuDeviceGetCount);
  if (const int error = ready_error(); error != kSuccess) return error;
  *count = visible_count();
  return kSuccess;
}

FAKE_API int cuDeviceGet(int* device, int ordinal) {
  FAKE_CALL(cuDeviceGet);
  *device = ordinal;
  return device_error(ordinal);
}

FAKE_API int cuDeviceGetName(char* name, int bytes, int device) {
  FAKE_CALL(cuDeviceGetName);
  if (const int error = device_error(device); error != kSuccess) return error;
  std::snprintf(name, static_cast<std::size_t>(bytes), "%s",
                device_text(physical(device), "name", "Double H200").c_str());
  return kSuccess;
}

static void put_uuid(unsigned char* uuid, int first, int device) {
  for (int at = 0; at < 16; ++at) uuid[at] = static_cast<unsigned char>(first + at);
  uuid[15] = static_cast<unsigned char>(physical(device));
}

// `mig 1`: the device is an instance of a GPU. cuda.h 13.5, 5812: then its own UUID is told.
FAKE_API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  FAKE_CALL(cuDeviceGetUuid_v2);
  if (const int error = device_error(device); error != kSuccess) return error;
  put_uuid(uuid, device_setting(physical(device), "mig", 0) != 0 ? 0xb0 : 0xa0, device);
  return kSuccess;
}

// cuda.h 12.9, 5240: that of the device, without a word of MIG.
FAKE_API int cuDeviceGetUuid(unsigned char* uuid, int device) {
  FAKE_CALL(cuDeviceGetUuid);
  if (const int error = device_error(device); error != kSuccess) return error;
  put_uuid(uuid, 0xa0, device);
  return kSuccess;
}

FAKE_API int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  FAKE_CALL(cuDeviceTotalMem_v2);
  *bytes = static_cast<std::size_t>(device_setting(physical(device), "memory", 141e9));
  return device_error(device);
}

FAKE_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  FAKE_CALL(cuDeviceGetAttribute);
  if (const int error = device_error(device); error != kSuccess) return error;
  const auto capability = static_cast<int>(device_setting(physical(device), "capability", 90));
  switch (attribute) {
    case 16: *value = static_cast<int>(device_setting(physical(device), "multiprocessors", 132)); break;
    case 33: *value = 0x1b + physical(device); break;  // PCI bus
    case 34: *value = 0; break;                        // PCI device
    case 40: *value = 3; break;                        // copy engines
    case 50: *value = 0; break;                        // PCI domain
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    default: *value = 1;
  }
  return kSuccess;
}

FAKE_API int cuDeviceGetPCIBusId(char* text, int bytes, int device) {
  FAKE_CALL(cuDeviceGetPCIBusId);
  if (const int error = device_error(device); error != kSuccess) return error;
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0x1b + physical(device));
  return kSuccess;
}

FAKE_API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  FAKE_CALL(cuDeviceCanAccessPeer);
  *can = device != peer;
  return device_error(device) != kSuccess ? device_error(device) : device_error(peer);
}

FAKE_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  FAKE_CALL(cuDevicePrimaryCtxRetain);
  if (const int error = device_error(device); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  Context* primary = nullptr;
  const int error = retain_primary(device, &primary);
  *context = primary;
  return error;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int device) {
  FAKE_CALL(cuDevicePrimaryCtxRelease_v2);
  if (const int error = device_error(device); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  Context* primary = state().primaries[static_cast<std::size_t>(device)];
  if (primary == nullptr || primary->dead) return kInvalidContext;
  release_primary(primary);
  return kSuccess;
}
FAKE_API int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }

FAKE_API int cuDevicePrimaryCtxReset_v2(int device) {
  FAKE_CALL(cuDevicePrimaryCtxReset_v2);
  if (const int error = device_error(device); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  Context* primary = state().primaries[static_cast<std::size_t>(device)];
  if (primary != nullptr && !primary->dead) end_life(primary);
  return kSuccess;
}
// What the runtime asks for, as cuda.h had it before 11.0.
FAKE_API int cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }

FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  FAKE_CALL(cuDevicePrimaryCtxGetState);
  if (const int error = device_error(device); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  const Context* primary = state().primaries[static_cast<std::size_t>(device)];
  *flags = 0;
  *active = primary != nullptr && !primary->dead;
  return kSuccess;
}

FAKE_API int cuCtxCreate_v2(void** context, unsigned, int device) {
  FAKE_CALL(cuCtxCreate_v2);
  if (const int error = device_error(device); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  Context* made = make_context(device, false);
  t_contexts.push_back(made);
  *context = made;
  return kSuccess;
}

FAKE_API int cuCtxCreate_v4(void** context, const void*, unsigned flags, int device) {
  FAKE_CALL(cuCtxCreate_v4);
  return cuCtxCreate_v2(context, flags, device);
}

FAKE_API int cuCtxDestroy_v2(void* context) {
  FAKE_CALL(cuCtxDestroy_v2);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (!state().contexts.contains(context) || static_cast<Context*>(context)->dead) return kInvalidContext;
  end_life(static_cast<Context*>(context));
  if (current_context() == context) t_contexts.pop_back();
  return kSuccess;
}
FAKE_API int cuCtxDestroy(void* context) { return cuCtxDestroy_v2(context); }

FAKE_API int cuCtxPushCurrent_v2(void* context) {
  FAKE_CALL(cuCtxPushCurrent_v2);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (!state().contexts.contains(context)) return kInvalidContext;
  if (static_cast<Context*>(context)->dead) return use_of_a_dead_handle();
  t_contexts.push_back(static_cast<Context*>(context));
  return kSuccess;
}

FAKE_API int cuCtxPopCurrent_v2(void** context) {
  FAKE_CALL(cuCtxPopCurrent_v2);
  if (t_contexts.empty()) return kInvalidContext;
  if (context != nullptr) *context = t_contexts.back();
  t_contexts.pop_back();
  return kSuccess;
}

FAKE_API int cuCtxSetCurrent(void* context) {
  FAKE_CALL(cuCtxSetCurrent);
  if (const int error = ready_error(); error != kSuccess) return error;
  if (!t_contexts.empty()) t_contexts.pop_back();
  if (context != nullptr) t_contexts.push_back(static_cast<Context*>(context));
  return kSuccess;
}

FAKE_API int cuCtxGetCurrent(void** context) {
  FAKE_CALL(cuCtxGetCurrent);
  if (const int error = ready_error(); error != kSuccess) return error;
  *context = current_context();
  return kSuccess;
}

FAKE_API int cuCtxGetDevice(int* device) {
  FAKE_CALL(cuCtxGetDevice);
  if (const int error = context_error(); error != kSuccess) return error;
  *device = current_context()->device;
  return kSuccess;
}

FAKE_API int cuCtxGetId(void* context, unsigned long long* id) {
  FAKE_CALL(cuCtxGetId);
  if (const int error = ready_error(); error != kSuccess) return error;
  const auto* of = context == nullptr ? current_context() : static_cast<Context*>(context);
  if (of == nullptr) return kInvalidContext;
  *id = of->id;
  return kSuccess;
}

FAKE_API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CALL(cuCtxGetStreamPriorityRange);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return context_error();
}

FAKE_API int cuCtxEnablePeerAccess(void*, unsigned) {
  FAKE_CALL(cuCtxEnablePeerAccess);
  return context_error();
}

namespace {

int synchronize(Context* context) {
  std::unique_lock lock(state().mutex);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  std::vector<CompletionPtr> pending;
  for (Stream* stream : context->streams) pending.push_back(stream->last);
  for (const void* other : state().contexts)  // cuda.h 13.5, 7058: of the primary context, also green ones
    for (Stream* stream : static_cast<const Context*>(other)->streams)
      if (stream->context->base == context) pending.push_back(stream->last);
  for (const CompletionPtr& done : pending) wait_for(lock, done);
  return kSuccess;
}

}  // namespace

FAKE_API int cuCtxSynchronize() {
  FAKE_CALL(cuCtxSynchronize);
  if (const int error = context_error(); error != kSuccess) return error;
  return synchronize(current_context());
}

// CUDA 13's: of any context, null is the current one.
FAKE_API int cuCtxSynchronize_v2(void* context) {
  FAKE_CALL(cuCtxSynchronize_v2);
  if (context == nullptr) {
    if (const int error = context_error(); error != kSuccess) return error;
    return synchronize(current_context());
  }
  if (const int error = ready_error(); error != kSuccess) return error;
  {
    const std::lock_guard lock(state().mutex);
    if (!state().contexts.contains(context)) return kInvalidContext;
    if (static_cast<Context*>(context)->dead) return kContextDestroyed;
  }
  return synchronize(static_cast<Context*>(context));
}

FAKE_API int cuCtxGetDevice_v2(int* device, void* context) {
  FAKE_CALL(cuCtxGetDevice_v2);
  if (context == nullptr) return cuCtxGetDevice(device);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (!state().contexts.contains(context)) return kInvalidContext;
  *device = static_cast<Context*>(context)->device;
  return kSuccess;
}
