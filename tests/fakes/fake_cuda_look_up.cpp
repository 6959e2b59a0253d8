// The look-up of entry points of the libcuda double, and those for per-thread default streams. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "abi/cuda_abi.h"
#include "cuda_objects.h"

using namespace fake;
using Address = unsigned long long;
using Rectangle = stashtrace::cuda::DriverRectangleCopy;
using Box = stashtrace::cuda::DriverBoxCopy;

namespace {

struct Form {
  const char* name;
  const char* suffix;
  int since;
};

constexpr Form kForms[] = {
#define FORM(name, suffix, since) {#name, #suffix, since},
#include "driver_forms.def"
#undef FORM
};

enum : int { kFound = 0, kNoSuchSymbol = 1, kVersionTooLow = 2 };
constexpr std::uint64_t kPerThread = 2;

void* own_symbol(const std::string& symbol) {
  static void* const own = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return dlsym(own, symbol.c_str());
}

void* own(void* stream) { return stream == nullptr ? reinterpret_cast<void*>(2) : stream; }

// With FAKE_LOOK_UPS=FILE each look-up is a line of it: name, CUDA version, flags.
void tell(const char* name, int version, std::uint64_t flags) {
  static std::FILE* const file = [] {
    const char* path = getenv("FAKE_LOOK_UPS");
    return path != nullptr ? std::fopen(path, "a") : nullptr;
  }();
  if (file == nullptr || *name == '\0') return;
  std::fprintf(file, "%s %d %llu\n", name, version, static_cast<unsigned long long>(flags));
  std::fflush(file);
}

}  // namespace

// As the driver answers: the form of the name that came last until the version asked for; of that the one for per-thread default
// streams where it is asked for and exists.
FAKE_API int cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t flags, int* found) {
  FAKE_CALL(cuGetProcAddress_v2);
  if (name == nullptr || function == nullptr) return kInvalidValue;
  tell(name, version, flags);
  *function = nullptr;
  const Form* form = nullptr;
  bool known = false;
  for (const Form& one : kForms) {
    if (std::strcmp(one.name, name) != 0) continue;
    known = true;
    if (one.since <= version && (form == nullptr || one.since > form->since)) form = &one;
  }
  if (form != nullptr) {
    const std::string symbol = std::string(form->name) + form->suffix;
    for (const char* suffix : {"_ptsz", "_ptds"})
      if ((flags & kPerThread) != 0 && version >= 7000 && *function == nullptr) *function = own_symbol(symbol + suffix);
    if (*function == nullptr) *function = own_symbol(symbol);
  }
  if (found != nullptr) *found = *function != nullptr ? kFound : known && form == nullptr ? kVersionTooLow : kNoSuchSymbol;
  return *function == nullptr ? kNotFound : kSuccess;
}

FAKE_API int cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  FAKE_CALL(cuGetProcAddress);
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// --- stream 0 is the calling thread's own ---

#define PER_THREAD(NAME, PARAMETERS, OTHER, PASSED)    \
  extern "C" int OTHER PARAMETERS;                     \
  FAKE_API int NAME PARAMETERS { return OTHER PASSED; }

PER_THREAD(cuEventRecord_ptsz, (void* event, void* stream), cuEventRecord, (event, own(stream)))
PER_THREAD(cuEventRecordWithFlags_ptsz, (void* event, void* stream, unsigned flags), cuEventRecordWithFlags,
           (event, own(stream), flags))
PER_THREAD(cuGraphLaunch_ptsz, (void* exec, void* stream), cuGraphLaunch, (exec, own(stream)))
PER_THREAD(cuLaunchHostFunc_ptsz, (void* stream, void (*function)(void*), void* data), cuLaunchHostFunc,
           (own(stream), function, data))
PER_THREAD(cuLaunchHostFunc_v2_ptsz, (void* stream, void (*function)(void*), void* data, unsigned how), cuLaunchHostFunc_v2,
           (own(stream), function, data, how))
PER_THREAD(cuLaunchCooperativeKernel_ptsz, (void* function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                                            unsigned shared, void* stream, void** arguments),
           cuLaunchCooperativeKernel, (function, a, b, c, d, e, f, shared, own(stream), arguments))
PER_THREAD(cuLaunchKernel_ptsz, (void* function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                                 unsigned shared, void* stream, void** arguments, void** extra),
           cuLaunchKernel, (function, a, b, c, d, e, f, shared, own(stream), arguments, extra))
PER_THREAD(cuMemAllocAsync_ptsz, (Address* pointer, std::size_t bytes, void* stream), cuMemAllocAsync,
           (pointer, bytes, own(stream)))
PER_THREAD(cuMemFreeAsync_ptsz, (Address pointer, void* stream), cuMemFreeAsync, (pointer, own(stream)))
PER_THREAD(cuMemcpyAsync_ptsz, (Address to, Address from, std::size_t bytes, void* stream), cuMemcpyAsync,
           (to, from, bytes, own(stream)))
PER_THREAD(cuMemcpyPeerAsync_ptsz, (Address to, void* a, Address from, void* b, std::size_t bytes, void* stream),
           cuMemcpyPeerAsync, (to, a, from, b, bytes, own(stream)))
PER_THREAD(cuMemcpy2DAsync_v2_ptsz, (const Rectangle* told, void* stream), cuMemcpy2DAsync_v2, (told, own(stream)))
PER_THREAD(cuMemcpy3DAsync_v2_ptsz, (const Box* told, void* stream), cuMemcpy3DAsync_v2, (told, own(stream)))
PER_THREAD(cuMemcpy3DPeerAsync_ptsz, (const Box* told, void* stream), cuMemcpy3DPeerAsync, (told, own(stream)))
PER_THREAD(cuMemcpyHtoDAsync_v2_ptsz, (Address to, const void* from, std::size_t bytes, void* stream), cuMemcpyHtoDAsync_v2,
           (to, from, bytes, own(stream)))
