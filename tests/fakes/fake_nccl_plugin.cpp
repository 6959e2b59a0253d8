// How the NCCL double loads and calls a profiler plugin, versions 4 to 7. SPDX-License-Identifier: Apache-2.0
//
// Rules of loading: NCCL_PROFILER_PLUGIN is a file, a name ("x" is also libnccl-profiler-x.so), STATIC_PLUGIN (symbols of
// the program and of what is preloaded) or "none"; unset, libnccl-profiler.so is tried. The newest version that this NCCL
// knows is taken. Order of the calls of one operation, a line each where they are made:
//   API       GroupApi [ CollApi | P2pApi ]... GroupStartApiStop GroupEndApiStart          v5 on, caller's thread
//   launch    Group [ Coll | P2p start ]... KernelLaunch [ Coll | P2p stop ]... Group stop   caller's thread
//   device    KernelCh start (globaltimer) ... ProxyOp, ProxyStep and their states ... KernelChStop   worker's thread
// So a task is stopped before its channels begin: its stop says "enqueued". In a replayed graph group and task begin and
// end on the worker's thread, below an API event that has long been stopped. Settings:
//   nccl.channels 2    nccl.race N   of every Nth operation KernelCh stops with a stamp before its start (before 2.31)
//   nccl.lost N        of every Nth operation the stop of the last channel never comes
//   nccl.ce 1          collectives are moved by copy engines (2.29 on): CeColl in place of Coll, no channels
//   nccl.steps 4, nccl.wait.gpu   proxy steps of a network operation, and how long all of them wait for the device
#include <dlfcn.h>

#include <cstdarg>
#include <utility>

#include "nccl_comm.h"

