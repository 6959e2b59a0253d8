// A program that works on a device, destroys the context by the call that its first argument names, and works on. SPDX-License-Identifier: Apache-2.0
//
// Linked against libcudart for its copies and against libcuda for its contexts; with a second argument "look-up" it asks a handle of libcuda for
// the destroying call. tests/collectors/test_context_ends.py.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "abi/cuda_abi.h"

using namespace stashtrace::cuda;

extern "C" {
Result cudaSetDevice(int);
Result cudaDeviceReset();
Result cudaMalloc(void**, std::size_t);
Result cudaHostAlloc(void**, std::size_t, unsigned);
Result cudaMemcpyAsync(void*, const void*, std::size_t, int, Stream);
Result cudaStreamCreateWithFlags(Stream*, unsigned);
Result cudaStreamSynchronize(Stream);
Result cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, Stream);
Result cuInit(unsigned);
Result cuCtxCreate_v2(Context*, unsigned, Device);
Result cuCtxSetCurrent(Context);
Result cuCtxDestroy(Context);
Result cuCtxDestroy_v2(Context);
Result cuDevResourceGenerateDesc(void**, void*, unsigned);
Result cuGreenCtxCreate(GreenContext*, void*, Device, unsigned);
Result cuGreenCtxDestroy(GreenContext);
Result cuCtxFromGreenCtx(Context*, GreenContext);
Result cuGreenCtxStreamCreate(Stream*, GreenContext, unsigned, int);
Result cudaDevResourceGenerateDesc(void**, void*, unsigned);
Result cudaGreenCtxCreate(ExecutionContext*, void*, int, unsigned);
Result cudaExecutionCtxDestroy(ExecutionContext);
Result cudaExecutionCtxStreamCreate(Stream*, ExecutionContext, unsigned, int);
Result cudaStreamDestroy(Stream);
Result cuDevicePrimaryCtxRetain(Context*, Device);
Result cuDevicePrimaryCtxRelease(Device);
Result cuDevicePrimaryCtxRelease_v2(Device);
Result cuDevicePrimaryCtxReset(Device);
Result cuDevicePrimaryCtxReset_v2(Device);
}

namespace {

constexpr std::size_t kBytes = 100'000;
constexpr int kDone = 3, kInFlight = 2;
constexpr std::uint32_t kBatchWait = 1;

bool by_look_up = false;
thread_local void *on_device = nullptr, *pinned = nullptr;

void must(Result result, const char* what) {
  if (result == kSuccess) return;
  printf("%s: %d\n", what, result);
  fflush(stdout);
  _exit(1);
}

template <class F>
F* destroyer(F* linked, const char* name) {
  if (!by_look_up) return linked;
  return reinterpret_cast<F*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}
#define DESTROYER(name) destroyer(&name, #name)

void kernel_stub() {}

void copy(Stream stream) { must(cudaMemcpyAsync(on_device, pinned, kBytes, kHostToDevice, stream), "copy"); }

// In the context that is current, with memory of its own: what was there before is gone with the one before.
Stream new_stream() {
  must(cudaMalloc(&on_device, kBytes), "memory");
  must(cudaHostAlloc(&pinned, kBytes, 0), "pinned memory");
  Stream stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, kStreamNonBlocking), "stream");
  return stream;
}

void copies_done(Stream stream) {
  for (int i = 0; i < kDone; ++i) copy(stream);
  must(cudaStreamSynchronize(stream), "synchronize");
}

void copies_in_flight(Stream stream) {
  std::uint64_t ns = 60'000'000'000;
  void* arguments[] = {&ns};
  must(cudaLaunchKernel(reinterpret_cast<const void*>(&kernel_stub), {1, 1, 1}, {1, 1, 1}, arguments, 0, stream), "kernel");
  for (int i = 0; i < kInFlight; ++i) copy(stream);
}

Context make(const std::string& how) {
  Context context = nullptr;
  if (how.starts_with("cudaDeviceReset")) return nullptr;
  if (how.starts_with("cuCtxDestroy")) must(cuCtxCreate_v2(&context, 0, 0), "create");
  else must(cuDevicePrimaryCtxRetain(&context, 0), "retain");
  must(cuCtxSetCurrent(context), "current");
  return context;
}

