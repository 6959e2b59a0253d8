// libcudart as a double: what programs call, handed on to the driver as the real runtime does. SPDX-License-Identifier: Apache-2.0
//
// Built twice, with the SONAME and symbol version of CUDA 13 and of CUDA 12 (FAKE_CUDART_MAJOR); where a signature differs
// between the two, it follows that number. The primary context is retained at the first call that needs one.
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "cudart_driver.h"
#include "script.h"

#define FAKE_TEXT_OF(x) #x
#define FAKE_TEXT(x) FAKE_TEXT_OF(x)
FAKE_COUNTS_AT_EXIT("cudart_" FAKE_TEXT(FAKE_CUDART_MAJOR))

using fake::driver;

namespace {

enum : int { kSuccess = 0, kInvalidValue = 1, kInsufficientDriver = 35, kInvalidDeviceFunction = 98, kNoDevice = 100, kNotReady = 600 };
constexpr int kVersion = FAKE_CUDART_MAJOR * 1000;

thread_local int t_device = 0;
thread_local int t_error = kSuccess;

// Keeps the error as cudaGetLastError tells it; "not ready" is none.
int kept(int error) {
  if (error != kSuccess && error != kNotReady) t_error = error;
  return error;
}

int driver_ready() {
  if (!driver().complete) return kInsufficientDriver;
  static const int initialized = driver().cuInit(0);
  return initialized;
}

std::mutex contexts_mutex;
std::map<int, void*>& contexts() {
  static auto& retained = *new std::map<int, void*>();
  return retained;
}

int context_of(int device, void** context) {
  const std::lock_guard lock(contexts_mutex);
  void*& retained = contexts()[device];
  if (retained == nullptr) {
    if (const int error = driver().cuDevicePrimaryCtxRetain(&retained, device); error != kSuccess) return error;
  }
  *context = retained;
  return kSuccess;
}

// A context is current on this thread, that of the device it chose.
int ready() {
  if (const int error = driver_ready(); error != kSuccess) return error;
  void* current = nullptr;
  if (const int error = driver().cuCtxGetCurrent(&current); error != kSuccess) return error;
  if (current != nullptr) return kSuccess;
  if (const int error = context_of(t_device, &current); error != kSuccess) return error;
  return driver().cuCtxSetCurrent(current);
}

// cuda_runtime_api.h 13.5, 14174 and 14970: an opaque handle, which nothing makes one of the driver's.
struct Execution {
  void* green = nullptr;
};

}  // namespace

int fake_runtime_ready() { return ready(); }
int fake_runtime_kept(int error) { return kept(error); }
int fake_runtime_context(int device, void** context) { return context_of(device, context); }

// A call that needs a context and hands its arguments on.
#define RUNTIME_CALL(NAME, PARAMETERS, ...)                        \
  FAKE_API int NAME PARAMETERS {                                   \
    FAKE_CALL(NAME);                                               \
    if (const int error = ready(); error != 0) return kept(error); \
    return kept(__VA_ARGS__);                                      \
  }

FAKE_API int cudaDriverGetVersion(int* version) {
  FAKE_CALL(cudaDriverGetVersion);
  *version = 0;
  return driver().complete ? driver().cuDriverGetVersion(version) : kSuccess;
}

FAKE_API int cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

FAKE_API int cudaGetLastError() {
  const int error = t_error;
  t_error = kSuccess;
  return error;
}

FAKE_API int cudaPeekAtLastError() { return t_error; }

FAKE_API const char* cudaGetErrorString(int error) { return error == 0 ? "no error" : "an error of the double"; }
FAKE_API const char* cudaGetErrorName(int error) { return error == 0 ? "cudaSuccess" : "cudaErrorOfTheDouble"; }

FAKE_API int cudaGetDeviceCount(int* count) {
  FAKE_CALL(cudaGetDeviceCount);
  *count = 0;
  if (const int error = driver_ready(); error != kSuccess) return kept(error);
  return kept(driver().cuDeviceGetCount(count));
}

