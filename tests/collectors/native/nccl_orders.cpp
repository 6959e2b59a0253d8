// Plays NCCL to our plugin: loads ncclProfiler_vN of the preloaded library as NCCL does and calls it in the orders that the versions
// of NCCL do. Arguments: version, scene. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "abi/nccl_profiler_v7.h"

using namespace stashtrace::nccl::profiler;

namespace {

int mask = 0;

template <int N>
struct Version;
#define VERSION(n)                                                                                    \
  template <>                                                                                         \
  struct Version<n> {                                                                                 \
    using Plugin = v##n::Plugin;                                                                      \
    using Descriptor = v##n::Descriptor;                                                              \
  };
VERSION(4) VERSION(5) VERSION(6) VERSION(7)

v4::CollDescr& coll_of(v4::Descriptor& d) { return d.coll; }
v4::CollDescr& coll_of(v5::Descriptor& d) { return d.coll.base; }
v4::CollDescr& coll_of(v6::Descriptor& d) { return d.coll.base; }
v4::CollDescr& coll_of(v7::Descriptor& d) { return d.coll.base.base; }

template <int N>
class Nccl {
 public:
  using Plugin = typename Version<N>::Plugin;
  using Descriptor = typename Version<N>::Descriptor;

  explicit Nccl(std::uint64_t comm_id = 0xabc0 + N) {
    const std::string name = "ncclProfiler_v" + std::to_string(N);
    plugin_ = static_cast<const Plugin*>(dlsym(RTLD_DEFAULT, name.c_str()));
    if (plugin_ == nullptr) std::exit(3);
    int result = 0;
    if constexpr (N == 4) result = plugin_->init(&context_, &mask, "job", comm_id, 2, 4, 1, nullptr);
    else result = plugin_->init(&context_, comm_id, &mask, "job", 2, 4, 1, nullptr);
    if (result != 0 || context_ == nullptr) std::exit(4);
  }
  void end() { plugin_->finalize(context_); }

  void* start(Descriptor& d) {
    void* handle = nullptr;
    if (plugin_->start_event(context_, &handle, &d) != 0) std::exit(5);
    return handle;
  }
  void stop(void* handle) {
    if (handle != nullptr) plugin_->stop_event(handle);
  }
  void state(void* handle, int state, std::uint64_t value = 0) {
    StateArgs args;
    args.p_timer = value;
    if (handle != nullptr) plugin_->record_event_state(handle, static_cast<State>(state), &args);
  }

  // 2.27.7 src/plugin/profiler.cc:240, ncclProfilerStartTaskEvents: without a handle for the group there are no tasks.
  void* group() {
    Descriptor d{};
    d.type = static_cast<decltype(d.type)>(N >= 5 ? kGroupApi : kGroup);
    void* handle = start(d);
    if (N == 4 && handle == nullptr) std::exit(6);
    return handle;
  }
  void* api(void* group, std::size_t count, bool captured = false) {
    if constexpr (N >= 5) {
      Descriptor d{};
      d.type = kCollApi;
      d.parent = group;
      auto& call = reinterpret_cast<v5::CollApiDescr&>(d.coll_api);
      call.func = "AllReduce";
      call.count = count;
      call.datatype = "ncclFloat32";
      call.root = -1;
      call.graph_captured = captured;
      return start(d);
    }
    return nullptr;
  }
  void* coll(void* parent, std::size_t count, int channels, const char* func = "AllReduce") {
    Descriptor d{};
    d.type = kColl;
    d.parent = parent;
    v4::CollDescr& task = coll_of(d);
    task.sequence = sequence_++;
    task.func = func;
    task.count = count;
    task.datatype = "ncclFloat32";
    task.channels_count = static_cast<std::uint8_t>(channels);
    task.algorithm = "RING";
    task.protocol = "SIMPLE";
    return start(d);
  }
  void* message(const char* func, int peer) {
    Descriptor d{};
    d.type = kP2p;
    auto& task = reinterpret_cast<v4::P2pDescr&>(d.p2p);  // the same in all versions
    task.func = func;
    task.count = 4;
    task.datatype = "ncclFloat32";
    task.peer = peer;
    task.channels_count = 1;
    return start(d);
  }
  void* kernel(void* task, int channel, std::uint64_t at) {
    Descriptor d{};
    d.type = kKernelCh;
    d.parent = task;
    d.kernel_ch = {static_cast<std::uint8_t>(channel), at};
    return start(d);
  }
  void channel(void* task, int number, std::uint64_t from, std::uint64_t to) {
    void* handle = kernel(task, number, from);
    state(handle, kKernelChStop, to);
    stop(handle);
  }
  // PXN: NCCL hands over the context of the process that the operation is done for.
  void* proxy_elsewhere(std::ptrdiff_t away) {
    void* const own = context_;
    context_ = static_cast<char*>(context_) + away;
    void* handle = proxy(reinterpret_cast<void*>(0x123456), getpid() + 1, true);
    if (handle != nullptr) step(handle, true, 4096);
    context_ = own;
    return handle;
  }
  void* proxy(void* task, int pid, bool send) {
    Descriptor d{};
    d.type = kProxyOp;
    d.parent = task;
    d.proxy_op = {pid, 1, 3, 2, 4096, send ? 1 : 0};
    return start(d);
  }
  void step(void* op, bool send, std::size_t bytes) {
    Descriptor d{};
    d.type = kProxyStep;
    d.parent = op;
    void* handle = start(d);
    const int sends[] = {kSendGpuWait, kSendPeerWait, kSendWait}, receives[] = {kRecvWait, kRecvFlushWait, kRecvGpuWait};
    for (int state_code : send ? sends : receives) {
      state(handle, state_code, bytes);
      usleep(2000);
    }
    stop(handle);
  }

