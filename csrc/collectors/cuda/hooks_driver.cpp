// The driver's calls, for programs that look them up themselves: CuPy, Triton, JAX and other static runtimes.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: libstashtrace_lookup.so asks stashtrace_lookup() about each name that begins with "cu"; the functions that it
// gives in return are called like the driver's own. Only with STASHTRACE_LOOKUP_HOOK=1. Each function exists twice: as it is,
// and for callers whose stream 0 is their thread's own (_ptsz).
#include <string_view>

#include "collectors/cuda/calls.h"
#include "collectors/cuda/cuda.h"
#include "device/driver.h"
#include "runtime/capi.h"

namespace stashtrace::cuda {

namespace {

const void* address(DevicePointer pointer) noexcept { return reinterpret_cast<const void*>(pointer); }

// Real functions by variant: [0] as it is, [1] per-thread.
#define LOOKED_UP(name, ...)                      \
  using Real_##name = Result (*)(__VA_ARGS__);    \
  constinit Real_##name real_##name[2] = {nullptr, nullptr};
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
  static Result cuMemcpyHtoDAsync(DevicePointer to, const void* from, std::size_t bytes, Stream stream) {
    return copying({address(to), from, bytes, kHostToDevice, of(stream), false, false},
                   [=] { return real_cuMemcpyHtoDAsync[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyDtoHAsync(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
    return copying({to, address(from), bytes, kDeviceToHost, of(stream), false, false},
                   [=] { return real_cuMemcpyDtoHAsync[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyDtoDAsync(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
    return copying({address(to), address(from), bytes, kDeviceToDevice, of(stream), false, false},
                   [=] { return real_cuMemcpyDtoDAsync[kVariant](to, from, bytes, stream); });
  }
  static Result cuMemcpyHtoD(DevicePointer to, const void* from, std::size_t bytes) {
    return copying({address(to), from, bytes, kHostToDevice, of(nullptr), true, false},
                   [=] { return real_cuMemcpyHtoD[kVariant](to, from, bytes); });
  }
  static Result cuMemcpyDtoH(void* to, DevicePointer from, std::size_t bytes) {
    return copying({to, address(from), bytes, kDeviceToHost, of(nullptr), true, false},
                   [=] { return real_cuMemcpyDtoH[kVariant](to, from, bytes); });
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
  static Result cuEventDestroy(Event event) {
    if (watching()) device::note_event_gone(event);
    return real_cuEventDestroy[kVariant](event);
  }
  static Result cuStreamDestroy(Stream stream) {
    if (room_is_on) device::note_stream_gone(stream);
    return real_cuStreamDestroy[kVariant](stream);
  }
  static Result cuStreamSynchronize(Stream stream) {
    return timed_call(call_code::stream_synchronize, of(stream), true, 0,
                      [=] { return real_cuStreamSynchronize[kVariant](stream); });
  }
  static Result cuCtxSynchronize() {
    return timed_call(call_code::device_synchronize, nullptr, false, 0, [] { return real_cuCtxSynchronize[kVariant](); });
  }
  static Result cuEventSynchronize(Event event) {
    return timed_call(call_code::event_synchronize, nullptr, false, 0,
                      [=] { return real_cuEventSynchronize[kVariant](event); });
  }
  static Result cuMemAlloc(DevicePointer* pointer, std::size_t bytes) {
    return allocating(nullptr, false, bytes, [=] { return real_cuMemAlloc[kVariant](pointer, bytes); });
  }
  static Result cuMemFree(DevicePointer pointer) {
    return timed_call(call_code::free, nullptr, false, 0, [=] { return real_cuMemFree[kVariant](pointer); });
  }
  static Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t count, Stream stream) {
    return launching(of(stream), [=] { return real_cuMemsetD8Async[kVariant](to, value, count, stream); });
  }
  static Result cuMemsetD32Async(DevicePointer to, unsigned value, std::size_t count, Stream stream) {
    return launching(of(stream), [=] { return real_cuMemsetD32Async[kVariant](to, value, count, stream); });
  }
  static Result cuLaunchKernel(Function kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments,
                               void** extra) {
    return launching(of(stream), [=] {
      return real_cuLaunchKernel[kVariant](kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                           arguments, extra);
    });
  }
  static Result cuLaunchKernelEx(const DriverLaunchConfig* config, Function kernel, void** arguments, void** extra) {
    if (config == nullptr) return real_cuLaunchKernelEx[kVariant](config, kernel, arguments, extra);
    return launching(of(config->stream), [=] { return real_cuLaunchKernelEx[kVariant](config, kernel, arguments, extra); });
  }
  static Result cuGraphLaunch(GraphExec graph, Stream stream) {
    return launching_graph(graph, of(stream), [=] { return real_cuGraphLaunch[kVariant](graph, stream); });
  }
};

// `version_2`: the library's symbol of today's ABI ends in _v2.
struct Known {
  std::string_view name;
  bool version_2;
  void* ours[2];
  void** real;
};

#define LOOKED_UP_AS(name, version_2)                                                                      \
  {#name, version_2, {reinterpret_cast<void*>(&Ours<0>::name), reinterpret_cast<void*>(&Ours<1>::name)}, \
   reinterpret_cast<void**>(real_##name)},
const Known kKnown[] = {
    LOOKED_UP_AS(cuMemcpyAsync, false)
    LOOKED_UP_AS(cuMemcpyHtoDAsync, true)
    LOOKED_UP_AS(cuMemcpyDtoHAsync, true)
    LOOKED_UP_AS(cuMemcpyDtoDAsync, true)
    LOOKED_UP_AS(cuMemcpyHtoD, true)
    LOOKED_UP_AS(cuMemcpyDtoH, true)
    LOOKED_UP_AS(cuStreamWaitEvent, false)
    LOOKED_UP_AS(cuEventRecord, false)
    LOOKED_UP_AS(cuEventRecordWithFlags, false)
    LOOKED_UP_AS(cuEventDestroy, true)
    LOOKED_UP_AS(cuStreamDestroy, true)
    LOOKED_UP_AS(cuStreamSynchronize, false)
    LOOKED_UP_AS(cuCtxSynchronize, false)
    LOOKED_UP_AS(cuEventSynchronize, false)
    LOOKED_UP_AS(cuMemAlloc, true)
    LOOKED_UP_AS(cuMemFree, true)
    LOOKED_UP_AS(cuMemsetD8Async, false)
    LOOKED_UP_AS(cuMemsetD32Async, false)
    LOOKED_UP_AS(cuLaunchKernel, false)
    LOOKED_UP_AS(cuLaunchKernelEx, false)
    LOOKED_UP_AS(cuGraphLaunch, false)
};
#undef LOOKED_UP_AS

void* wrap(const Known& known, int variant, void* real) noexcept {
  if (real == known.ours[variant]) return real;
  known.real[variant] = real;
  return known.ours[variant];
}

Result look_up(const char* symbol, void** function, int version, std::uint64_t flags);
Result look_up_with_status(const char* symbol, void** function, int version, std::uint64_t flags, int* status);

// An answer of the driver's own look-up, by the name without suffixes.
void replace(const char* symbol, void** function, int version, std::uint64_t flags) noexcept {
  constexpr int kWithStatus = 12000;
  if (symbol == nullptr || function == nullptr || *function == nullptr || device::Inside::already()) return;
  const std::string_view name(symbol);
  const int variant = (flags & kLookUpPerThread) != 0 ? 1 : 0;
  if (name == "cuGetProcAddress") {
    if (version >= kWithStatus && *function != reinterpret_cast<void*>(&look_up_with_status)) {
      g_look_up_with_status = reinterpret_cast<LookUpWithStatus>(*function);
      *function = reinterpret_cast<void*>(&look_up_with_status);
    }
    return;
  }
  constexpr int kTodaysAbi = 4000;
  for (const Known& known : kKnown)
    if (known.name == name && version >= kTodaysAbi) *function = wrap(known, variant, *function);
}

Result look_up(const char* symbol, void** function, int version, std::uint64_t flags) {
  const Result result = g_look_up(symbol, function, version, flags);
  if (result == kSuccess) replace(symbol, function, version, flags);
  return result;
}

Result look_up_with_status(const char* symbol, void** function, int version, std::uint64_t flags, int* status) {
  const Result result = g_look_up_with_status(symbol, function, version, flags, status);
  if (result == kSuccess) replace(symbol, function, version, flags);
  return result;
}

// What stands behind a known name in a symbol of the library: "", "_v2", "_ptsz", "_v2_ptsz"; -1 if it is another function.
int variant_of(const Known& known, std::string_view symbol) noexcept {
  if (!symbol.starts_with(known.name)) return -1;
  std::string_view rest = symbol.substr(known.name.size());
  if (known.version_2) {
    if (!rest.starts_with("_v2")) return -1;
    rest = rest.substr(3);
  }
  if (rest.empty()) return 0;
  return rest == "_ptsz" || rest == "_ptds" ? 1 : -1;
}

}  // namespace

}  // namespace stashtrace::cuda

extern "C" void* stashtrace_lookup(const char* symbol, void* real) noexcept {
  using namespace stashtrace::cuda;
  if (!lookup_hook_is_on() || stashtrace::device::Inside::already()) return real;
  const std::string_view name(symbol);
  if (name == "cuGetProcAddress_v2") {
    if (real != reinterpret_cast<void*>(&look_up_with_status)) g_look_up_with_status = reinterpret_cast<LookUpWithStatus>(real);
    return reinterpret_cast<void*>(&look_up_with_status);
  }
  if (name == "cuGetProcAddress") {
    g_look_up = reinterpret_cast<LookUp>(real);
    return reinterpret_cast<void*>(&look_up);
  }
  for (const Known& known : kKnown) {
    const int variant = variant_of(known, name);
    if (variant >= 0) return wrap(known, variant, real);
  }
  return real;
}
