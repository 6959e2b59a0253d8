// A program linked against libcudart: each argument names a scene that it plays. SPDX-License-Identifier: Apache-2.0
//
// Results of calls are ignored where the doubles are told to fail; what must hold is printed. tests/collectors/test_cuda.py.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/cuda_abi.h"

using namespace stashtrace::cuda;

extern "C" {
Result cudaMalloc(void**, std::size_t);
Result cudaFree(void*);
Result cudaHostAlloc(void**, std::size_t, unsigned);
Result cudaMemcpy(void*, const void*, std::size_t, int);
Result cudaMemcpyAsync(void*, const void*, std::size_t, int, Stream);
Result cudaMemsetAsync(void*, int, std::size_t, Stream);
Result cudaStreamCreate(Stream*);
Result cudaStreamCreateWithFlags(Stream*, unsigned);
Result cudaStreamDestroy(Stream);
Result cudaStreamSynchronize(Stream);
Result cudaStreamWaitEvent(Stream, Event, unsigned);
Result cudaStreamBeginCapture(Stream, int);
Result cudaStreamEndCapture(Stream, Graph*);
Result cudaDeviceSynchronize();
Result cudaEventCreateWithFlags(Event*, unsigned);
Result cudaEventRecord(Event, Stream);
Result cudaEventSynchronize(Event);
Result cudaEventDestroy(Event);
Result cudaGraphInstantiate(GraphExec*, Graph, unsigned long long);
Result cudaGraphLaunch(GraphExec, Stream);
Result cudaDeviceReset();
Result cudaMemset(void*, int, std::size_t);
Result cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, int);
Result cudaMemcpyToSymbolAsync(const void*, const void*, std::size_t, std::size_t, int, Stream);
Result cudaMemcpyFromSymbol(void*, const void*, std::size_t, std::size_t, int);
Result cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, Stream);
Result cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, std::size_t, Stream);
Result cudaMallocManaged(void**, std::size_t, unsigned);
Result cudaMallocPitch(void**, std::size_t*, std::size_t, std::size_t);
Result cudaSetDevice(int);
Result cudaMemcpy2D(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, int);
Result cudaMemcpy2DAsync(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, int, Stream);
Result cudaMemcpy3D(const BoxCopy*);
Result cudaMemcpy3DAsync(const BoxCopy*, Stream);
Result cudaMemcpyPeer(void*, int, const void*, int, std::size_t);
Result cudaMemcpyPeerAsync(void*, int, const void*, int, std::size_t, Stream);
Result cudaMemcpy3DPeer(const PeerBoxCopy*);
Result cudaMemcpy3DPeerAsync(const PeerBoxCopy*, Stream);
Result cudaMemset2D(void*, std::size_t, int, std::size_t, std::size_t);
Result cudaMemset2DAsync(void*, std::size_t, int, std::size_t, std::size_t, Stream);
Result cudaMemset3D(PitchedPointer, int, Extent);
Result cudaMemset3DAsync(PitchedPointer, int, Extent, Stream);
Result cudaHostRegister(void*, std::size_t, unsigned);
Result cudaHostUnregister(void*);
Result cudaLaunchHostFunc(Stream, HostFunction, void*);
Result cudaLaunchHostFunc_ptsz(Stream, HostFunction, void*);
Result cudaLaunchHostFunc_v2(Stream, HostFunction, void*, unsigned);
Result cudaStreamAddCallback(Stream, StreamCallback, void*, unsigned);
}