namespace fake {

namespace {

namespace v4 = profiler::v4;
namespace v5 = profiler::v5;
namespace v6 = profiler::v6;
namespace v7 = profiler::v7;

struct Plugin {
  int version = 0;
  void* symbol = nullptr;
};

void* open_plugin() {
  const char* name = getenv("NCCL_PROFILER_PLUGIN");
  if (name == nullptr || *name == '\0') return dlopen("libnccl-profiler.so", RTLD_NOW | RTLD_LOCAL);
  if (std::string(name) == "none") return nullptr;
  if (std::string(name) == "STATIC_PLUGIN") return dlopen(nullptr, RTLD_NOW | RTLD_LOCAL);
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  return library != nullptr ? library : dlopen((std::string("libnccl-profiler-") + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

const Plugin& plugin() {
  static const Plugin* const found = [] {
    auto* made = new Plugin();
    const int release = nccl_version() / 100;
    const int newest = release >= 231 ? 7 : release >= 229 ? 6 : release >= 228 ? 5 : release >= 227 ? 4 : 0;
    void* library = newest == 0 ? nullptr : open_plugin();
    for (int version = newest; library != nullptr && version >= 4 && made->symbol == nullptr; --version) {
      made->version = version;
      made->symbol = dlsym(library, ("ncclProfiler_v" + std::to_string(version)).c_str());
    }
    return made;
  }();
  return *found;
}

std::atomic<int>& mask() {  // one of the process, as in NCCL: the plugin keeps its address and may change it later
  static auto* const word = new std::atomic<int>(0);
  return *word;
}

void log_nothing(int, unsigned long, const char*, int, const char*, ...) {}

const char* type_name(int type) {
  static const char* const names[] = {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64",
                                      "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
  return type >= 0 && type < 10 ? names[type] : "Unknown";
}

constexpr std::uint64_t kDevice = profiler::kProxyOp | profiler::kProxyStep | profiler::kKernelCh | profiler::kNetPlugin;
constexpr std::uint64_t kTasks = profiler::kColl | profiler::kP2p | kDevice;
constexpr std::uint64_t kApi = profiler::kGroupApi | profiler::kCollApi | profiler::kP2pApi | profiler::kKernelLaunch;

std::uint8_t channels_count() { return static_cast<std::uint8_t>(setting("nccl.channels", 2)); }

}  // namespace

struct PluginSession::Event {
  std::uint64_t type = 0;
  void *parent = nullptr, *parent_group = nullptr;
  const Op* op = nullptr;
  bool captured = false;
  int depth = 0, step = 0;
  std::uint8_t channel = 0;
  std::uint64_t p_timer = 0;
  bool sends = false;
};

PluginSession::PluginSession(const CommState& comm) : comm_(comm) {
  const Plugin& found = plugin();
  if (found.symbol == nullptr) return;
  const char* name = comm.comm_name.empty() ? nullptr : comm.comm_name.c_str();
  auto* word = reinterpret_cast<int*>(&mask());
  const auto logger = static_cast<profiler::Logger>(log_nothing);
  int result = 0;
  if (found.version == 4) {
    result = static_cast<v4::Plugin*>(found.symbol)->init(&context_, word, name, comm.hash, nodes_of(comm), comm.size,
                                                          comm.rank, logger);
  } else {  // v5 to v7 have the same init
    result = static_cast<v5::Plugin*>(found.symbol)->init(&context_, comm.hash, word, name, nodes_of(comm), comm.size,
                                                          comm.rank, logger);
  }
  loaded_ = result == nccl::kSuccess;
}

PluginSession::~PluginSession() {
  if (loaded_) static_cast<v5::Plugin*>(plugin().symbol)->finalize(context_);  // the same place in all versions
}

bool PluginSession::wanted(std::uint64_t bits) const {
  return loaded_ && (static_cast<std::uint64_t>(mask().load(std::memory_order_relaxed)) & bits) != 0;
}

namespace {

template <class Descriptor>
void* start_with(void* context, Descriptor& descriptor) {
  void* handle = nullptr;
  static_cast<profiler::Plugin<Descriptor>*>(plugin().symbol)->start_event(context, &handle, &descriptor);
  return handle;
}

v4::CollDescr coll_of(const Op& op, std::uint64_t sequence) {
  return {sequence, op.name, op.send_buffer, op.receive_buffer, op.count, op.root, type_name(op.type), channels_count(),
          16, "RING", "SIMPLE"};
}

bool by_copy_engine(const Op& op) {
  return plugin().version >= 6 && !op.point_to_point() && setting("nccl.ce", 0) != 0;
}

v6::CeCollDescr ce_coll_of(const Op& op) {
  return {op.plugin_sequence, op.name, op.send_buffer, op.receive_buffer, op.count, op.root, type_name(op.type), "UC", false,
          1, 1, static_cast<std::uint32_t>(op.plugin_sequence), op.stream};
}

v4::P2pDescr p2p_of(const Op& op) {
  auto* buffer = op.kind == OpKind::receive ? op.receive_buffer : const_cast<void*>(op.send_buffer);
  return {op.name, buffer, type_name(op.type), op.count, op.root, channels_count()};
}

}  // namespace

// Fills what versions share and hands it over; a member that a version lays out differently is set by `fill`.
void* PluginSession::start(const Event& event) {
  const Op* op = event.op;
  const auto shared = [&](auto& descriptor) {
    descriptor.type = static_cast<decltype(descriptor.type)>(event.type);
    descriptor.parent = event.parent;
    descriptor.rank = comm_.rank;
    if (event.type == profiler::kProxyOp) {
      descriptor.proxy_op = {static_cast<int>(getpid()), event.channel, (comm_.rank + 1) % comm_.size,
                             static_cast<int>(setting("nccl.steps", 4)), 1 << 19, event.sends};
    } else if (event.type == profiler::kProxyStep) {
      descriptor.proxy_step = event.step;
    } else if (event.type == profiler::kKernelCh) {
      descriptor.kernel_ch = {event.channel, event.p_timer};
    }
  };
  const auto newer = [&](auto& descriptor) {
    shared(descriptor);
    if (event.type == profiler::kGroupApi) descriptor.group_api = {event.captured, event.depth};
    if (event.type == profiler::kKernelLaunch) descriptor.kernel_launch_stream = op->stream;
  };
  const auto coll_api = [&] {
    return v5::CollApiDescr{op->name, op->count, type_name(op->type), op->root, op->stream, event.captured};
  };
  const auto p2p_api = [&] { return v5::P2pApiDescr{op->name, op->count, type_name(op->type), op->stream, event.captured}; };
  const auto v5_members = [&](auto& descriptor) {
    newer(descriptor);
    if (event.type == profiler::kCollApi) descriptor.coll_api = coll_api();
    if (event.type == profiler::kP2pApi) descriptor.p2p_api = p2p_api();
    if (event.type == profiler::kColl) descriptor.coll = {coll_of(*op, op->plugin_sequence), event.parent_group};
    if (event.type == profiler::kP2p) descriptor.p2p = {p2p_of(*op), event.parent_group};
  };
  switch (plugin().version) {
    case 4: {
      v4::Descriptor descriptor = {};
      shared(descriptor);
      if (event.type == profiler::kColl) descriptor.coll = coll_of(*op, op->plugin_sequence);
      if (event.type == profiler::kP2p) descriptor.p2p = p2p_of(*op);
      void* handle = nullptr;
      static_cast<v4::Plugin*>(plugin().symbol)->start_event(context_, &handle, &descriptor);
      return handle;
    }
    case 5: {
      v5::Descriptor descriptor = {};
      v5_members(descriptor);
      return start_with(context_, descriptor);
    }
    case 6: {
      v6::Descriptor descriptor = {};
      v5_members(descriptor);
      if (event.type == profiler::kCeColl) descriptor.ce_coll = ce_coll_of(*op);
      return start_with(context_, descriptor);
    }
    default: {
      v7::Descriptor descriptor = {};
      newer(descriptor);
      if (event.type == profiler::kCollApi) descriptor.coll_api = {coll_api(), 0};
      if (event.type == profiler::kP2pApi) descriptor.p2p_api = {p2p_api(), 0};
      if (event.type == profiler::kColl) {
        descriptor.coll = {{coll_of(*op, op->plugin_sequence), event.parent_group}, nullptr, false, 0};
      }
      if (event.type == profiler::kP2p) descriptor.p2p = {{p2p_of(*op), event.parent_group}, 0};
      if (event.type == profiler::kCeColl) descriptor.ce_coll = {ce_coll_of(*op), 0};
      return start_with(context_, descriptor);
    }
  }
}

void PluginSession::state(void* handle, profiler::State what, std::uint64_t word) {
  if (handle == nullptr) return;
  profiler::StateArgs args = {};
  args.p_timer = word;
  static_cast<v5::Plugin*>(plugin().symbol)->record_event_state(handle, what, &args);  // the same place in all versions
}

void PluginSession::stop(void* handle) {
  if (handle != nullptr) static_cast<v5::Plugin*>(plugin().symbol)->stop_event(handle);
}

void PluginSession::group_api_begin(int depth, bool captured) {
  group_api_ = nullptr;
  if (plugin().version < 5 || !wanted(kApi | kTasks | profiler::kGroup)) return;
  Event event{profiler::kGroupApi};
  event.depth = depth;
  event.captured = captured;
  group_api_ = start(event);
}

void PluginSession::group_start_returned() { state(group_api_, profiler::kGroupStartApiStop, 0); }
void PluginSession::group_end_called() { state(group_api_, profiler::kGroupEndApiStart, 0); }

void PluginSession::group_api_end() {
  stop(group_api_);
  group_api_ = nullptr;
}

void PluginSession::api_begin(Op& op, bool captured) {
  if (plugin().version < 5 || !wanted(kApi | kTasks)) return;
  Event event{op.point_to_point() ? profiler::kP2pApi : profiler::kCollApi};
  event.parent = group_api_;
  event.op = &op;
  event.captured = captured;
  op.api_event = start(event);
}

void PluginSession::api_end(Op& op) { stop(op.api_event); }

void PluginSession::launch(std::vector<Op>& ops, bool captured) {
  if (!loaded_) return;
  // Captured operations do not count in the plugin's numbers, unless channels are timed.
  for (Op& op : ops) {
    const bool counts = !captured || wanted(profiler::kKernelCh);
    if (!op.point_to_point()) op.plugin_sequence = counts ? sequences_[op.name]++ : sequences_[op.name];
  }
  if (!captured) {
    void* group = wanted(profiler::kGroup | kTasks) ? start(Event{profiler::kGroup}) : nullptr;
    for (Op& op : ops) {
      op.group_event = group;
      task_begin(op);
    }
  }
  if (plugin().version >= 5 && wanted(profiler::kKernelLaunch)) {
    Event event{profiler::kKernelLaunch};
    event.parent = group_api_;
    event.op = &ops.front();
    stop(start(event));
  }
  if (captured) return;
  for (Op& op : ops) task_end(op);
  stop(ops.front().group_event);
}

void PluginSession::task_begin(Op& op) {
  op.task_event = nullptr;
  const bool copies = by_copy_engine(op);
  if (!wanted(copies ? std::uint64_t{profiler::kCeColl} : kTasks)) return;
  Event event{copies ? profiler::kCeColl : op.point_to_point() ? profiler::kP2p : profiler::kColl};
  event.parent = plugin().version >= 5 ? op.api_event : op.group_event;
  event.parent_group = op.group_event;
  event.op = &op;
  op.task_event = start(event);
}

void PluginSession::task_end(Op& op) { stop(op.task_event); }

void PluginSession::replay_begin(Op& op) {
  op.group_event = wanted(profiler::kGroup | kTasks) ? start(Event{profiler::kGroup}) : nullptr;
  task_begin(op);
}

void PluginSession::replay_end(Op& op) {
  task_end(op);
  stop(op.group_event);
}

void PluginSession::kernel_begin(const Op& op, std::int64_t begin_ns, std::vector<void*>* channels) {
  if (op.task_event == nullptr || !wanted(profiler::kKernelCh) || by_copy_engine(op)) return;
  for (std::uint8_t channel = 0; channel < channels_count(); ++channel) {
    Event event{profiler::kKernelCh};
    event.parent = op.task_event;
    event.channel = channel;
    event.p_timer = static_cast<std::uint64_t>(engine()->globaltimer(comm_.device, begin_ns));
    channels->push_back(start(event));
  }
}

void PluginSession::kernel_end(std::int64_t end_ns, const std::vector<void*>& channels) {
  static std::atomic<std::uint64_t> ended{0};
  const std::uint64_t number = ended.fetch_add(1) + 1;
  const auto every = [&](const char* key) {
    const auto n = static_cast<std::uint64_t>(setting(key, 0));
    return n != 0 && number % n == 0;
  };
  const bool raced = every("nccl.race"), lost = every("nccl.lost");
  for (std::size_t at = 0; at < channels.size(); ++at) {
    if (lost && at + 1 == channels.size()) continue;
    auto stamp = static_cast<std::uint64_t>(engine()->globaltimer(comm_.device, end_ns));
    if (raced) stamp = static_cast<std::uint64_t>(engine()->globaltimer(comm_.device, end_ns - 60'000'000'000));
    state(channels[at], profiler::kKernelChStop, stamp);
    stop(channels[at]);
  }
}

// One sending and one receiving proxy operation, in flight from the kernel's begin to its end. Until all ranks have entered
// the sender waits for credits and the receiver for data; then each step takes its part of the transfer.
void PluginSession::network_begin(const Op& op, Proxies* proxies) {
  if (op.task_event == nullptr || !wanted(profiler::kProxyOp | profiler::kProxyStep | profiler::kNetPlugin)) return;
  for (const bool sends : {true, false}) {
    Event event{profiler::kProxyOp};
    event.parent = op.task_event;
    event.sends = sends;
    proxies->operations[sends] = start(event);
    state(proxies->operations[sends], profiler::kProxyOpInProgress, 0);
  }
  step_begin(proxies, 0);
}

void PluginSession::step_begin(Proxies* proxies, int step) {
  if (!wanted(profiler::kProxyStep | profiler::kNetPlugin)) return;
  for (const bool sends : {true, false}) {
    Event event{profiler::kProxyStep};
    event.parent = proxies->operations[sends];
    event.step = step;
    proxies->steps[sends] = start(event);
  }
  state(proxies->steps[1], profiler::kSendGpuWait, 0);
  state(proxies->steps[1], profiler::kSendPeerWait, 0);
  state(proxies->steps[0], profiler::kRecvWait, 0);
}

void PluginSession::network_end(const Op& op, Proxies* proxies, std::int64_t last_ns, std::int64_t end_ns) {
  if (proxies->operations[0] == nullptr && proxies->operations[1] == nullptr) return;
  const int steps = std::max(1, static_cast<int>(setting("nccl.steps", 4)));
  const auto bytes = static_cast<std::uint64_t>(op.bytes(comm_.size) / steps);
  const auto gpu_ns = static_cast<std::int64_t>(setting("nccl.wait.gpu", 0)) / steps;
  for (int step = 0; step < steps; ++step) {
    const std::int64_t step_ns = last_ns + (end_ns - last_ns) * step / steps;
    const std::int64_t next_ns = last_ns + (end_ns - last_ns) * (step + 1) / steps;
    if (step > 0) step_begin(proxies, step);
    if (gpu_ns > 0) {
      state(proxies->steps[1], profiler::kSendGpuWait, 0);
      engine()->work_until(std::min(next_ns, step_ns + gpu_ns));
    }
    state(proxies->steps[1], profiler::kSendWait, bytes);
    engine()->work_until(next_ns);
    state(proxies->steps[0], profiler::kRecvFlushWait, bytes);
    state(proxies->steps[0], profiler::kRecvGpuWait, bytes);
    stop(std::exchange(proxies->steps[1], nullptr));
    stop(std::exchange(proxies->steps[0], nullptr));
  }
  stop(proxies->operations[1]);
  stop(proxies->operations[0]);
}

}  // namespace fake