void destroy(const std::string& how, Context context) {
  if (how == "cudaDeviceReset") must(cudaDeviceReset(), "reset");
  if (how == "cuCtxDestroy") must(DESTROYER(cuCtxDestroy)(context), "destroy");
  if (how == "cuCtxDestroy_v2") must(DESTROYER(cuCtxDestroy_v2)(context), "destroy");
  if (how == "cuDevicePrimaryCtxReset") must(DESTROYER(cuDevicePrimaryCtxReset)(0), "reset");
  if (how == "cuDevicePrimaryCtxReset_v2") must(DESTROYER(cuDevicePrimaryCtxReset_v2)(0), "reset");
  if (how == "cuDevicePrimaryCtxRelease") must(DESTROYER(cuDevicePrimaryCtxRelease)(0), "release");
  if (how == "cuDevicePrimaryCtxRelease_v2") must(DESTROYER(cuDevicePrimaryCtxRelease_v2)(0), "release");
  if (how.starts_with("cu") && how != "cudaDeviceReset") must(cuCtxSetCurrent(nullptr), "none current");
}

// Two halves, the same on both sides of the end of a context; a bracket of the probes is open across it.
void halves(const std::string& how) {
  auto begin = reinterpret_cast<std::uint64_t (*)(std::uint32_t, std::uint64_t, std::uint64_t)>(
      dlsym(RTLD_DEFAULT, "stashtrace_device_bracket_begin"));
  auto end = reinterpret_cast<void (*)(std::uint64_t, std::uint64_t)>(dlsym(RTLD_DEFAULT, "stashtrace_device_bracket_end"));
  Context context = make(how);
  Stream stream = new_stream();
  copies_done(stream);
  copies_done(reinterpret_cast<Stream>(kPerThreadStream));
  const std::uint64_t open = begin != nullptr ? begin(kBatchWait, reinterpret_cast<std::uint64_t>(stream), 7) : 0;
  copies_in_flight(stream);
  destroy(how, context);
  context = make(how);
  if (end != nullptr) end(open, 7);
  copies_done(new_stream());
  copies_done(reinterpret_cast<Stream>(kPerThreadStream));
}

// A share of a device, by the driver's functions or the runtime's, with streams of its own.
struct Green {
  explicit Green(bool of_runtime) : of_runtime(of_runtime) {
    char resources[256] = {};
    void* description = nullptr;
    if (of_runtime) {
      must(cudaDevResourceGenerateDesc(&description, resources, 1), "description");
      must(cudaGreenCtxCreate(&handle, description, 0, 0), "create");
    } else {
      must(cuDevResourceGenerateDesc(&description, resources, 1), "description");
      must(cuGreenCtxCreate(&handle, description, 0, 0), "create");
      Context context = nullptr;
      must(cuCtxFromGreenCtx(&context, handle), "context");
      must(cuCtxSetCurrent(context), "current");
    }
    must(cudaMalloc(&on_device, kBytes), "memory");
    must(cudaHostAlloc(&pinned, kBytes, 0), "pinned memory");
  }
  Stream stream() const {
    Stream made = nullptr;
    if (of_runtime) must(cudaExecutionCtxStreamCreate(&made, handle, kStreamNonBlocking, 0), "stream");
    else must(cuGreenCtxStreamCreate(&made, handle, kStreamNonBlocking, 0), "stream");
    return made;
  }
  void destroy() const {
    if (of_runtime) return must(cudaExecutionCtxDestroy(handle), "destroy");
    must(DESTROYER(cuGreenCtxDestroy)(handle), "destroy");
    must(cuCtxSetCurrent(nullptr), "none current");
  }
  bool of_runtime;
  void* handle = nullptr;
};

