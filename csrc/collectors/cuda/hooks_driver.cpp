// The driver's calls, for programs that look them up themselves: CuPy, Triton, JAX and other static runtimes; torch's allocator.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: libstashtrace_lookup.so calls stashtrace_lookup() for each name that begins with "cu"; the functions that it
// returns are called like the driver's own. Only with STASHTRACE_LOOKUP_HOOK=1. hooks_runtime.cpp always does the same
// for look-ups by libcudart. Each function exists twice: as it is, and for callers whose stream 0 is their thread's own
// (_ptsz).
#include <atomic>
#include <string_view>

#include "collectors/cuda/calls.h"
#include "collectors/cuda/cuda_collector.h"
#include "collectors/cuda/look_ups.h"
#include "core/text_buffer.h"
#include "device/driver.h"
#include "runtime/capi.h"

namespace stashtrace::cuda {

namespace {

const void* address(DevicePointer pointer) noexcept { return reinterpret_cast<const void*>(pointer); }

// Real functions by variant: [0] as it is, [1] per-thread.
#define LOOKED_UP(name, suffix, since, until, per_thread, per_thread_since, ...) \
  using Real_##name##suffix = Result (*)(__VA_ARGS__);                           \
  constinit Real_##name##suffix real_##name##suffix[2] = {nullptr, nullptr};
#include "collectors/cuda/driver_calls.def"
#undef LOOKED_UP

using LookUp = Result (*)(const char*, void**, int, std::uint64_t);
using LookUpWithStatus = Result (*)(const char*, void**, int, std::uint64_t, int*);
constinit LookUp g_look_up = nullptr;
constinit LookUpWithStatus g_look_up_with_status = nullptr;

template <int kVariant>
struct Ours {
  static Stream of(Stream stream) noexcept {
    if constexpr (kVariant == 1) return own_default(stream);
    else return stream;
  }

