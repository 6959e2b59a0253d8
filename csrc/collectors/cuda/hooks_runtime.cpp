// Hooks of libcudart's calls. SPDX-License-Identifier: Apache-2.0
//
// Called in place of libcudart by everything that links it dynamically (torch, libtorch's users); a static
// runtime never comes here. Thin: calls.h says what is recorded, runtimes.h which libcudart a call goes on to.
#include "collectors/cuda/calls.h"
#include "collectors/cuda/look_ups.h"
#include "collectors/cuda/runtimes.h"

using namespace stashtrace::cuda;

namespace {

template <class Call>
Result creating_stream_in(const void* caller, ExecutionContext context, Stream* stream, Call call) {
  const Result result = creating_stream(caller, stream, call);
  if (cuda_is_on && result == kSuccess && stream != nullptr && !stashtrace::device::Inside::already())
    stashtrace::device::note_execution_context(*stream, context);
  return result;
}

template <class Call>
Result destroying_stream(Stream stream, Call call) {
  if (cuda_is_on) stashtrace::device::note_stream_gone(stream);
  return call();
}

template <class Call>
Result destroying_event(Event event, Call call) {
  if (watching()) stashtrace::device::note_event_gone(event);
  return call();
}

// A symbol's address is that of its shadow in the program, which the driver does not know: the symbol is on the device.
int known_kind(int kind, int usual) noexcept { return kind == kDefaultKind ? usual : kind; }

template <class Call>
Result launching_config(const LaunchConfig* config, bool per_thread, Call call) {
  if (config == nullptr) return call();
  return launching(per_thread ? own_default(config->stream) : config->stream, call);
}

// The driver gives the form of that version. Without flags a look-up means the default of the code that asks.
template <class Call>
Result looking_up(const char* symbol, void** function, int version, unsigned long long flags, Call call) {
  const Result result = call();
  if (cuda_is_on && result == kSuccess) replace_looked_up(symbol, function, version, flags);
  return result;
}
unsigned long long own_flags(unsigned long long flags) { return flags == 0 ? kLookUpPerThread : flags; }

}  // namespace

