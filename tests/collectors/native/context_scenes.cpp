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
  else halves(how);
  puts("done");
  return 0;
}