// As halves(), on two streams of a green context in place of a thread's own stream, which such a context has not.
void green_halves(bool of_runtime) {
  auto begin = reinterpret_cast<std::uint64_t (*)(std::uint32_t, std::uint64_t, std::uint64_t)>(
      dlsym(RTLD_DEFAULT, "stashtrace_device_bracket_begin"));
  auto end = reinterpret_cast<void (*)(std::uint64_t, std::uint64_t)>(dlsym(RTLD_DEFAULT, "stashtrace_device_bracket_end"));
  const Green first(of_runtime);
  Stream streams[] = {first.stream(), first.stream()};
  for (Stream stream : streams) copies_done(stream);
  const std::uint64_t open = begin != nullptr ? begin(kBatchWait, reinterpret_cast<std::uint64_t>(streams[0]), 7) : 0;
  copies_in_flight(streams[0]);
  first.destroy();
  if (cudaMemcpyAsync(on_device, pinned, kBytes, kHostToDevice, streams[1]) != kStreamDetached) puts("not detached");
  for (Stream stream : streams) must(cudaStreamDestroy(stream), "stream");
  const Green second(of_runtime);
  if (end != nullptr) end(open, 7);
  for (int i = 0; i < 2; ++i) copies_done(second.stream());
}

// The last holder of the primary context is a green one.
void green_holds_primary() {
  Context primary = make("cuDevicePrimaryCtxRelease");
  Stream stream = new_stream();
  copies_done(stream);
  const Green green(false);
  must(cuCtxSetCurrent(primary), "current");
  must(cuDevicePrimaryCtxRelease_v2(0), "release");
  copies_done(stream);
  copies_in_flight(stream);
  green.destroy();
}

// Destroyed past all hooks: what the driver then says of the stream is the only sign.
void green_unseen() {
  auto begin = reinterpret_cast<std::uint64_t (*)(std::uint32_t, std::uint64_t, std::uint64_t)>(
      dlsym(RTLD_DEFAULT, "stashtrace_device_bracket_begin"));
  auto end = reinterpret_cast<void (*)(std::uint64_t, std::uint64_t)>(dlsym(RTLD_DEFAULT, "stashtrace_device_bracket_end"));
  auto unseen = reinterpret_cast<decltype(&cuGreenCtxDestroy)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGreenCtxDestroy"));
  const Green first(true), driver(false);
  Stream stream = driver.stream();
  copies_done(stream);
  must(cuCtxSetCurrent(make("cuDevicePrimaryCtxRetain")), "current");
  must(unseen(driver.handle), "destroy");
  if (begin != nullptr) end(begin(kBatchWait, reinterpret_cast<std::uint64_t>(stream), 7), 7);
  copies_done(first.stream());
}

// More at a time than the recorder has places for.
void many_contexts(int count) {
  for (int i = 0; i < count; ++i) {
    Context context = nullptr;
    must(cuCtxCreate_v2(&context, 0, 0), "create");
    Stream stream = new_stream();
    for (int again = 0; again < 2; ++again) copies_done(stream);
  }
}

// A context that somebody else still has is not destroyed: nothing is lost.
void released_once_of_two() {
  Context context = make("cuDevicePrimaryCtxRelease");
  must(cuDevicePrimaryCtxRetain(&context, 0), "retain again");
  Stream stream = new_stream();
  copies_done(stream);
  copy(stream);
  must(cuDevicePrimaryCtxRelease_v2(0), "release");
  copies_done(stream);
}

// Device 1 has copies in flight and open while device 0 is reset, over and over.
void two_devices() {
  std::thread other([] {
    must(cudaSetDevice(1), "device 1");
    Stream stream = new_stream();
    for (int i = 0; i < 30; ++i) copies_done(stream);
  });
  for (int i = 0; i < 40; ++i) {  // more often than there are places for contexts
    must(cudaSetDevice(0), "device 0");
    copies_done(new_stream());
    must(cudaDeviceReset(), "reset");
  }
  other.join();
}

}  // namespace

int main(int count, char** arguments) {
  const std::string how = arguments[1];
  by_look_up = count > 2;
  must(cuInit(0), "init");
  if (how == "released_once_of_two") released_once_of_two();
  else if (how == "two_devices") two_devices();
  else if (how == "green_holds_primary") green_holds_primary();
  else if (how == "green_unseen") green_unseen();
  else if (how == "many_contexts") many_contexts(35);
  else if (how == "cuGreenCtxDestroy" || how == "cudaExecutionCtxDestroy") green_halves(how == "cudaExecutionCtxDestroy");
  else halves(how);
  puts("done");
  return 0;
}