  static Result cuMemcpyAsync(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
    return copying({address(to), address(from), bytes, kDefaultKind, of(stream), false, false},
                   [=] { return real_cuMemcpyAsync[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, Stream stream) {
    return copying({address(to), from, bytes, kHostToDevice, of(stream), false, false},
                   [=] { return real_cuMemcpyHtoDAsync_v2[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
    return copying({to, address(from), bytes, kDeviceToHost, of(stream), false, false},
                   [=] { return real_cuMemcpyDtoHAsync_v2[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
    return copying({address(to), address(from), bytes, kDeviceToDevice, of(stream), false, false},
                   [=] { return real_cuMemcpyDtoDAsync_v2[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, std::size_t bytes) {
    return copying({address(to), from, bytes, kHostToDevice, of(nullptr), true, false},
                   [=] { return real_cuMemcpyHtoD_v2[kVariant](to, from, bytes); });
  }
  static Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
    return copying({to, address(from), bytes, kDeviceToHost, of(nullptr), true, false},
                   [=] { return real_cuMemcpyDtoH_v2[kVariant](to, from, bytes); });
  }
  static Result cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, std::size_t bytes) {
    return copying({address(to), address(from), bytes, kDeviceToDevice, of(nullptr), true, false},
                   [=] { return real_cuMemcpyDtoD_v2[kVariant](to, from, bytes); });
  }
  static Result cuMemcpy(DevicePointer to, DevicePointer from, std::size_t bytes) {
    return copying({address(to), address(from), bytes, kDefaultKind, of(nullptr), true, false},
                   [=] { return real_cuMemcpy[kVariant](to, from, bytes); });
  }
  static Result cuMemcpy2D_v2(const DriverRectangleCopy* copy) {
    return copying_described(copy, of(nullptr), true, [=] { return real_cuMemcpy2D_v2[kVariant](copy); });
  }
  static Result cuMemcpy2DUnaligned_v2(const DriverRectangleCopy* copy) {
    return copying_described(copy, of(nullptr), true, [=] { return real_cuMemcpy2DUnaligned_v2[kVariant](copy); });
  }
  static Result cuMemcpy2DAsync_v2(const DriverRectangleCopy* copy, Stream stream) {
    return copying_described(copy, of(stream), false, [=] { return real_cuMemcpy2DAsync_v2[kVariant](copy, stream); });
  }
  static Result cuMemcpy3D_v2(const DriverBoxCopy* copy) {
    return copying_described(copy, of(nullptr), true, [=] { return real_cuMemcpy3D_v2[kVariant](copy); });
  }
  static Result cuMemcpy3DAsync_v2(const DriverBoxCopy* copy, Stream stream) {
    return copying_described(copy, of(stream), false, [=] { return real_cuMemcpy3DAsync_v2[kVariant](copy, stream); });
  }
  static Result cuMemcpyPeer(DevicePointer to, Context to_context, DevicePointer from, Context from_context,
                             std::size_t bytes) {
    return copying({address(to), address(from), bytes, kDeviceToDevice, of(nullptr), false, false},
                   [=] { return real_cuMemcpyPeer[kVariant](to, to_context, from, from_context, bytes); });
  }
  static Result cuMemcpyPeerAsync(DevicePointer to, Context to_context, DevicePointer from, Context from_context,
                                  std::size_t bytes, Stream stream) {
    return copying({address(to), address(from), bytes, kDeviceToDevice, of(stream), false, false},
                   [=] { return real_cuMemcpyPeerAsync[kVariant](to, to_context, from, from_context, bytes, stream); });
  }
  static Result cuMemcpy3DPeer(const DriverBoxCopy* copy) {
    return copying_described(copy, of(nullptr), false, [=] { return real_cuMemcpy3DPeer[kVariant](copy); });
  }
  static Result cuMemcpy3DPeerAsync(const DriverBoxCopy* copy, Stream stream) {
    return copying_described(copy, of(stream), false, [=] { return real_cuMemcpy3DPeerAsync[kVariant](copy, stream); });
  }
  static Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
    return waiting_for(of(stream), event, [=] { return real_cuStreamWaitEvent[kVariant](stream, event, flags); });
  }
  static Result cuEventRecord(Event event, Stream stream) {
    return recording_event(event, of(stream), 0, [=] { return real_cuEventRecord[kVariant](event, stream); });
  }
  static Result cuEventRecordWithFlags(Event event, Stream stream, unsigned flags) {
    return recording_event(event, of(stream), flags,
                           [=] { return real_cuEventRecordWithFlags[kVariant](event, stream, flags); });
  }
  static Result cuEventDestroy_v2(Event event) {
    if (watching()) device::note_event_gone(event);
    return real_cuEventDestroy_v2[kVariant](event);
  }
  static Result cuStreamCreate(Stream* stream, unsigned flags) {
    return creating_stream(__builtin_return_address(0), stream,
                           [=] { return real_cuStreamCreate[kVariant](stream, flags); });
  }
  static Result cuStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
    return creating_stream(__builtin_return_address(0), stream,
                           [=] { return real_cuStreamCreateWithPriority[kVariant](stream, flags, priority); });
  }
  static Result cuStreamDestroy_v2(Stream stream) {
    if (cuda_is_on) device::note_stream_gone(stream);
    return real_cuStreamDestroy_v2[kVariant](stream);
  }
  static Result cuCtxDestroy(Context context) {
    return destroying_context(context, [=] { return real_cuCtxDestroy[kVariant](context); });
  }
  static Result cuCtxDestroy_v2(Context context) {
    return destroying_context(context, [=] { return real_cuCtxDestroy_v2[kVariant](context); });
  }
  static Result cuGreenCtxDestroy(GreenContext green) {
    return destroying_green_context(green, [=] { return real_cuGreenCtxDestroy[kVariant](green); });
  }
  static Result cuDevicePrimaryCtxReset(Device device) {
    return resetting_device(device, [=] { return real_cuDevicePrimaryCtxReset[kVariant](device); });
  }
  static Result cuDevicePrimaryCtxReset_v2(Device device) {
    return resetting_device(device, [=] { return real_cuDevicePrimaryCtxReset_v2[kVariant](device); });
  }
  static Result cuDevicePrimaryCtxRelease(Device device) {
    return releasing_device(device, [=] { return real_cuDevicePrimaryCtxRelease[kVariant](device); });
  }
  static Result cuDevicePrimaryCtxRelease_v2(Device device) {
    return releasing_device(device, [=] { return real_cuDevicePrimaryCtxRelease_v2[kVariant](device); });
  }
  static Result cuStreamSynchronize(Stream stream) {
    return timed_call(call_code::stream_synchronize, of(stream), true, 0,
                      [=] { return real_cuStreamSynchronize[kVariant](stream); });
  }
  static Result cuCtxSynchronize() {
    return timed_call(call_code::device_synchronize, nullptr, false, 0,
                      [] { return real_cuCtxSynchronize[kVariant](); });
  }
  static Result cuCtxSynchronize_v2(Context context) {
    return timed_call(call_code::device_synchronize, nullptr, false, 0,
                      [=] { return real_cuCtxSynchronize_v2[kVariant](context); });
  }
  static Result cuEventSynchronize(Event event) {
    return timed_call(call_code::event_synchronize, nullptr, false, 0,
                      [=] { return real_cuEventSynchronize[kVariant](event); });
  }
  static Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
    return allocating(nullptr, false, bytes, [=] { return real_cuMemAlloc_v2[kVariant](pointer, bytes); });
  }
  static Result cuMemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
    return allocating(nullptr, false, bytes, [=] { return real_cuMemAllocManaged[kVariant](pointer, bytes, flags); });
  }
  static Result cuMemAllocPitch_v2(DevicePointer* pointer, std::size_t* pitch, std::size_t width, std::size_t height,
                                   unsigned element_bytes) {
    return allocating(nullptr, false, width * height,
                      [=] { return real_cuMemAllocPitch_v2[kVariant](pointer, pitch, width, height, element_bytes); });
  }
  static Result cuMemFree_v2(DevicePointer pointer) {
    return timed_call(call_code::free, nullptr, false, 0, [=] { return real_cuMemFree_v2[kVariant](pointer); });
  }
  static Result cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    return timed_call(call_code::allocate_host, nullptr, false, bytes,
                      [=] { return real_cuMemHostAlloc[kVariant](pointer, bytes, flags); });
  }
  static Result cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
    return timed_call(call_code::allocate_host, nullptr, false, bytes,
                      [=] { return real_cuMemHostRegister_v2[kVariant](pointer, bytes, flags); });
  }
  static Result cuMemHostUnregister(void* pointer) {
    return timed_call(call_code::free, nullptr, false, 0, [=] { return real_cuMemHostUnregister[kVariant](pointer); });
  }
  static Result cuMemFreeHost(void* pointer) {
    return timed_call(call_code::free, nullptr, false, 0, [=] { return real_cuMemFreeHost[kVariant](pointer); });
  }
  static Result cuMemCreate(unsigned long long* handle, std::size_t bytes, const void* how, unsigned long long flags) {
    return allocating(
        nullptr, false, bytes, [=] { return real_cuMemCreate[kVariant](handle, bytes, how, flags); },
        call_code::map_memory);
  }
  static Result cuMemMap(DevicePointer to, std::size_t bytes, std::size_t offset, unsigned long long handle,
                         unsigned long long flags) {
    return timed_call(call_code::map_memory, nullptr, false, bytes,
                      [=] { return real_cuMemMap[kVariant](to, bytes, offset, handle, flags); });
  }
  static Result cuMemSetAccess(DevicePointer to, std::size_t bytes, const void* whose, std::size_t count) {
    return timed_call(call_code::map_memory, nullptr, false, bytes,
                      [=] { return real_cuMemSetAccess[kVariant](to, bytes, whose, count); });
  }
  static Result cuMemUnmap(DevicePointer from, std::size_t bytes) {
    return timed_call(call_code::unmap_memory, nullptr, false, bytes,
                      [=] { return real_cuMemUnmap[kVariant](from, bytes); });
  }
  static Result cuMemRelease(unsigned long long handle) {
    return timed_call(call_code::unmap_memory, nullptr, false, 0, [=] { return real_cuMemRelease[kVariant](handle); });
  }
  static Result cuMemsetD8_v2(DevicePointer to, unsigned char value, std::size_t count) {
    return launching(of(nullptr), [=] { return real_cuMemsetD8_v2[kVariant](to, value, count); });
  }
  static Result cuMemsetD32_v2(DevicePointer to, unsigned value, std::size_t count) {
    return launching(of(nullptr), [=] { return real_cuMemsetD32_v2[kVariant](to, value, count); });
  }
  static Result cuMemsetD2D8_v2(DevicePointer to, std::size_t pitch, unsigned char value, std::size_t width,
                                std::size_t height) {
    return launching(of(nullptr), [=] { return real_cuMemsetD2D8_v2[kVariant](to, pitch, value, width, height); });
  }
  static Result cuMemsetD2D8Async(DevicePointer to, std::size_t pitch, unsigned char value, std::size_t width,
                                  std::size_t height, Stream stream) {
    return launching(of(stream),
                     [=] { return real_cuMemsetD2D8Async[kVariant](to, pitch, value, width, height, stream); });
  }
  static Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t count, Stream stream) {
    return launching(of(stream), [=] { return real_cuMemsetD8Async[kVariant](to, value, count, stream); });
  }
  static Result cuMemsetD32Async(DevicePointer to, unsigned value, std::size_t count, Stream stream) {
    return launching(of(stream), [=] { return real_cuMemsetD32Async[kVariant](to, value, count, stream); });
  }
  static Result cuLaunchKernel(Function kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                               void** arguments, void** extra) {
    return launching(of(stream), [=] {
      return real_cuLaunchKernel[kVariant](kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                           stream, arguments, extra);
    });
  }
  static Result cuLaunchCooperativeKernel(Function kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                          Stream stream, void** arguments) {
    return launching(of(stream), [=] {
      return real_cuLaunchCooperativeKernel[kVariant](kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                                      shared_bytes, stream, arguments);
    });
  }
  static Result cuLaunchKernelEx(const DriverLaunchConfig* config, Function kernel, void** arguments, void** extra) {
    if (config == nullptr) return real_cuLaunchKernelEx[kVariant](config, kernel, arguments, extra);
    return launching(of(config->stream),
                     [=] { return real_cuLaunchKernelEx[kVariant](config, kernel, arguments, extra); });
  }
  static Result cuGraphLaunch(GraphExec graph, Stream stream) {
    return launching_graph(graph, of(stream), [=] { return real_cuGraphLaunch[kVariant](graph, stream); });
  }
  static Result cuLaunchHostFunc(Stream stream, HostFunction function, void* data) {
    return enqueuing_host_function(of(stream), [=] { return real_cuLaunchHostFunc[kVariant](stream, function, data); });
  }
  static Result cuLaunchHostFunc_v2(Stream stream, HostFunction function, void* data, unsigned how) {
    return enqueuing_host_function(of(stream),
                                   [=] { return real_cuLaunchHostFunc_v2[kVariant](stream, function, data, how); });
  }
  static Result cuStreamAddCallback(Stream stream, StreamCallback function, void* data, unsigned flags) {
    return enqueuing_host_function(of(stream),
                                   [=] { return real_cuStreamAddCallback[kVariant](stream, function, data, flags); });
  }
};

// One signature of a function, as in driver_calls.def. [0]: as it is, [1]: per-thread, null where there is none.
struct Known {
  std::string_view name;
  std::string_view symbols[2];
  int since[2];
  int until;
  void* ours[2];
  void** real;

  // Which of the two the driver gives for this version and these flags, -1 for neither.
  int variant(int version, std::uint64_t flags) const noexcept {
    const int which = (flags & kLookUpPerThread) != 0 && since[1] != 0 ? 1 : 0;
    return version >= since[which] && version < until ? which : -1;
  }
};

#define LOOKED_UP(name, suffix, since, until, per_thread, per_thread_since, ...)        \
  {#name,                                                                               \
   {#name #suffix, #name #suffix #per_thread},                                          \
   {since, per_thread_since},                                                           \
   until,                                                                               \
   {reinterpret_cast<void*>(&Ours<0>::name##suffix),                                    \
    per_thread_since != 0 ? reinterpret_cast<void*>(&Ours<1>::name##suffix) : nullptr}, \
   reinterpret_cast<void**>(real_##name##suffix)},
const Known kKnown[] = {
#include "collectors/cuda/driver_calls.def"
};
#undef LOOKED_UP

void* wrap(const Known& known, int variant, void* real) noexcept {
  if (real == known.ours[variant]) return real;
  known.real[variant] = real;
  return known.ours[variant];
}

// A program that is newer than this recorder works, but its calls are not recorded: the first one is reported.
void report_too_new(std::string_view name) noexcept {
  static constinit std::atomic<bool> reported{false};
  if (!recording() || reported.exchange(true, std::memory_order_relaxed)) return;
  char memory[160];
  TextBuffer text(memory, sizeof memory);
  text.add(name).add(
      " and perhaps other functions were asked for in a version of CUDA that is newer than this recorder knows: ");
  text.add("these calls are not recorded");
  device::report("driver_call_too_new", 0, text.c_str(), schema::codes::Severity::info);
}

Result look_up(const char* symbol, void** function, int version, std::uint64_t flags);
Result look_up_with_status(const char* symbol, void** function, int version, std::uint64_t flags, int* status);

}  // namespace

void replace_looked_up(const char* symbol, void** function, int version, std::uint64_t flags) noexcept {
  constexpr int kLookUpSince = 11030, kWithStatus = 12000;
  if (symbol == nullptr || function == nullptr || *function == nullptr || device::Inside::already()) return;
  if ((flags & ~(kLookUpLegacy | kLookUpPerThread)) != 0) return;
  const std::string_view name(symbol);
  if (name == "cuGetProcAddress") {
    if (version >= kWithStatus && version < kKnownUntil) {
      if (*function == reinterpret_cast<void*>(&look_up_with_status)) return;
      g_look_up_with_status = reinterpret_cast<LookUpWithStatus>(*function);
      *function = reinterpret_cast<void*>(&look_up_with_status);
    } else if (version >= kLookUpSince && version < kWithStatus) {
      if (*function == reinterpret_cast<void*>(&look_up)) return;
      g_look_up = reinterpret_cast<LookUp>(*function);
      *function = reinterpret_cast<void*>(&look_up);
    }
    return;
  }
  for (const Known& known : kKnown) {
    if (known.name != name) continue;
    if (const int variant = known.variant(version, flags); variant >= 0) {
      *function = wrap(known, variant, *function);
      return;
    }
    if (version >= kKnownUntil) return report_too_new(name);
  }
}

namespace {

Result look_up(const char* symbol, void** function, int version, std::uint64_t flags) {
  const Result result = g_look_up(symbol, function, version, flags);
  if (result == kSuccess) replace_looked_up(symbol, function, version, flags);
  return result;
}

Result look_up_with_status(const char* symbol, void** function, int version, std::uint64_t flags, int* status) {
  const Result result = g_look_up_with_status(symbol, function, version, flags, status);
  if (result == kSuccess) replace_looked_up(symbol, function, version, flags);
  return result;
}

}  // namespace

}  // namespace stashtrace::cuda

extern "C" void* stashtrace_lookup(const char* symbol, void* real) noexcept {
  using namespace stashtrace::cuda;
  if (!lookup_hook_is_on() || stashtrace::device::Inside::already()) return real;
  const std::string_view name(symbol);
  if (name == "cuGetProcAddress_v2") {
    if (real != reinterpret_cast<void*>(&look_up_with_status))
      g_look_up_with_status = reinterpret_cast<LookUpWithStatus>(real);
    return reinterpret_cast<void*>(&look_up_with_status);
  }
  if (name == "cuGetProcAddress") {
    g_look_up = reinterpret_cast<LookUp>(real);
    return reinterpret_cast<void*>(&look_up);
  }
  // A symbol of the library never changes its signature: the version is in its name.
  for (const Known& known : kKnown)
    for (int variant = 0; variant < 2; ++variant)
      if (known.ours[variant] != nullptr && known.symbols[variant] == name) return wrap(known, variant, real);
  return real;
}