FAKE_API int cudaGetDevice(int* device) {
  FAKE_CALL(cudaGetDevice);
  *device = t_device;
  return kept(driver_ready());
}

FAKE_API int cudaSetDevice(int device) {
  FAKE_CALL(cudaSetDevice);
  if (const int error = driver_ready(); error != kSuccess) return kept(error);
  t_device = device;
  driver().cuCtxSetCurrent(nullptr);
  return kept(ready());
}

FAKE_API int cudaDeviceReset() {
  FAKE_CALL(cudaDeviceReset);
  if (const int error = driver_ready(); error != kSuccess) return kept(error);
  driver().cuCtxSetCurrent(nullptr);
  const std::lock_guard lock(contexts_mutex);
  contexts().erase(t_device);
  return kept(driver().cuDevicePrimaryCtxReset(t_device));
}

RUNTIME_CALL(cudaDeviceSynchronize, (), driver().cuCtxSynchronize())
RUNTIME_CALL(cudaDeviceGetAttribute, (int* value, int attribute, int device),
             driver().cuDeviceGetAttribute(value, attribute, device))
RUNTIME_CALL(cudaDeviceGetPCIBusId, (char* text, int bytes, int device), driver().cuDeviceGetPCIBusId(text, bytes, device))
RUNTIME_CALL(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest),
             driver().cuCtxGetStreamPriorityRange(least, greatest))
RUNTIME_CALL(cudaMemGetInfo, (std::size_t* free_bytes, std::size_t* total_bytes),
             driver().cuMemGetInfo(free_bytes, total_bytes))

RUNTIME_CALL(cudaStreamCreate, (void** stream), driver().cuStreamCreateWithPriority(stream, 0, 0))
RUNTIME_CALL(cudaStreamCreateWithFlags, (void** stream, unsigned flags),
             driver().cuStreamCreateWithPriority(stream, flags, 0))
RUNTIME_CALL(cudaStreamCreateWithPriority, (void** stream, unsigned flags, int priority),
             driver().cuStreamCreateWithPriority(stream, flags, priority))
#if FAKE_CUDART_MAJOR >= 13
RUNTIME_CALL(cudaExecutionCtxStreamCreate, (void** stream, void* context, unsigned flags, int priority),
             context == nullptr ? kInvalidValue
                                : driver().cuGreenCtxStreamCreate(stream, static_cast<Execution*>(context)->green, flags, priority))
RUNTIME_CALL(cudaExecutionCtxDestroy, (void* context),
             context == nullptr ? kInvalidValue : driver().cuGreenCtxDestroy(static_cast<Execution*>(context)->green))
RUNTIME_CALL(cudaDevResourceGenerateDesc, (void** description, void* resources, unsigned count),
             driver().cuDevResourceGenerateDesc(description, resources, count))
RUNTIME_CALL(cudaGreenCtxCreate, (void** context, void* description, int device, unsigned flags),
             [=, made = new Execution()] {
               *context = made;
               return driver().cuGreenCtxCreate(&made->green, description, device, flags);
             }())
#endif
RUNTIME_CALL(cudaStreamDestroy, (void* stream), driver().cuStreamDestroy(stream))
RUNTIME_CALL(cudaStreamQuery, (void* stream), driver().cuStreamQuery(stream))
RUNTIME_CALL(cudaStreamSynchronize, (void* stream), driver().cuStreamSynchronize(stream))
RUNTIME_CALL(cudaStreamWaitEvent, (void* stream, void* event, unsigned flags),
             driver().cuStreamWaitEvent(stream, event, flags))