 private:
  const Plugin* plugin_ = nullptr;
  void* context_ = nullptr;
  std::uint64_t sequence_ = 0;
};

template <int N>
void plain() {
  Nccl<N> nccl;
  void* group = nccl.group();
  void* call = nccl.api(group, 1000);
  nccl.stop(call);
  void* task = nccl.coll(call, 1000, 2);
  void* send = nccl.proxy(task, getpid(), true);
  nccl.stop(task);
  nccl.stop(group);
  nccl.step(send, true, 4096);
  nccl.step(send, true, 4096);
  nccl.stop(send);
  nccl.channel(task, 0, 5000, 9000);
  nccl.channel(task, 1, 4000, 8000);
  // Without stamps, with a stop that was polled too early, with a parent in another process.
  void* other = nccl.coll(call, 7, 2);
  nccl.stop(other);
  nccl.channel(other, 0, 20000, 10000);
  void* foreign = nccl.proxy(reinterpret_cast<void*>(0x1234567), getpid() + 1, false);
  nccl.step(foreign, false, 100);
  nccl.stop(foreign);
  nccl.end();
}

template <int N>
void graph() {
  Nccl<N> nccl;
  void* group = nccl.group();
  void* call = nccl.api(group, 64, true);
  nccl.stop(call);
  nccl.stop(group);
  for (int replay = 0; replay < 3; ++replay) {
    void* task = nccl.coll(call, 64, 1);
    nccl.stop(task);
    nccl.channel(task, 0, 1000u * (replay + 1), 1000u * (replay + 1) + 500);
  }
  nccl.end();
}

// Messages of rank 1 to itself, more than there are slots, which before 2.31 have no stamps; then one to another rank.
template <int N>
void itself() {
  Nccl<N> nccl;
  for (int i = 0; i < 10000; ++i) nccl.stop(nccl.message("Send", 1));
  void* task = nccl.message("Send", 2);
  nccl.stop(task);
  nccl.channel(task, 0, 5000, 9000);
  nccl.end();
}

template <int N>
void elsewhere() {
  Nccl<N> nccl;
  for (std::ptrdiff_t away : {std::ptrdiff_t{1} << 36, std::ptrdiff_t{4}, std::ptrdiff_t{4096}})
    nccl.stop(nccl.proxy_elsewhere(away));
  nccl.end();
}

template <int N>
void flood() {
  Nccl<N> nccl;
  for (int i = 0; i < 10000; ++i) nccl.coll(nullptr, 1, 1);
  nccl.end();
}

template <int N>
void threads() {
  std::vector<std::thread> all;
  for (int t = 0; t < 8; ++t)
    all.emplace_back([t] {
      Nccl<N> nccl(100 + t);
      for (int i = 0; i < 200; ++i) {
        void* task = nccl.coll(nullptr, 1, 4);
        std::thread later;
        nccl.stop(task);
        for (int c = 0; c < 4; ++c) nccl.channel(task, c, 10, 20);
      }
      nccl.end();
    });
  for (auto& thread : all) thread.join();
}

template <int N>
void play(const char* scene) {
  if (std::strcmp(scene, "plain") == 0) plain<N>();
  if (std::strcmp(scene, "graph") == 0) graph<N>();
  if (std::strcmp(scene, "flood") == 0) flood<N>();
  if (std::strcmp(scene, "itself") == 0) itself<N>();
  if (std::strcmp(scene, "elsewhere") == 0) elsewhere<N>();
  if (std::strcmp(scene, "threads") == 0) threads<N>();
}

}  // namespace

int main(int, char** argv) {
  switch (std::atoi(argv[1])) {
    case 4: play<4>(argv[2]); break;
    case 5: play<5>(argv[2]); break;
    case 6: play<6>(argv[2]); break;
    case 7: play<7>(argv[2]); break;
  }
  std::printf("%d\n", mask);
}
