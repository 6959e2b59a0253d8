// Hooks of libcudart's calls. SPDX-License-Identifier: Apache-2.0
//
// Called in place of libcudart by everything that links it dynamically (torch, libtorch's users); a static
// runtime never comes here. Thin: calls.h says what is recorded.
#include "collectors/cuda/calls.h"
#include "hooks/interpose.h"

using namespace stashtrace::cuda;

STASHTRACE_HOOK(Result, cudaMemcpy, void* to, const void* from, std::size_t bytes, int kind) {
  return copying({to, from, bytes, kind, nullptr, true, false}, [=] { return rt::cudaMemcpy(to, from, bytes, kind); });
}
STASHTRACE_HOOK(Result, cudaMemcpy_ptds, void* to, const void* from, std::size_t bytes, int kind) {
  return copying({to, from, bytes, kind, own_default(nullptr), true, false},
                 [=] { return rt::cudaMemcpy_ptds(to, from, bytes, kind); });
}
STASHTRACE_HOOK(Result, cudaMemcpyAsync, void* to, const void* from, std::size_t bytes, int kind, Stream stream) {
  return copying({to, from, bytes, kind, stream, false, false},
                 [=] { return rt::cudaMemcpyAsync(to, from, bytes, kind, stream); });
}
STASHTRACE_HOOK(Result, cudaMemcpyAsync_ptsz, void* to, const void* from, std::size_t bytes, int kind, Stream stream) {
  return copying({to, from, bytes, kind, own_default(stream), false, false},
                 [=] { return rt::cudaMemcpyAsync_ptsz(to, from, bytes, kind, stream); });
}
STASHTRACE_HOOK(Result, cudaMemcpy2DAsync, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                std::size_t width, std::size_t height, int kind, Stream stream) {
  return copying({to, from, width * height, kind, stream, false, false}, [=] {
    return rt::cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream);
  });
}
STASHTRACE_HOOK(Result, cudaMemcpy2DAsync_ptsz, void* to, std::size_t to_pitch, const void* from,
                std::size_t from_pitch, std::size_t width, std::size_t height, int kind, Stream stream) {
  return copying({to, from, width * height, kind, own_default(stream), false, false}, [=] {
    return rt::cudaMemcpy2DAsync_ptsz(to, to_pitch, from, from_pitch, width, height, kind, stream);
  });
}
STASHTRACE_HOOK(Result, cudaMemcpyPeerAsync, void* to, int to_device, const void* from, int from_device,
                std::size_t bytes, Stream stream) {
  return copying({to, from, bytes, kDeviceToDevice, stream, false, to_device != from_device},
                 [=] { return rt::cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaMemsetAsync, void* to, int value, std::size_t bytes, Stream stream) {
  return launching(stream, [=] { return rt::cudaMemsetAsync(to, value, bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaMemsetAsync_ptsz, void* to, int value, std::size_t bytes, Stream stream) {
  return launching(own_default(stream), [=] { return rt::cudaMemsetAsync_ptsz(to, value, bytes, stream); });
}

STASHTRACE_HOOK(Result, cudaStreamWaitEvent, Stream stream, Event event, unsigned flags) {
  return waiting_for(stream, event, [=] { return rt::cudaStreamWaitEvent(stream, event, flags); });
}
STASHTRACE_HOOK(Result, cudaStreamWaitEvent_ptsz, Stream stream, Event event, unsigned flags) {
  return waiting_for(own_default(stream), event, [=] { return rt::cudaStreamWaitEvent_ptsz(stream, event, flags); });
}
STASHTRACE_HOOK(Result, cudaEventRecord, Event event, Stream stream) {
  return recording_event(event, stream, 0, [=] { return rt::cudaEventRecord(event, stream); });
}
STASHTRACE_HOOK(Result, cudaEventRecord_ptsz, Event event, Stream stream) {
  return recording_event(event, own_default(stream), 0, [=] { return rt::cudaEventRecord_ptsz(event, stream); });
}
STASHTRACE_HOOK(Result, cudaEventRecordWithFlags, Event event, Stream stream, unsigned flags) {
  return recording_event(event, stream, flags, [=] { return rt::cudaEventRecordWithFlags(event, stream, flags); });
}
STASHTRACE_HOOK(Result, cudaEventRecordWithFlags_ptsz, Event event, Stream stream, unsigned flags) {
  return recording_event(event, own_default(stream), flags,
                         [=] { return rt::cudaEventRecordWithFlags_ptsz(event, stream, flags); });
}
STASHTRACE_HOOK(Result, cudaEventDestroy, Event event) {
  if (watching()) stashtrace::device::note_event_gone(event);
  return rt::cudaEventDestroy(event);
}

namespace {

// Also outside the recorded steps: a stream made before them is used in them.
template <class Call>
Result creating_stream(Stream* stream, Call call) {
  const Result result = call();
  if (room_is_on && result == kSuccess && stream != nullptr && !stashtrace::device::Inside::already())
    stashtrace::device::note_stream_created(*stream);
  return result;
}

}  // namespace

STASHTRACE_HOOK(Result, cudaStreamCreate, Stream* stream) {
  return creating_stream(stream, [=] { return rt::cudaStreamCreate(stream); });
}
STASHTRACE_HOOK(Result, cudaStreamCreateWithFlags, Stream* stream, unsigned flags) {
  return creating_stream(stream, [=] { return rt::cudaStreamCreateWithFlags(stream, flags); });
}
STASHTRACE_HOOK(Result, cudaStreamCreateWithPriority, Stream* stream, unsigned flags, int priority) {
  return creating_stream(stream, [=] { return rt::cudaStreamCreateWithPriority(stream, flags, priority); });
}
STASHTRACE_HOOK(Result, cudaStreamDestroy, Stream stream) {
  if (room_is_on) stashtrace::device::note_stream_gone(stream);
  return rt::cudaStreamDestroy(stream);
}

STASHTRACE_HOOK(Result, cudaStreamSynchronize, Stream stream) {
  return timed_call(call_code::stream_synchronize, stream, true, 0, [=] { return rt::cudaStreamSynchronize(stream); });
}
STASHTRACE_HOOK(Result, cudaStreamSynchronize_ptsz, Stream stream) {
  return timed_call(call_code::stream_synchronize, own_default(stream), true, 0,
                    [=] { return rt::cudaStreamSynchronize_ptsz(stream); });
}
STASHTRACE_HOOK(Result, cudaDeviceSynchronize) {
  return timed_call(call_code::device_synchronize, nullptr, false, 0, [] { return rt::cudaDeviceSynchronize(); });
}
STASHTRACE_HOOK(Result, cudaEventSynchronize, Event event) {
  return timed_call(call_code::event_synchronize, nullptr, false, 0, [=] { return rt::cudaEventSynchronize(event); });
}

STASHTRACE_HOOK(Result, cudaMalloc, void** pointer, std::size_t bytes) {
  return allocating(nullptr, false, bytes, [=] { return rt::cudaMalloc(pointer, bytes); });
}
STASHTRACE_HOOK(Result, cudaFree, void* pointer) {
  return timed_call(call_code::free, nullptr, false, 0, [=] { return rt::cudaFree(pointer); });
}
STASHTRACE_HOOK(Result, cudaMallocAsync, void** pointer, std::size_t bytes, Stream stream) {
  return allocating(stream, true, bytes, [=] { return rt::cudaMallocAsync(pointer, bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaMallocAsync_ptsz, void** pointer, std::size_t bytes, Stream stream) {
  return allocating(own_default(stream), true, bytes, [=] { return rt::cudaMallocAsync_ptsz(pointer, bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaFreeAsync, void* pointer, Stream stream) {
  return timed_call(call_code::free, stream, true, 0, [=] { return rt::cudaFreeAsync(pointer, stream); });
}
STASHTRACE_HOOK(Result, cudaFreeAsync_ptsz, void* pointer, Stream stream) {
  return timed_call(call_code::free, own_default(stream), true, 0,
                    [=] { return rt::cudaFreeAsync_ptsz(pointer, stream); });
}
STASHTRACE_HOOK(Result, cudaHostAlloc, void** pointer, std::size_t bytes, unsigned flags) {
  return timed_call(call_code::allocate_host, nullptr, false, bytes,
                    [=] { return rt::cudaHostAlloc(pointer, bytes, flags); });
}
STASHTRACE_HOOK(Result, cudaMallocHost, void** pointer, std::size_t bytes) {
  return timed_call(call_code::allocate_host, nullptr, false, bytes, [=] { return rt::cudaMallocHost(pointer, bytes); });
}
STASHTRACE_HOOK(Result, cudaHostRegister, void* pointer, std::size_t bytes, unsigned flags) {
  return timed_call(call_code::allocate_host, nullptr, false, bytes,
                    [=] { return rt::cudaHostRegister(pointer, bytes, flags); });
}
STASHTRACE_HOOK(Result, cudaFreeHost, void* pointer) {
  return timed_call(call_code::free, nullptr, false, 0, [=] { return rt::cudaFreeHost(pointer); });
}

STASHTRACE_HOOK(Result, cudaLaunchKernel, const void* kernel, Dim3 grid, Dim3 block, void** arguments,
                std::size_t shared_bytes, Stream stream) {
  return launching(stream, [=] { return rt::cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaLaunchKernel_ptsz, const void* kernel, Dim3 grid, Dim3 block, void** arguments,
                std::size_t shared_bytes, Stream stream) {
  return launching(own_default(stream),
                   [=] { return rt::cudaLaunchKernel_ptsz(kernel, grid, block, arguments, shared_bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaLaunchKernelExC, const LaunchConfig* config, const void* kernel, void** arguments) {
  if (config == nullptr) return rt::cudaLaunchKernelExC(config, kernel, arguments);
  return launching(config->stream, [=] { return rt::cudaLaunchKernelExC(config, kernel, arguments); });
}
STASHTRACE_HOOK(Result, cudaLaunchKernelExC_ptsz, const LaunchConfig* config, const void* kernel, void** arguments) {
  if (config == nullptr) return rt::cudaLaunchKernelExC_ptsz(config, kernel, arguments);
  return launching(own_default(config->stream),
                   [=] { return rt::cudaLaunchKernelExC_ptsz(config, kernel, arguments); });
}
STASHTRACE_HOOK(Result, __cudaLaunchKernel, void* kernel, Dim3 grid, Dim3 block, void** arguments,
                std::size_t shared_bytes, Stream stream) {
  return launching(stream, [=] { return rt::__cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream); });
}
STASHTRACE_HOOK(Result, __cudaLaunchKernel_ptsz, void* kernel, Dim3 grid, Dim3 block, void** arguments,
                std::size_t shared_bytes, Stream stream) {
  return launching(own_default(stream),
                   [=] { return rt::__cudaLaunchKernel_ptsz(kernel, grid, block, arguments, shared_bytes, stream); });
}
STASHTRACE_HOOK(Result, cudaGraphLaunch, GraphExec graph, Stream stream) {
  return launching_graph(graph, stream, [=] { return rt::cudaGraphLaunch(graph, stream); });
}
STASHTRACE_HOOK(Result, cudaGraphLaunch_ptsz, GraphExec graph, Stream stream) {
  return launching_graph(graph, own_default(stream), [=] { return rt::cudaGraphLaunch_ptsz(graph, stream); });
}