STASHTRACE_CUDART_HOOK(cudaMemcpy, (void* to, const void* from, std::size_t bytes, int kind), (to, from, bytes, kind),
                       copying({to, from, bytes, kind, nullptr, true, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy_ptds, (void* to, const void* from, std::size_t bytes, int kind),
                       (to, from, bytes, kind),
                       copying({to, from, bytes, kind, own_default(nullptr), true, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyAsync, (void* to, const void* from, std::size_t bytes, int kind, Stream stream),
                       (to, from, bytes, kind, stream), copying({to, from, bytes, kind, stream, false, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyAsync_ptsz, (void* to, const void* from, std::size_t bytes, int kind, Stream stream),
                       (to, from, bytes, kind, stream),
                       copying({to, from, bytes, kind, own_default(stream), false, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy2D,
                       (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                        std::size_t height, int kind),
                       (to, to_pitch, from, from_pitch, width, height, kind),
                       copying({to, from, width * height, kind, nullptr, true, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy2D_ptds,
                       (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                        std::size_t height, int kind),
                       (to, to_pitch, from, from_pitch, width, height, kind),
                       copying({to, from, width * height, kind, own_default(nullptr), true, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy2DAsync,
                       (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                        std::size_t height, int kind, Stream stream),
                       (to, to_pitch, from, from_pitch, width, height, kind, stream),
                       copying({to, from, width * height, kind, stream, false, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy2DAsync_ptsz,
                       (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                        std::size_t height, int kind, Stream stream),
                       (to, to_pitch, from, from_pitch, width, height, kind, stream),
                       copying({to, from, width * height, kind, own_default(stream), false, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3D, (const BoxCopy* copy), (copy), copying_box(copy, nullptr, true, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3D_ptds, (const BoxCopy* copy), (copy),
                       copying_box(copy, own_default(nullptr), true, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3DAsync, (const BoxCopy* copy, Stream stream), (copy, stream),
                       copying_box(copy, stream, false, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3DAsync_ptsz, (const BoxCopy* copy, Stream stream), (copy, stream),
                       copying_box(copy, own_default(stream), false, call))
// Without a stream argument, a copy between devices is ordered after all work, and the host goes on nevertheless.
STASHTRACE_CUDART_HOOK(cudaMemcpyPeer, (void* to, int to_device, const void* from, int from_device, std::size_t bytes),
                       (to, to_device, from, from_device, bytes),
                       copying({to, from, bytes, kDeviceToDevice, nullptr, false, to_device != from_device}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyPeerAsync,
                       (void* to, int to_device, const void* from, int from_device, std::size_t bytes, Stream stream),
                       (to, to_device, from, from_device, bytes, stream),
                       copying({to, from, bytes, kDeviceToDevice, stream, false, to_device != from_device}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3DPeer, (const PeerBoxCopy* copy), (copy), copying_box(copy, nullptr, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3DPeer_ptds, (const PeerBoxCopy* copy), (copy),
                       copying_box(copy, own_default(nullptr), call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3DPeerAsync, (const PeerBoxCopy* copy, Stream stream), (copy, stream),
                       copying_box(copy, stream, call))
STASHTRACE_CUDART_HOOK(cudaMemcpy3DPeerAsync_ptsz, (const PeerBoxCopy* copy, Stream stream), (copy, stream),
                       copying_box(copy, own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaMemcpyToSymbol,
                       (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, int kind),
                       (symbol, from, bytes, offset, kind),
                       copying({symbol, from, bytes, known_kind(kind, kHostToDevice), nullptr, true, false}, call))
STASHTRACE_CUDART_HOOK(
    cudaMemcpyToSymbol_ptds, (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, int kind),
    (symbol, from, bytes, offset, kind),
    copying({symbol, from, bytes, known_kind(kind, kHostToDevice), own_default(nullptr), true, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyToSymbolAsync,
                       (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, int kind,
                        Stream stream),
                       (symbol, from, bytes, offset, kind, stream),
                       copying({symbol, from, bytes, known_kind(kind, kHostToDevice), stream, false, false}, call))
STASHTRACE_CUDART_HOOK(
    cudaMemcpyToSymbolAsync_ptsz,
    (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, int kind, Stream stream),
    (symbol, from, bytes, offset, kind, stream),
    copying({symbol, from, bytes, known_kind(kind, kHostToDevice), own_default(stream), false, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyFromSymbol,
                       (void* to, const void* symbol, std::size_t bytes, std::size_t offset, int kind),
                       (to, symbol, bytes, offset, kind),
                       copying({to, symbol, bytes, known_kind(kind, kDeviceToHost), nullptr, true, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyFromSymbol_ptds,
                       (void* to, const void* symbol, std::size_t bytes, std::size_t offset, int kind),
                       (to, symbol, bytes, offset, kind),
                       copying({to, symbol, bytes, known_kind(kind, kDeviceToHost), own_default(nullptr), true, false},
                               call))
STASHTRACE_CUDART_HOOK(cudaMemcpyFromSymbolAsync,
                       (void* to, const void* symbol, std::size_t bytes, std::size_t offset, int kind, Stream stream),
                       (to, symbol, bytes, offset, kind, stream),
                       copying({to, symbol, bytes, known_kind(kind, kDeviceToHost), stream, false, false}, call))
STASHTRACE_CUDART_HOOK(cudaMemcpyFromSymbolAsync_ptsz,
                       (void* to, const void* symbol, std::size_t bytes, std::size_t offset, int kind, Stream stream),
                       (to, symbol, bytes, offset, kind, stream),
                       copying({to, symbol, bytes, known_kind(kind, kDeviceToHost), own_default(stream), false, false},
                               call))
STASHTRACE_CUDART_HOOK(cudaMemset, (void* to, int value, std::size_t bytes), (to, value, bytes),
                       launching(nullptr, call))
STASHTRACE_CUDART_HOOK(cudaMemset_ptds, (void* to, int value, std::size_t bytes), (to, value, bytes),
                       launching(own_default(nullptr), call))
STASHTRACE_CUDART_HOOK(cudaMemsetAsync, (void* to, int value, std::size_t bytes, Stream stream),
                       (to, value, bytes, stream), launching(stream, call))
STASHTRACE_CUDART_HOOK(cudaMemsetAsync_ptsz, (void* to, int value, std::size_t bytes, Stream stream),
                       (to, value, bytes, stream), launching(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaMemset2D, (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height),
                       (to, pitch, value, width, height), launching(nullptr, call))
STASHTRACE_CUDART_HOOK(cudaMemset2D_ptds,
                       (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height),
                       (to, pitch, value, width, height), launching(own_default(nullptr), call))
STASHTRACE_CUDART_HOOK(cudaMemset2DAsync,
                       (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height, Stream stream),
                       (to, pitch, value, width, height, stream), launching(stream, call))
STASHTRACE_CUDART_HOOK(cudaMemset2DAsync_ptsz,
                       (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height, Stream stream),
                       (to, pitch, value, width, height, stream), launching(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaMemset3D, (PitchedPointer to, int value, Extent extent), (to, value, extent),
                       launching(nullptr, call))
STASHTRACE_CUDART_HOOK(cudaMemset3D_ptds, (PitchedPointer to, int value, Extent extent), (to, value, extent),
                       launching(own_default(nullptr), call))
STASHTRACE_CUDART_HOOK(cudaMemset3DAsync, (PitchedPointer to, int value, Extent extent, Stream stream),
                       (to, value, extent, stream), launching(stream, call))
STASHTRACE_CUDART_HOOK(cudaMemset3DAsync_ptsz, (PitchedPointer to, int value, Extent extent, Stream stream),
                       (to, value, extent, stream), launching(own_default(stream), call))

STASHTRACE_CUDART_HOOK(cudaStreamWaitEvent, (Stream stream, Event event, unsigned flags), (stream, event, flags),
                       waiting_for(stream, event, call))
STASHTRACE_CUDART_HOOK(cudaStreamWaitEvent_ptsz, (Stream stream, Event event, unsigned flags), (stream, event, flags),
                       waiting_for(own_default(stream), event, call))
STASHTRACE_CUDART_HOOK(cudaEventRecord, (Event event, Stream stream), (event, stream),
                       recording_event(event, stream, 0, call))
STASHTRACE_CUDART_HOOK(cudaEventRecord_ptsz, (Event event, Stream stream), (event, stream),
                       recording_event(event, own_default(stream), 0, call))
STASHTRACE_CUDART_HOOK(cudaEventRecordWithFlags, (Event event, Stream stream, unsigned flags), (event, stream, flags),
                       recording_event(event, stream, flags, call))
STASHTRACE_CUDART_HOOK(cudaEventRecordWithFlags_ptsz, (Event event, Stream stream, unsigned flags),
                       (event, stream, flags), recording_event(event, own_default(stream), flags, call))
STASHTRACE_CUDART_HOOK(cudaEventDestroy, (Event event), (event), destroying_event(event, call))

STASHTRACE_CUDART_HOOK(cudaStreamCreate, (Stream * stream), (stream), creating_stream(caller, stream, call))
STASHTRACE_CUDART_HOOK(cudaStreamCreateWithFlags, (Stream * stream, unsigned flags), (stream, flags),
                       creating_stream(caller, stream, call))
STASHTRACE_CUDART_HOOK(cudaStreamCreateWithPriority, (Stream * stream, unsigned flags, int priority),
                       (stream, flags, priority), creating_stream(caller, stream, call))
STASHTRACE_CUDART_HOOK(cudaExecutionCtxStreamCreate,
                       (Stream * stream, ExecutionContext context, unsigned flags, int priority),
                       (stream, context, flags, priority), creating_stream_in(caller, context, stream, call))
STASHTRACE_CUDART_HOOK(cudaStreamDestroy, (Stream stream), (stream), destroying_stream(stream, call))

STASHTRACE_CUDART_HOOK(cudaStreamSynchronize, (Stream stream), (stream),
                       timed_call(call_code::stream_synchronize, stream, true, 0, call))
STASHTRACE_CUDART_HOOK(cudaStreamSynchronize_ptsz, (Stream stream), (stream),
                       timed_call(call_code::stream_synchronize, own_default(stream), true, 0, call))
STASHTRACE_CUDART_HOOK(cudaDeviceSynchronize, (), (),
                       timed_call(call_code::device_synchronize, nullptr, false, 0, call))
STASHTRACE_CUDART_HOOK(cudaDeviceReset, (), (), resetting_current_device(call))
STASHTRACE_CUDART_HOOK(cudaExecutionCtxDestroy, (ExecutionContext context), (context),
                       destroying_execution_context(context, call))
STASHTRACE_CUDART_HOOK(cudaEventSynchronize, (Event event), (event),
                       timed_call(call_code::event_synchronize, nullptr, false, 0, call))

STASHTRACE_CUDART_HOOK(cudaMalloc, (void** pointer, std::size_t bytes), (pointer, bytes),
                       allocating(nullptr, false, bytes, call))
STASHTRACE_CUDART_HOOK(cudaMallocManaged, (void** pointer, std::size_t bytes, unsigned flags), (pointer, bytes, flags),
                       allocating(nullptr, false, bytes, call))
STASHTRACE_CUDART_HOOK(cudaMallocPitch, (void** pointer, std::size_t* pitch, std::size_t width, std::size_t height),
                       (pointer, pitch, width, height), allocating(nullptr, false, width* height, call))
STASHTRACE_CUDART_HOOK(cudaFree, (void* pointer), (pointer), timed_call(call_code::free, nullptr, false, 0, call))
STASHTRACE_CUDART_HOOK(cudaMallocAsync, (void** pointer, std::size_t bytes, Stream stream), (pointer, bytes, stream),
                       allocating(stream, true, bytes, call))
STASHTRACE_CUDART_HOOK(cudaMallocAsync_ptsz, (void** pointer, std::size_t bytes, Stream stream),
                       (pointer, bytes, stream), allocating(own_default(stream), true, bytes, call))
STASHTRACE_CUDART_HOOK(cudaFreeAsync, (void* pointer, Stream stream), (pointer, stream),
                       timed_call(call_code::free, stream, true, 0, call))
STASHTRACE_CUDART_HOOK(cudaFreeAsync_ptsz, (void* pointer, Stream stream), (pointer, stream),
                       timed_call(call_code::free, own_default(stream), true, 0, call))
STASHTRACE_CUDART_HOOK(cudaHostAlloc, (void** pointer, std::size_t bytes, unsigned flags), (pointer, bytes, flags),
                       timed_call(call_code::allocate_host, nullptr, false, bytes, call))
STASHTRACE_CUDART_HOOK(cudaMallocHost, (void** pointer, std::size_t bytes), (pointer, bytes),
                       timed_call(call_code::allocate_host, nullptr, false, bytes, call))
STASHTRACE_CUDART_HOOK(cudaHostRegister, (void* pointer, std::size_t bytes, unsigned flags), (pointer, bytes, flags),
                       timed_call(call_code::allocate_host, nullptr, false, bytes, call))
STASHTRACE_CUDART_HOOK(cudaHostUnregister, (void* pointer), (pointer),
                       timed_call(call_code::free, nullptr, false, 0, call))
STASHTRACE_CUDART_HOOK(cudaFreeHost, (void* pointer), (pointer), timed_call(call_code::free, nullptr, false, 0, call))

STASHTRACE_CUDART_HOOK(cudaLaunchKernel,
                       (const void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes,
                        Stream stream),
                       (kernel, grid, block, arguments, shared_bytes, stream), launching(stream, call))
STASHTRACE_CUDART_HOOK(cudaLaunchKernel_ptsz,
                       (const void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes,
                        Stream stream),
                       (kernel, grid, block, arguments, shared_bytes, stream), launching(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaLaunchCooperativeKernel,
                       (const void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes,
                        Stream stream),
                       (kernel, grid, block, arguments, shared_bytes, stream), launching(stream, call))
STASHTRACE_CUDART_HOOK(cudaLaunchCooperativeKernel_ptsz,
                       (const void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes,
                        Stream stream),
                       (kernel, grid, block, arguments, shared_bytes, stream), launching(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaLaunchKernelExC, (const LaunchConfig* config, const void* kernel, void** arguments),
                       (config, kernel, arguments), launching_config(config, false, call))
STASHTRACE_CUDART_HOOK(cudaLaunchKernelExC_ptsz, (const LaunchConfig* config, const void* kernel, void** arguments),
                       (config, kernel, arguments), launching_config(config, true, call))
STASHTRACE_CUDART_HOOK(__cudaLaunchKernel,
                       (void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes, Stream stream),
                       (kernel, grid, block, arguments, shared_bytes, stream), launching(stream, call))
STASHTRACE_CUDART_HOOK(__cudaLaunchKernel_ptsz,
                       (void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes, Stream stream),
                       (kernel, grid, block, arguments, shared_bytes, stream), launching(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaGraphLaunch, (GraphExec graph, Stream stream), (graph, stream),
                       launching_graph(graph, stream, call))
STASHTRACE_CUDART_HOOK(cudaGraphLaunch_ptsz, (GraphExec graph, Stream stream), (graph, stream),
                       launching_graph(graph, own_default(stream), call))

STASHTRACE_CUDART_HOOK(cudaLaunchHostFunc, (Stream stream, HostFunction function, void* data), (stream, function, data),
                       enqueuing_host_function(stream, call))
STASHTRACE_CUDART_HOOK(cudaLaunchHostFunc_ptsz, (Stream stream, HostFunction function, void* data),
                       (stream, function, data), enqueuing_host_function(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaLaunchHostFunc_v2, (Stream stream, HostFunction function, void* data, unsigned how),
                       (stream, function, data, how), enqueuing_host_function(stream, call))
STASHTRACE_CUDART_HOOK(cudaLaunchHostFunc_v2_ptsz, (Stream stream, HostFunction function, void* data, unsigned how),
                       (stream, function, data, how), enqueuing_host_function(own_default(stream), call))
STASHTRACE_CUDART_HOOK(cudaStreamAddCallback, (Stream stream, StreamCallback function, void* data, unsigned flags),
                       (stream, function, data, flags), enqueuing_host_function(stream, call))
STASHTRACE_CUDART_HOOK(cudaStreamAddCallback_ptsz, (Stream stream, StreamCallback function, void* data, unsigned flags),
                       (stream, function, data, flags), enqueuing_host_function(own_default(stream), call))

STASHTRACE_CUDART_HOOK(cudaGetDriverEntryPoint,
                       (const char* symbol, void** function, unsigned long long flags, int* found),
                       (symbol, function, flags, found), looking_up(symbol, function, version_of(runtime), flags, call))
STASHTRACE_CUDART_HOOK(cudaGetDriverEntryPoint_ptsz,
                       (const char* symbol, void** function, unsigned long long flags, int* found),
                       (symbol, function, flags, found),
                       looking_up(symbol, function, version_of(runtime), own_flags(flags), call))
STASHTRACE_CUDART_HOOK(cudaGetDriverEntryPointByVersion,
                       (const char* symbol, void** function, unsigned version, unsigned long long flags, int* found),
                       (symbol, function, version, flags, found),
                       looking_up(symbol, function, static_cast<int>(version), flags, call))
STASHTRACE_CUDART_HOOK(cudaGetDriverEntryPointByVersion_ptsz,
                       (const char* symbol, void** function, unsigned version, unsigned long long flags, int* found),
                       (symbol, function, version, flags, found),
                       looking_up(symbol, function, static_cast<int>(version), own_flags(flags), call))
