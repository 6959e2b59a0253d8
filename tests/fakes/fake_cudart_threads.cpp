// The runtime's entry points for code that was compiled for per-thread default streams. SPDX-License-Identifier: Apache-2.0
//
// As in the real library, stream 0 means the calling thread's own stream here. Those that take a stream and are hooked.
#include <cstddef>

#include "script.h"

extern "C" {
int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*);
int cudaEventRecord(void*, void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaStreamSynchronize(void*);
int cudaLaunchHostFunc(void*, void (*)(void*), void*);
}

namespace {
void* own(void* stream) { return stream == nullptr ? reinterpret_cast<void*>(2) : stream; }
}  // namespace

FAKE_API int cudaMemcpyAsync_ptsz(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, own(stream));
}
FAKE_API int cudaEventRecord_ptsz(void* event, void* stream) { return cudaEventRecord(event, own(stream)); }
FAKE_API int cudaStreamWaitEvent_ptsz(void* stream, void* event, unsigned flags) {
  return cudaStreamWaitEvent(own(stream), event, flags);
}
FAKE_API int cudaStreamSynchronize_ptsz(void* stream) { return cudaStreamSynchronize(own(stream)); }
FAKE_API int cudaLaunchHostFunc_ptsz(void* stream, void (*function)(void*), void* data) {
  return cudaLaunchHostFunc(own(stream), function, data);
}
