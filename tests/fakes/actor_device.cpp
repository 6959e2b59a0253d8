// Statements of the actor that concern its device. SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "actor.h"

// What a compiler would make of kernels: host stubs whose address names the kernel.
extern "C" __attribute__((visibility("default"), noinline)) void gemm_kernel() {}
extern "C" __attribute__((visibility("default"), noinline)) void elementwise_kernel() { asm volatile(""); }

namespace fake {

namespace cuda = stashtrace::cuda;

void* Actor::stream_number(int number) {
  if (number == 0) return nullptr;  // the legacy default stream, as torch's
  void*& stream = streams_[number];
  if (stream == nullptr) check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cuda::kStreamNonBlocking));
  return stream;
}

void* Actor::stream_of(const Statement& one, const char* key) { return stream_number(one.number(key, 0)); }

void* Actor::event_number(int number) {
  void*& event = events_[number];
  if (event == nullptr) check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cuda::kEventDefault));
  return event;
}

// kernel 3ms [stream=N] [small] [plain]
void Actor::kernel(const Statement& one) {
  auto duration_ns = static_cast<std::uint64_t>(one.quantity());
  void* arguments[] = {&duration_ns};
  const auto* stub = reinterpret_cast<const void*>(one.has("small") ? &elementwise_kernel : &gemm_kernel);
  if (one.has("plain")) {
    check("__cudaLaunchKernel", __cudaLaunchKernel(stub, {1, 1, 1}, {1, 1, 1}, arguments, 0, stream_of(one)));
    return;
  }
  cuda::LaunchConfig config = {};
  config.grid = config.block = {1, 1, 1};
  config.stream = stream_of(one);
  check("cudaLaunchKernelExC", cudaLaunchKernelExC(&config, stub, arguments));
}

// copy h2d|d2h|d2d 64MB [pinned|pageable] [stream=N] [blocking]
void Actor::copy(const Statement& one) {
  const auto bytes = static_cast<std::size_t>(one.quantity());
  const std::string direction = one.word(1);
  void* host = one.has("pageable") ? pageable_ : pinned_;
  void *to = device_buffer_, *from = host;
  int kind = cuda::kHostToDevice;
  if (direction == "d2h") {
    std::swap(to, from);
    kind = cuda::kDeviceToHost;
  } else if (direction == "d2d") {
    from = static_cast<char*>(device_buffer_) + kBufferBytes / 2;
    kind = cuda::kDeviceToDevice;
  }
  if (one.has("blocking")) {
    check("cudaMemcpy", cudaMemcpy(to, from, bytes, kind));
  } else {
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kind, stream_of(one)));
  }
}

void Actor::memset(const Statement& one) {
  check("cudaMemsetAsync", cudaMemsetAsync(device_buffer_, 0, static_cast<std::size_t>(one.quantity()), stream_of(one)));
}

// allocate 1GB id=3
void Actor::allocate(const Statement& one) {
  check("cudaMalloc", cudaMalloc(&memory_[one.number("id", 0)], static_cast<std::size_t>(one.quantity())));
}

void Actor::release(const Statement& one) {
  check("cudaFree", cudaFree(memory_[one.number("id", 0)]));
  memory_.erase(one.number("id", 0));
}

void Actor::record(const Statement& one) {
  check("cudaEventRecord", cudaEventRecord(event_number(one.number("event", 0)), stream_of(one)));
}

void Actor::wait_event(const Statement& one) {
  check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_of(one), event_number(one.number("event", 0)), 0));
}

// wait stream=0 for=2: what torch does, with an event that is reused
void Actor::wait(const Statement& one) {
  void* event = event_number(1000 + one.number("for", 0));
  check("cudaEventRecord", cudaEventRecord(event, stream_of(one, "for")));
  check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_of(one), event, 0));
}

void Actor::sync(const Statement& one) {
  if (one.has("device")) {
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
  } else if (!one.text("event", "").empty()) {
    check("cudaEventSynchronize", cudaEventSynchronize(event_number(one.number("event", 0))));
  } else {
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream_of(one)));
  }
}

void Actor::query(const Statement& one) {
  const bool event = !one.text("event", "").empty();
  const int result = event ? cudaEventQuery(event_number(one.number("event", 0))) : cudaStreamQuery(stream_of(one));
  results_.push_back(std::to_string(result));
}

// elapsed from=1 to=2: ms, into the results
void Actor::elapsed(const Statement& one) {
  float milliseconds = -1;
  check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, event_number(one.number("from", 0)),
                                                     event_number(one.number("to", 0))));
  char text[40];
  std::snprintf(text, sizeof text, "%.6f", static_cast<double>(milliseconds));
  results_.emplace_back(text);
}

// stream 3 blocking | stream 3 destroy
void Actor::stream(const Statement& one) {
  const int number = static_cast<int>(one.quantity());
  if (one.has("destroy")) {
    check("cudaStreamDestroy", cudaStreamDestroy(streams_[number]));
    streams_.erase(number);
  } else {
    check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&streams_[number], one.has("blocking") ? 0 : 1));
  }
}

// capture stream=1 [graph=G] [relaxed|local] { ... }
void Actor::capture(const Statement& one) {
  const int mode = one.has("relaxed") ? 2 : one.has("local") ? 1 : 0;
  void *graph = nullptr, *exec = nullptr;
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream_of(one), mode));
  run(one.body);
  if (check("cudaStreamEndCapture", cudaStreamEndCapture(stream_of(one), &graph)) != 0) return;
  if (check("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph, 0)) == 0) graphs_[one.number("graph", 0)] = exec;
}

void Actor::launch(const Statement& one) {
  check("cudaGraphLaunch", cudaGraphLaunch(graphs_[one.number("graph", 0)], stream_of(one)));
}

}  // namespace fake