RUNTIME_CALL(cudaStreamGetPriority, (void* stream, int* priority), driver().cuStreamGetPriority(stream, priority))
RUNTIME_CALL(cudaStreamGetFlags, (void* stream, unsigned* flags), driver().cuStreamGetFlags(stream, flags))
RUNTIME_CALL(cudaStreamGetId, (void* stream, unsigned long long* id), driver().cuStreamGetId(stream, id))
RUNTIME_CALL(cudaStreamBeginCapture, (void* stream, int mode), driver().cuStreamBeginCapture(stream, mode))
RUNTIME_CALL(cudaStreamEndCapture, (void* stream, void** graph), driver().cuStreamEndCapture(stream, graph))
RUNTIME_CALL(cudaStreamIsCapturing, (void* stream, int* status), driver().cuStreamIsCapturing(stream, status))
RUNTIME_CALL(cudaThreadExchangeStreamCaptureMode, (int* mode), driver().cuThreadExchangeStreamCaptureMode(mode))
RUNTIME_CALL(cudaStreamAddCallback, (void* stream, void (*function)(void*, int, void*), void* data, unsigned flags),
             driver().cuStreamAddCallback(stream, function, data, flags))
RUNTIME_CALL(cudaLaunchHostFunc, (void* stream, void (*function)(void*), void* data),
             driver().cuLaunchHostFunc(stream, function, data))
#if FAKE_CUDART_MAJOR >= 13
RUNTIME_CALL(cudaLaunchHostFunc_v2, (void* stream, void (*function)(void*), void* data, unsigned how),
             how > 1 ? kInvalidValue : driver().cuLaunchHostFunc(stream, function, data))
#endif

RUNTIME_CALL(cudaEventCreate, (void** event), driver().cuEventCreate(event, 0))
RUNTIME_CALL(cudaEventCreateWithFlags, (void** event, unsigned flags), driver().cuEventCreate(event, flags))
RUNTIME_CALL(cudaEventDestroy, (void* event), driver().cuEventDestroy(event))
RUNTIME_CALL(cudaEventRecord, (void* event, void* stream), driver().cuEventRecord(event, stream))
RUNTIME_CALL(cudaEventRecordWithFlags, (void* event, void* stream, unsigned flags),
             driver().cuEventRecordWithFlags(event, stream, flags))
RUNTIME_CALL(cudaEventQuery, (void* event), driver().cuEventQuery(event))
RUNTIME_CALL(cudaEventSynchronize, (void* event), driver().cuEventSynchronize(event))
RUNTIME_CALL(cudaEventElapsedTime, (float* milliseconds, void* first, void* second),
             driver().cuEventElapsedTime(milliseconds, first, second))

RUNTIME_CALL(cudaGraphInstantiateWithFlags, (void** exec, void* graph, unsigned long long flags),
             driver().cuGraphInstantiateWithFlags(exec, graph, flags))
RUNTIME_CALL(cudaGraphInstantiate, (void** exec, void* graph, unsigned long long flags),
             driver().cuGraphInstantiateWithFlags(exec, graph, flags))
RUNTIME_CALL(cudaGraphLaunch, (void* exec, void* stream), driver().cuGraphLaunch(exec, stream))
RUNTIME_CALL(cudaGraphGetNodes, (void* graph, void** nodes, std::size_t* count),
             driver().cuGraphGetNodes(graph, nodes, count))
RUNTIME_CALL(cudaGraphDestroy, (void* graph), driver().cuGraphDestroy(graph))
RUNTIME_CALL(cudaGraphExecDestroy, (void* exec), driver().cuGraphExecDestroy(exec))

// --- kernels: `function` is the address of a host stub, as the compiler makes it; its name is asked of the loader ---