namespace {

constexpr std::size_t kMega = 1'000'000;
constexpr std::uint32_t kBatchWait = 1, kStep = 5;

struct Memory {
  void* device = nullptr;
  void* other = nullptr;
  void* pinned = nullptr;
  std::vector<char> pageable = std::vector<char>(8 * kMega);
  Memory() {
    if (cudaMalloc(&device, 64 * kMega) != kSuccess) cudaMalloc(&device, 64 * kMega);
    cudaMalloc(&other, 64 * kMega);
    cudaHostAlloc(&pinned, 64 * kMega, 0);
  }
};

void kernel_stub() {}

void compute(Stream stream, std::uint64_t ns) {
  void* arguments[] = {&ns};
  cudaLaunchKernel(reinterpret_cast<const void*>(&kernel_stub), {1, 1, 1}, {1, 1, 1}, arguments, 0, stream);
}

Stream side_stream() {
  Stream stream = nullptr;
  cudaStreamCreateWithFlags(&stream, kStreamNonBlocking);
  return stream;
}

Event event() {
  Event made = nullptr;
  cudaEventCreateWithFlags(&made, kEventDisableTiming);
  return made;
}

// The probes' face of the recorder, absent in a run without it.
template <class F>
F recorder(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}
void step(std::uint64_t number, Stream stream) {
  if (auto mark = recorder<void (*)(std::uint32_t, std::uint64_t, std::uint64_t)>("stashtrace_device_mark"))
    mark(kStep, reinterpret_cast<std::uint64_t>(stream), number);
}

void copies(Memory& memory) {
  Stream stream = side_stream();
  cudaMemcpyAsync(memory.device, memory.pinned, 20 * kMega, kHostToDevice, stream);
  cudaMemcpyAsync(memory.device, memory.pageable.data(), 8 * kMega, kHostToDevice, stream);
  cudaMemcpyAsync(memory.pinned, memory.device, 10 * kMega, kDeviceToHost, stream);
  cudaMemcpyAsync(memory.other, memory.device, 30 * kMega, kDeviceToDevice, stream);
  cudaMemcpyAsync(memory.device, memory.pinned, 4 * kMega, kDefaultKind, stream);
  cudaStreamSynchronize(stream);
  cudaMemcpy(memory.pageable.data(), memory.device, kMega, kDeviceToHost);
  cudaDeviceSynchronize();
}

// The compute stream waits for a copy of 10 ms; `relay` passes the copy's event on to a third stream.
void waits(Memory& memory) {
  Stream copying = side_stream(), computing = side_stream(), relay = side_stream(), last = side_stream();
  Event copied = event(), relayed = event(), idle = event();
  step(1, computing);
  compute(computing, 1'000'000);
  cudaMemcpyAsync(memory.device, memory.pinned, 10 * kMega, kHostToDevice, copying);
  cudaEventRecord(copied, copying);
  cudaStreamWaitEvent(computing, copied, 0);
  compute(computing, 2'000'000);
  cudaStreamWaitEvent(relay, copied, 0);
  cudaEventRecord(relayed, relay);
  cudaStreamWaitEvent(last, relayed, 0);
  cudaEventRecord(copied, computing);  // the same handle stands for compute now
  cudaStreamWaitEvent(last, copied, 0);
  cudaEventRecord(idle, side_stream());  // nothing tracked: no wait is recorded on a side stream
  cudaStreamWaitEvent(relay, idle, 0);
  cudaEventSynchronize(copied);
  cudaDeviceSynchronize();
  cudaEventDestroy(copied);
}

// What a wait is for where the side stream copied inside the device, and where it set memory after a copy.
void side_work(Memory& memory) {
  Stream computing = side_stream(), copying = side_stream(), setting = side_stream();
  Event copied = event(), set = event();
  step(1, computing);
  cudaMemcpyAsync(memory.other, memory.device, 10 * kMega, kDeviceToDevice, copying);
  cudaEventRecord(copied, copying);
  cudaStreamWaitEvent(computing, copied, 0);
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, setting);
  cudaMemsetAsync(memory.device, 0, kMega, setting);
  cudaEventRecord(set, setting);
  cudaStreamWaitEvent(computing, set, 0);
  cudaDeviceSynchronize();
}

void reuse(Memory& memory) {
  for (int i = 0; i < 5; ++i) {
    Stream stream = side_stream();
    cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
}

void capture(Memory& memory) {
  Stream stream = side_stream(), other = side_stream();
  Event forked = event();
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  compute(other, 1'000);  // loads the kernel, which no capture would bear
  const Result begun = cudaStreamBeginCapture(stream, kCaptureGlobal);
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
  cudaEventRecord(forked, stream);
  cudaStreamWaitEvent(other, forked, 0);
  compute(other, 3'000'000);
  Event joined = event();
  cudaEventRecord(joined, other);
  cudaStreamWaitEvent(stream, joined, 0);
  const Result ended = cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphLaunch(exec, stream);
  cudaGraphLaunch(exec, stream);
  cudaStreamSynchronize(stream);
  printf("capture %d %d\n", begun, ended);
}

void blocking(Memory& memory) {
  Stream stream = nullptr;
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, nullptr);
  cudaDeviceSynchronize();
  cudaStreamCreate(&stream);
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, nullptr);
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
  cudaDeviceSynchronize();
  cudaStreamDestroy(stream);
}