PER_THREAD(cuMemcpyDtoHAsync_v2_ptsz, (void* to, Address from, std::size_t bytes, void* stream), cuMemcpyDtoHAsync_v2,
           (to, from, bytes, own(stream)))
PER_THREAD(cuMemcpyDtoDAsync_v2_ptsz, (Address to, Address from, std::size_t bytes, void* stream), cuMemcpyDtoDAsync_v2,
           (to, from, bytes, own(stream)))
PER_THREAD(cuMemsetD8Async_ptsz, (Address to, unsigned char value, std::size_t bytes, void* stream), cuMemsetD8Async,
           (to, value, bytes, own(stream)))
PER_THREAD(cuMemsetD2D8Async_ptsz,
           (Address to, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height, void* stream),
           cuMemsetD2D8Async, (to, pitch, value, width, height, own(stream)))
PER_THREAD(cuMemsetD32Async_ptsz, (Address to, unsigned value, std::size_t count, void* stream), cuMemsetD32Async,
           (to, value, count, own(stream)))
PER_THREAD(cuStreamAddCallback_ptsz, (void* stream, void (*function)(void*, int, void*), void* data, unsigned flags),
           cuStreamAddCallback, (own(stream), function, data, flags))
PER_THREAD(cuStreamBeginCapture_v2_ptsz, (void* stream, int mode), cuStreamBeginCapture_v2, (own(stream), mode))
PER_THREAD(cuStreamEndCapture_ptsz, (void* stream, void** graph), cuStreamEndCapture, (own(stream), graph))
PER_THREAD(cuStreamGetDevice_ptsz, (void* stream, int* device), cuStreamGetDevice, (own(stream), device))
PER_THREAD(cuStreamGetFlags_ptsz, (void* stream, unsigned* flags), cuStreamGetFlags, (own(stream), flags))
PER_THREAD(cuStreamGetId_ptsz, (void* stream, unsigned long long* id), cuStreamGetId, (own(stream), id))
PER_THREAD(cuStreamGetPriority_ptsz, (void* stream, int* priority), cuStreamGetPriority, (own(stream), priority))
PER_THREAD(cuStreamIsCapturing_ptsz, (void* stream, int* status), cuStreamIsCapturing, (own(stream), status))
PER_THREAD(cuStreamQuery_ptsz, (void* stream), cuStreamQuery, (own(stream)))
PER_THREAD(cuStreamSynchronize_ptsz, (void* stream), cuStreamSynchronize, (own(stream)))
PER_THREAD(cuStreamWaitEvent_ptsz, (void* stream, void* event, unsigned flags), cuStreamWaitEvent, (own(stream), event, flags))

// Between devices a copy without a stream does not wait either.
FAKE_API int cuMemcpyPeer_ptds(Address to, void* a, Address from, void* b, std::size_t bytes) {
  return cuMemcpyPeerAsync(to, a, from, b, bytes, own(nullptr));
}
FAKE_API int cuMemcpy3DPeer_ptds(const Box* told) { return cuMemcpy3DPeerAsync(told, own(nullptr)); }

// A blocking copy or memset is one on the thread's stream that is waited for.
#define PER_THREAD_BLOCKING(NAME, PARAMETERS, OTHER, PASSED)              \
  FAKE_API int NAME PARAMETERS {                                          \
    if (const int error = OTHER PASSED; error != kSuccess) return error;  \
    return cuStreamSynchronize(own(nullptr));                             \
  }

PER_THREAD_BLOCKING(cuMemcpy_ptds, (Address to, Address from, std::size_t bytes), cuMemcpyAsync, (to, from, bytes, own(nullptr)))
PER_THREAD_BLOCKING(cuMemcpyHtoD_v2_ptds, (Address to, const void* from, std::size_t bytes), cuMemcpyHtoDAsync_v2,
                    (to, from, bytes, own(nullptr)))
PER_THREAD_BLOCKING(cuMemcpyDtoH_v2_ptds, (void* to, Address from, std::size_t bytes), cuMemcpyDtoHAsync_v2,
                    (to, from, bytes, own(nullptr)))
PER_THREAD_BLOCKING(cuMemcpyDtoD_v2_ptds, (Address to, Address from, std::size_t bytes), cuMemcpyDtoDAsync_v2,
                    (to, from, bytes, own(nullptr)))
PER_THREAD_BLOCKING(cuMemsetD8_v2_ptds, (Address to, unsigned char value, std::size_t bytes), cuMemsetD8Async,
                    (to, value, bytes, own(nullptr)))
PER_THREAD_BLOCKING(cuMemsetD32_v2_ptds, (Address to, unsigned value, std::size_t count), cuMemsetD32Async,
                    (to, value, count, own(nullptr)))
PER_THREAD_BLOCKING(cuMemsetD2D8_v2_ptds,
                    (Address to, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height),
                    cuMemsetD2D8Async, (to, pitch, value, width, height, own(nullptr)))
PER_THREAD_BLOCKING(cuMemcpy2D_v2_ptds, (const Rectangle* told), cuMemcpy2DAsync_v2, (told, own(nullptr)))
PER_THREAD_BLOCKING(cuMemcpy2DUnaligned_v2_ptds, (const Rectangle* told), cuMemcpy2DAsync_v2, (told, own(nullptr)))
PER_THREAD_BLOCKING(cuMemcpy3D_v2_ptds, (const Box* told), cuMemcpy3DAsync_v2, (told, own(nullptr)))