namespace {

struct Dim3 {
  unsigned x, y, z;
};

struct LaunchConfig {  // cudaLaunchConfig_t
  Dim3 grid, block;
  std::size_t shared_bytes;
  void* stream;
  void* attributes;
  unsigned attributes_count;
};

// Host stubs that programs registered, as the compiler's code does before main. Programs of the tests that register none
// may launch any.
std::mutex registered_mutex;
std::set<const void*>& registered() {
  static auto& stubs = *new std::set<const void*>();
  return stubs;
}

bool is_known(const void* function) {
  const std::lock_guard lock(registered_mutex);
  return registered().empty() || registered().contains(function);
}

int launch(const void* function, void** arguments, void* stream, bool cooperative = false) {
  if (const int error = ready(); error != kSuccess) return kept(error);
  if (!is_known(function)) return kept(kInvalidDeviceFunction);
  static std::mutex mutex;
  static auto& kernels = *new std::map<const void*, void*>();
  void* kernel = nullptr;
  {
    const std::lock_guard lock(mutex);
    void*& known = kernels[function];
    if (known == nullptr) {
      Dl_info info = {};
      const bool named = dladdr(function, &info) != 0 && info.dli_sname != nullptr;
      const std::string name = named ? info.dli_sname : "kernel";
      void* module = nullptr;
      int mode = 2;  // loaded at first use, also during capture
      driver().cuThreadExchangeStreamCaptureMode(&mode);
      int error = driver().cuModuleLoadData(&module, (".entry " + name).c_str());
      if (error == 0) error = driver().cuModuleGetFunction(&known, module, name.c_str());
      driver().cuThreadExchangeStreamCaptureMode(&mode);
      if (error != 0) return kept(error);
    }
    kernel = known;
  }
  if (cooperative) return kept(driver().cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments));
  return kept(driver().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace

FAKE_API void __cudaRegisterFunction(void**, const char* stub, char*, const char*, int, void*, void*, void*, void*, int*) {
  const std::lock_guard lock(registered_mutex);
  registered().insert(stub);
}

FAKE_API int cudaLaunchKernel(const void* function, Dim3, Dim3, void** arguments, std::size_t, void* stream) {
  FAKE_CALL(cudaLaunchKernel);
  return launch(function, arguments, stream);
}

FAKE_API int cudaLaunchCooperativeKernel(const void* function, Dim3, Dim3, void** arguments, std::size_t, void* stream) {
  FAKE_CALL(cudaLaunchCooperativeKernel);
  return launch(function, arguments, stream, true);
}

FAKE_API int __cudaLaunchKernel(const void* function, Dim3, Dim3, void** arguments, std::size_t, void* stream) {
  FAKE_CALL(__cudaLaunchKernel);
  return launch(function, arguments, stream);
}

FAKE_API int cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void** arguments) {
  FAKE_CALL(cudaLaunchKernelExC);
  return launch(function, arguments, config->stream);
}

// cuda_runtime_api.h 13.5, 13626: a function that is not there is told by `found`, the call succeeds nevertheless. Code for
// per-thread default streams calls the forms with _ptsz (242), whose default are that thread's.
static int entry_point(const char* name, void** function, unsigned version, unsigned long long flags, int* found) {
  if (const int error = driver_ready(); error != kSuccess) return kept(error);
  int missing = 0;
  driver().look_up(name, function, static_cast<int>(version), flags, &missing);
  if (found != nullptr) *found = missing;
  return kSuccess;
}
#define ENTRY_POINT(NAME, VERSION, FLAGS, ...)                                                          \
  FAKE_API int NAME(const char* name, void** function, __VA_ARGS__ unsigned long long flags, int* found) { \
    FAKE_CALL(NAME);                                                                                    \
    return entry_point(name, function, VERSION, FLAGS, found);                                          \
  }
ENTRY_POINT(cudaGetDriverEntryPoint, kVersion, flags)
ENTRY_POINT(cudaGetDriverEntryPoint_ptsz, kVersion, flags == 0 ? 2 : flags)
ENTRY_POINT(cudaGetDriverEntryPointByVersion, version, flags, unsigned version, )
ENTRY_POINT(cudaGetDriverEntryPointByVersion_ptsz, version, flags == 0 ? 2 : flags, unsigned version, )