void child_after(Memory& memory) {
  copies(memory);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    Stream stream = nullptr;
    cudaStreamCreateWithFlags(&stream, kStreamNonBlocking);
    cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
    step(1, stream);
    exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  printf("child %d\n", status);
}

void many_steps(Memory& memory) {
  Stream computing = side_stream(), copying = side_stream();
  for (std::uint64_t number = 0; number < 64; ++number) {
    for (int i = 0; i < 50; ++i) cudaMemcpyAsync(memory.device, memory.pinned, 1000, kHostToDevice, copying);
    cudaStreamSynchronize(copying);
    usleep(2'000);
    step(number, computing);
  }
  cudaDeviceSynchronize();
}

void threads(Memory& memory) {
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i)
    all.emplace_back([&memory] {
      Stream stream = side_stream();
      Event done = event();
      for (int n = 0; n < 300; ++n) {
        cudaMemcpyAsync(memory.device, memory.pinned, 1000, kHostToDevice, stream);
        cudaEventRecord(done, stream);
        cudaStreamWaitEvent(stream, done, 0);
        if (n % 50 == 0) cudaStreamSynchronize(stream);
      }
      cudaStreamSynchronize(stream);
    });
  for (auto& thread : all) thread.join();
}

// A job that catches the failure, and tries again when it has done something else.
void second_try(Memory&) {
  void* memory = nullptr;
  cudaMalloc(&memory, 3 * kMega);
  usleep(250'000);
  cudaMalloc(&memory, 3 * kMega);
}

// ... or goes on with less, and comes back to the size later.
void smaller_try(Memory&) {
  void* memory = nullptr;
  cudaMalloc(&memory, 3 * kMega);
  cudaMalloc(&memory, 2 * kMega);
  cudaMalloc(&memory, kMega);
}

void symbols(Memory& memory) {
  Stream stream = side_stream();
  printf("symbols %d", cudaMemcpyToSymbol(memory.device, memory.pageable.data(), kMega, 0, kHostToDevice));
  printf(" %d", cudaMemcpyToSymbolAsync(memory.device, memory.pinned, 2 * kMega, 16, kDefaultKind, stream));
  printf(" %d", cudaMemcpyFromSymbol(memory.pageable.data(), memory.device, 3 * kMega, 0, kDeviceToHost));
  printf(" %d\n", cudaMemset(memory.device, 0, kMega));
  cudaDeviceSynchronize();
}

PitchedPointer pitched(void* memory, std::size_t pitch, std::size_t rows) { return {memory, pitch, pitch, rows}; }

// Copies of rows and planes, and what they move: 100 rows of 1,000 bytes, in ten planes where they have three dimensions.
void shapes(Memory& memory) {
  Stream stream = side_stream();
  char* host = memory.pageable.data();
  for (std::size_t at = 0; at < kMega; ++at) host[at] = static_cast<char>(at % 251);
  printf("shapes %d", cudaMemcpy2D(memory.device, 2'000, host, 1'500, 1'000, 100, kHostToDevice));
  printf(" %d", cudaMemcpy2DAsync(memory.pinned, 1'000, memory.device, 2'000, 1'000, 100, kDeviceToHost, stream));
  cudaStreamSynchronize(stream);
  const char* back = static_cast<const char*>(memory.pinned);
  printf(" %d", back[99'000] == host[99 * 1'500] && back[99'999] == host[99 * 1'500 + 999]);
  BoxCopy box{};
  box.from = pitched(host, 1'000, 10);
  box.to = pitched(memory.device, 4'000, 20);
  box.to_position = {16, 2, 1};
  box.extent = {1'000, 10, 10};
  box.kind = kHostToDevice;
  printf(" %d", cudaMemcpy3D(&box));
  std::swap(box.from, box.to);
  std::swap(box.from_position, box.to_position);
  box.to = pitched(memory.pinned, 1'000, 10);
  box.kind = kDefaultKind;
  printf(" %d", cudaMemcpy3DAsync(&box, stream));
  cudaStreamSynchronize(stream);
  printf(" %d", back[99'999] == host[99'999] && back[0] == host[0]);
  box.to_array = memory.device;  // no CUDA array, and refused like one that is none
  printf(" %d %d", cudaMemcpy3D(&box), cudaMemcpy3DAsync(nullptr, stream));
  printf(" %d\n", cudaMemcpy2D(memory.device, 900, host, 1'000, 1'000, 2, kHostToDevice));  // rows would overlap
}

void peers(Memory& memory) {
  void* there = nullptr;
  cudaSetDevice(1);
  cudaMalloc(&there, 8 * kMega);
  cudaSetDevice(0);
  Stream stream = side_stream();
  PeerBoxCopy box{};
  box.from = pitched(memory.device, 1'000, 100);
  box.to = pitched(there, 2'000, 100);
  box.to_device = 1;
  box.extent = {1'000, 100, 10};
  printf("peers %d", cudaMemcpyPeer(there, 1, memory.device, 0, 2 * kMega));
  printf(" %d", cudaMemcpyPeer(memory.other, 0, memory.device, 0, 3 * kMega));
  printf(" %d", cudaMemcpyPeerAsync(there, 1, memory.device, 0, 4 * kMega, stream));
  printf(" %d", cudaMemcpy3DPeer(&box));
  printf(" %d", cudaMemcpy3DPeerAsync(&box, stream));
  printf(" %d\n", cudaMemcpyPeer(there, 7, memory.device, 0, kMega));  // no such device
  cudaDeviceSynchronize();
}

// Each kind of memset is the last work of a stream of its own, which the computing one then waits for.
void memsets(Memory& memory) {
  Stream computing = side_stream();
  Event done = event();
  step(1, computing);
  const PitchedPointer target = pitched(memory.device, 2'000, 100);
  const Extent extent{1'000, 100, 10};
  printf("memsets %d", cudaMemset2D(memory.device, 2'000, 1, 1'000, 100));
  printf(" %d", cudaMemset3D(target, 1, extent));
  for (int kind = 0; kind < 2; ++kind) {
    Stream setting = side_stream();
    cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, setting);
    printf(" %d", kind == 0 ? cudaMemset2DAsync(memory.device, 2'000, 1, 1'000, 100, setting)
                            : cudaMemset3DAsync(target, 1, extent, setting));
    cudaEventRecord(done, setting);
    cudaStreamWaitEvent(computing, done, 0);
  }
  puts("");
  cudaDeviceSynchronize();
}

void cooperative(Memory& memory) {
  Stream computing = side_stream(), waiting = side_stream();
  Event done = event();
  std::uint64_t ns = 1'000'000;
  void* arguments[] = {&ns};
  step(1, waiting);
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, computing);
  printf("cooperative %d", cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&kernel_stub), {1, 1, 1}, {1, 1, 1}, arguments, 0, computing));
  cudaEventRecord(done, computing);
  cudaStreamWaitEvent(waiting, done, 0);
  void *managed = nullptr, *rows = nullptr;
  std::size_t pitch = 0;
  printf(" %d", cudaMallocManaged(&managed, 7'000, 1));
  printf(" %d\n", cudaMallocPitch(&rows, &pitch, 1'000, 9));
  cudaDeviceSynchronize();
}

void host_memory(Memory& memory) {
  printf("host_memory %d", cudaHostRegister(memory.pageable.data(), 4 * kMega, 0));
  printf(" %d", cudaHostUnregister(memory.pageable.data()));
  printf(" %d\n", cudaHostUnregister(memory.pageable.data()));
}

void nap_of_5_ms(void* said) {
  usleep(5'000);
  ++*static_cast<int*>(said);
}
void called_back(Stream, Result result, void* said) { nap_of_5_ms(result == kSuccess ? said : nullptr); }

// Functions that streams run on the host: in each way on the computing stream, and on another that it waits for.
void host_functions(Memory&) {
  Stream computing = side_stream(), other = side_stream();
  Event done = event();
  int said = 0;
  step(1, computing);
  printf("host_functions %d", cudaLaunchHostFunc(computing, nap_of_5_ms, &said));
  printf(" %d", cudaLaunchHostFunc_v2(computing, nap_of_5_ms, &said, 1));
  printf(" %d", cudaStreamAddCallback(computing, called_back, &said, 0));
  printf(" %d", cudaLaunchHostFunc(other, nap_of_5_ms, &said));
  cudaEventRecord(done, other);
  cudaStreamWaitEvent(computing, done, 0);
  printf(" %d", cudaLaunchHostFunc_ptsz(nullptr, nap_of_5_ms, &said));
  printf(" %d %d", cudaLaunchHostFunc(computing, nullptr, &said), cudaStreamAddCallback(computing, called_back, &said, 1));
  cudaDeviceSynchronize();
  printf(" %d\n", said);
  step(2, computing);
  cudaDeviceSynchronize();
}

// One that is captured runs when the graph does; a callback breaks the capture, as it does untraced.
void captured_function(Memory&) {
  Stream stream = side_stream(), broken = side_stream();
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  int said = 0;
  cudaStreamBeginCapture(stream, kCaptureGlobal);
  printf("captured_function %d", cudaLaunchHostFunc(stream, nap_of_5_ms, &said));
  printf(" %d", cudaStreamEndCapture(stream, &graph));
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphLaunch(exec, stream);
  cudaGraphLaunch(exec, stream);
  cudaStreamSynchronize(stream);
  printf(" %d", said);
  cudaStreamBeginCapture(broken, kCaptureGlobal);
  printf(" %d", cudaStreamAddCallback(broken, called_back, &said, 0));
  printf(" %d\n", cudaStreamEndCapture(broken, &graph));
}

// Copies in flight, then the device is reset and used again.
void reset(Memory& memory) {
  Stream stream = side_stream();
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
  cudaStreamSynchronize(stream);
  compute(stream, 60'000'000'000);
  cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
  printf("reset %d\n", cudaDeviceReset());
  stream = side_stream();
  printf("again %d\n", cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream));
  printf("synchronized %d\n", cudaStreamSynchronize(stream));
  usleep(100'000);
}

void probes(Memory&) {
  Stream stream = side_stream();
  auto begin = recorder<std::uint64_t (*)(std::uint32_t, std::uint64_t, std::uint64_t)>("stashtrace_device_bracket_begin");
  auto end = recorder<void (*)(std::uint64_t, std::uint64_t)>("stashtrace_device_bracket_end");
  if (begin == nullptr || end == nullptr) return;
  const std::uint64_t token = begin(kBatchWait, reinterpret_cast<std::uint64_t>(stream), 0);
  usleep(5'000);
  end(token, 42);
  end(token, 43);  // a second end is none
  end(0, 0);
  step(7, stream);
  cudaDeviceSynchronize();
}

}  // namespace

int main(int count, char** arguments) {
  Memory memory;
  for (int i = 1; i < count; ++i) {
    const std::string scene = arguments[i];
    if (scene == "copies") copies(memory);
    if (scene == "waits") waits(memory);
    if (scene == "side_work") side_work(memory);
    if (scene == "reuse") reuse(memory);
    if (scene == "capture") capture(memory);
    if (scene == "blocking") blocking(memory);
    if (scene == "fork") child_after(memory);
    if (scene == "steps") many_steps(memory);
    if (scene == "threads") threads(memory);
    if (scene == "probes") probes(memory);
    if (scene == "symbols") symbols(memory);
    if (scene == "reset") reset(memory);
    if (scene == "shapes") shapes(memory);
    if (scene == "peers") peers(memory);
    if (scene == "memsets") memsets(memory);
    if (scene == "cooperative") cooperative(memory);
    if (scene == "host_memory") host_memory(memory);
    if (scene == "host_functions") host_functions(memory);
    if (scene == "captured_function") captured_function(memory);
    if (scene == "second_try") second_try(memory);
    if (scene == "smaller_try") smaller_try(memory);
    if (scene == "in_flight") {
      Stream stream = side_stream();
      compute(stream, 60'000'000'000);
      cudaMemcpyAsync(memory.device, memory.pinned, kMega, kHostToDevice, stream);
    }
    if (scene == "free") printf("free %d\n", cudaFree(memory.device));
    if (scene == "nap") usleep(100'000);
  }
  puts("done");
  return 0;
}
