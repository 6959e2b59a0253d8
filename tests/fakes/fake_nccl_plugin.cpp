// How the NCCL double loads and calls a profiler plugin, versions 4 to 7. SPDX-License-Identifier: Apache-2.0
//
// Rules of loading (2.27.7 src/plugin/plugin_open.cc): NCCL_PROFILER_PLUGIN is a file, a name ("x" is also
// libnccl-profiler-x.so), STATIC_PLUGIN (symbols of the program and of what is preloaded) or "none"; unset,
// libnccl-profiler.so is tried. The newest version that this NCCL knows is taken. Calls of one operation:
//   API       GroupApi [ CollApi | P2pApi ]... GroupStartApiStop GroupEndApiStart           v5 on, caller's thread
//   launch    KernelLaunch; Group [ Coll start ]... [ P2p start ]... [ Coll | P2p stop ]... Group stop
//   device    KernelCh start (globaltimer) ... ProxyOp, ProxyStep and their states ... KernelChStop   proxy's thread
// So a task is stopped before its channels begin: its stop says "enqueued". The line "launch" is hostStreamPlanTask
// (2.27.7 src/enqueue.cc): on the launching thread behind the launch, or in a host function of the captured graph, at
// each of its launches and below an API event that has long been stopped. It is a host function where a plan is
// persistent and has proxy operations, and asking for KernelCh gives it one (2.27.7 src/proxy.cc:760, SaveProxyProfiler,
// and src/enqueue.cc:1704, ncclLaunchPrepare; from 2.31 on ncclLaunchPrepare asks for plan->hasProfilerOps). Without
// one, a captured task is told of once, when it is captured. Settings:
//   nccl.channels 2    nccl.race N   of every Nth operation KernelCh stops with a stamp before its start (before 2.31)
//   nccl.lost N        of every Nth operation the stop of the last channel never comes
//   nccl.collnet 1     collectives run inside the network: a task says 0 channels, before 2.31 (src/scheduler or src/enqueue.cc,
//                      scheduleCollTasksToPlan: task->nChannels is set for the others alone), and has them nevertheless
//   nccl.ras N         from 2.31 on, behind the Nth operation a RAS client takes KernelCh out of the mask, and gives it back
//                      behind the 2Nth
//   nccl.ce 1          collectives are moved by copy engines (2.29 on): CeColl in place of Coll, no channels
//   nccl.pxn 1         network sends run in the proxy of another process: a context and a parent of that process
//   nccl.steps 4, nccl.wait.gpu   proxy steps of a network operation, and how long all of them wait for the device
#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <string_view>
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

// 2.32 src/plugin/profiler.cc, ncclProfilerSetRasOverride: the word is replaced, and again behind each later init.
std::atomic<int>& override_mask() {
  static auto* const word = new std::atomic<int>(-1);
  return *word;
}
void ras_client() {
  static std::atomic<std::uint64_t> operations{0};
  const auto behind = static_cast<std::uint64_t>(setting("nccl.ras", 0));
  if (behind == 0 || nccl_version() < 23100) return;
  const std::uint64_t number = operations.fetch_add(1) + 1;
  if (number != behind && number != 2 * behind) return;
  const int stamps = static_cast<int>(profiler::kKernelCh), now = mask().load();
  override_mask().store(number == behind ? now & ~stamps : now | stamps);
  mask().store(override_mask());
}

void log_nothing(int, unsigned long, const char*, int, const char*, ...) {}

// 2.27.7 src/misc/utils.cc, ncclDatatypeToString: has no ncclUint8, in any release up to 2.32.
const char* type_name(int type) {
  static const char* const names[] = {"ncclInt8", "Unknown", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64",
                                      "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
  return type >= 0 && type < 10 ? names[type] : "Unknown";
}

constexpr std::uint64_t kDevice = profiler::kProxyOp | profiler::kProxyStep | profiler::kKernelCh | profiler::kNetPlugin;
constexpr std::uint64_t kTasks = profiler::kColl | profiler::kP2p | kDevice;
constexpr std::uint64_t kApi = profiler::kGroupApi | profiler::kCollApi | profiler::kP2pApi | profiler::kKernelLaunch;

// 2.28.3 src/plugin/profiler.cc: ncclProfilerApiState is of the thread, so that all communicators of a group share it.
thread_local void* t_group_api = nullptr;

std::uint8_t channels_count() { return static_cast<std::uint8_t>(setting("nccl.channels", 2)); }
bool collnet() { return setting("nccl.collnet", 0) != 0; }

}  // namespace

struct PluginSession::Event {
  std::uint64_t type = 0;
  void *parent = nullptr, *parent_group = nullptr;
  const Task* task = nullptr;
  bool captured = false;
  int depth = 0, step = 0;
  std::uint8_t channel = 0;
  std::uint64_t p_timer = 0;
  bool sends = false, elsewhere = false;
  int peer = -1;
};

void PluginSession::open() {
  const Plugin& found = plugin();
  if (found.symbol == nullptr) return;
  const char* name = comm_.comm_name.empty() ? nullptr : comm_.comm_name.c_str();
  auto* word = reinterpret_cast<int*>(&mask());
  const auto logger = static_cast<profiler::Logger>(log_nothing);
  int result = 0;
  if (found.version == 4) {
    result = static_cast<v4::Plugin*>(found.symbol)->init(&context_, word, name, comm_.hash, nodes_of(comm_), comm_.size,
                                                          comm_.rank, logger);
  } else {  // v5 to v7 have the same init
    result = static_cast<v5::Plugin*>(found.symbol)->init(&context_, comm_.hash, word, name, nodes_of(comm_), comm_.size,
                                                          comm_.rank, logger);
  }
  loaded_ = result == nccl::kSuccess;
  if (override_mask() >= 0) mask().store(override_mask());
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

// 2.27.7 src/enqueue.cc:2360, taskAppend, and from 2.28.3 on collTaskAppend: all-gathers and broadcasts are counted in
// bytes from there on; so does ceCollTaskAppend. The API event has the count of the call.
bool in_bytes(const Task& task) {
  return std::string_view(task.func) == "AllGather" || std::string_view(task.func) == "Broadcast";
}
std::size_t task_count(const Task& task) {
  return in_bytes(task) ? task.count * static_cast<std::size_t>(nccl::bytes_of(task.type)) : task.count;
}
const char* task_type(const Task& task) { return in_bytes(task) ? "ncclInt8" : type_name(task.type); }

v4::CollDescr coll_of(const Task& task) {
  return {task.sequence, task.func, task.send_buffer, task.receive_buffer, task_count(task), task.peer, task_type(task),
          collnet() && nccl_version() < 23100 ? std::uint8_t{0} : channels_count(), 16,
          collnet() ? "COLLNET_DIRECT" : "RING", "SIMPLE"};
}

v6::CeCollDescr ce_coll_of(const Task& task) {
  return {task.sequence, task.func, task.send_buffer, task.receive_buffer, task_count(task), task.peer, task_type(task),
          "UC", false, 0, 0, static_cast<std::uint32_t>(task.sequence), task.stream};
}

v4::P2pDescr p2p_of(const Task& task) {
  auto* buffer = task.receive_buffer != nullptr ? task.receive_buffer : const_cast<void*>(task.send_buffer);
  return {task.func, buffer, type_name(task.type), task.count, task.peer, channels_count()};
}

// Of another process: what PXN hands over with an operation (2.27.7 src/enqueue.cc, uploadProxyOps: op->profilerContext
// and op->taskEventHandle; src/proxy.cc hands them to the proxy that owns the connection, whichever process that is in).
constexpr std::uintptr_t kElsewhere = std::uintptr_t{1} << 36;

}  // namespace

// Fills what versions share and hands it over; a member that a version lays out differently is set by `fill`.
void* PluginSession::start(const Event& event) {
  const Task* task = event.task;
  void* const context = event.elsewhere ? static_cast<char*>(context_) + kElsewhere : context_;
  const auto shared = [&](auto& descriptor) {
    descriptor.type = static_cast<decltype(descriptor.type)>(event.type);
    descriptor.parent = event.parent;
    // 2.27.7 src/plugin/profiler.cc: tasks and proxies name their rank; groups, KernelCh and, before 2.31, API events do not.
    const bool ranked = event.type == profiler::kColl || event.type == profiler::kP2p ||
                        event.type == profiler::kCeColl || event.type == profiler::kProxyOp ||
                        event.type == profiler::kProxyStep;
    descriptor.rank = ranked ? comm_.rank : 0;
    if (event.type == profiler::kProxyOp) {
      descriptor.proxy_op = {static_cast<int>(getpid()) + event.elsewhere, event.channel, event.peer,
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
    if (event.type == profiler::kKernelLaunch) descriptor.kernel_launch_stream = task->stream;
  };
  // 2.28.3 src/plugin/profiler.cc, ncclProfilerStartCollApiEvent and ...P2pApiEvent: count and type of the call; a message's
  // API event does not say to whom.
  const auto coll_api = [&] {
    return v5::CollApiDescr{task->func, task->count, type_name(task->type), task->peer, task->stream, event.captured};
  };
  const auto p2p_api = [&] {
    return v5::P2pApiDescr{task->func, task->count, type_name(task->type), task->stream, event.captured};
  };
  const auto v5_members = [&](auto& descriptor) {
    newer(descriptor);
    if (event.type == profiler::kCollApi) descriptor.coll_api = coll_api();
    if (event.type == profiler::kP2pApi) descriptor.p2p_api = p2p_api();
    if (event.type == profiler::kColl) descriptor.coll = {coll_of(*task), event.parent_group};
    if (event.type == profiler::kP2p) descriptor.p2p = {p2p_of(*task), event.parent_group};
  };
  switch (plugin().version) {
    case 4: {
      v4::Descriptor descriptor = {};
      shared(descriptor);
      if (event.type == profiler::kColl) descriptor.coll = coll_of(*task);
      if (event.type == profiler::kP2p) descriptor.p2p = p2p_of(*task);
      void* handle = nullptr;
      static_cast<v4::Plugin*>(plugin().symbol)->start_event(context, &handle, &descriptor);
      return handle;
    }
    case 5: {
      v5::Descriptor descriptor = {};
      v5_members(descriptor);
      return start_with(context, descriptor);
    }
    case 6: {
      v6::Descriptor descriptor = {};
      v5_members(descriptor);
      if (event.type == profiler::kCeColl) descriptor.ce_coll = ce_coll_of(*task);
      return start_with(context, descriptor);
    }
    default: {
      v7::Descriptor descriptor = {};
      newer(descriptor);
      if (event.type == profiler::kCollApi) descriptor.coll_api = {coll_api(), 0};
      if (event.type == profiler::kP2pApi) descriptor.p2p_api = {p2p_api(), 0};
      if (event.type == profiler::kColl) {
        descriptor.coll = {{coll_of(*task), event.parent_group}, nullptr, false, 0};
      }
      if (event.type == profiler::kP2p) descriptor.p2p = {{p2p_of(*task), event.parent_group}, 0};
      if (event.type == profiler::kCeColl) descriptor.ce_coll = {ce_coll_of(*task), 0};
      return start_with(context, descriptor);
    }
  }
}

namespace {

void tell_state_alone(void* handle, profiler::State what, profiler::StateArgs* args = nullptr) {
  if (handle != nullptr)  // the same place in all versions
    static_cast<v5::Plugin*>(plugin().symbol)->record_event_state(handle, what, args);
}
void tell_state(void* handle, profiler::State what, std::uint64_t word) {
  profiler::StateArgs args = {};
  args.p_timer = word;
  tell_state_alone(handle, what, &args);
}

}  // namespace

void PluginSession::stop(void* handle) {
  if (handle != nullptr) static_cast<v5::Plugin*>(plugin().symbol)->stop_event(handle);
}

// 2.28.3 src/plugin/profiler.cc, ncclProfilerStartGroupApiEvent: anything that is wanted needs it.
void PluginSession::group_api_begin(int depth, bool captured) {
  t_group_api = nullptr;
  if (plugin().version < 5 || !wanted(kApi | kTasks | profiler::kGroup | profiler::kCeColl)) return;
  Event event{profiler::kGroupApi};
  event.depth = depth;
  event.captured = captured;
  t_group_api = start(event);
}

// 2.28.3 src/plugin/profiler.cc, ncclProfilerRecordGroupApiEventState: without arguments.
void group_start_returned() { tell_state_alone(t_group_api, profiler::kGroupStartApiStop); }
void group_end_called() { tell_state_alone(t_group_api, profiler::kGroupEndApiStart); }

// 2.28.3 src/group.cc, ncclGroupEndInternal: on the caller's thread, whether or not the launch is another thread's.
void group_api_end() {
  if (t_group_api != nullptr) static_cast<v5::Plugin*>(plugin().symbol)->stop_event(t_group_api);
  t_group_api = nullptr;
}

// The tasks of a call, each with its API event. The mask is read anew for each: 2.27.7 src/enqueue.cc:2366, from 2.28.3 on
// ncclProfilerStartGroupApiEvent, which each append calls. So a plugin that changes it is obeyed from the next call on.
void PluginSession::append(Op& op, bool captured) {
  const auto add = [&](const char* func, bool message, int peer, const void* from, void* to) {
    Task task;
    task.func = func;
    task.point_to_point = message;
    task.peer = peer;
    task.send_buffer = from;
    task.receive_buffer = to;
    task.count = op.count;
    task.type = op.type;
    task.stream = op.stream;
    if (loaded_) {
      task.mask = mask().load(std::memory_order_relaxed);
      task.group_api = t_group_api;
    }
    if (plugin().version >= 5 && wanted(message ? kApi | kTasks : kApi | kTasks | profiler::kCeColl)) {
      Event event{message ? profiler::kP2pApi : profiler::kCollApi};
      event.parent = t_group_api;
      event.task = &task;
      event.captured = captured;
      task.api_event = start(event);
      stop(task.api_event);
    }
    op.tasks.push_back(task);
  };
  const auto block = op.count * static_cast<std::size_t>(nccl::bytes_of(op.type));
  const auto part_of = [&](const void* buffer, int peer) {
    return const_cast<char*>(static_cast<const char*>(buffer)) + block * static_cast<std::size_t>(peer);
  };
  const auto send = [&](const void* from, int peer) { add("Send", true, peer, from, nullptr); };
  const auto receive = [&](void* to, int peer) { add("Recv", true, peer, nullptr, to); };
  const bool copies = copied(op);
  // 2.28.3 src/enqueue.cc, taskAppend: without copy engines these are messages, to and from oneself too.
  if (op.kind == OpKind::all_to_all && !copies) {
    for (int peer = 0; peer < comm_.size; ++peer) {
      send(part_of(op.send_buffer, peer), peer);
      receive(part_of(op.receive_buffer, peer), peer);
    }
  } else if (op.kind == OpKind::gather && !copies) {
    send(op.send_buffer, op.root);
    for (int peer = 0; peer < comm_.size && comm_.rank == op.root; ++peer) receive(part_of(op.receive_buffer, peer), peer);
  } else if (op.kind == OpKind::scatter && !copies) {
    for (int peer = 0; peer < comm_.size && comm_.rank == op.root; ++peer) send(part_of(op.send_buffer, peer), peer);
    receive(op.receive_buffer, op.root);
  } else if (op.point_to_point()) {
    op.kind == OpKind::send ? send(op.send_buffer, op.root) : receive(op.receive_buffer, op.root);
  } else {
    add(op.name, false, op.root, op.send_buffer, op.receive_buffer);
  }
  ras_client();
}

void PluginSession::launch(Plan& plan) {
  if (!loaded_) return;
  for (Task* task : plan.copies) copy(*task);
  std::vector<Task*> all = plan.collectives;
  all.insert(all.end(), plan.messages.begin(), plan.messages.end());
  // 2.28.3 src/enqueue.cc, ncclLaunchKernel: around the launch, which is before the plan is posted.
  const auto first = std::find_if(all.begin(), all.end(), [](const Task* task) { return task->mask != 0; });
  if (plugin().version >= 5 && first != all.end() && ((*first)->mask & profiler::kKernelLaunch) != 0) {
    Event event{profiler::kKernelLaunch};
    event.parent = (*first)->group_api;
    event.task = *first;
    stop(start(event));
  }
  // 2.27.7 src/proxy.cc, SaveProxyProfiler and incWorkCounter: a plan that is not persistent takes its numbers now; what
  // asks for no stamps is counted once, now, but for messages to oneself (2.27.7 src/enqueue.cc:882, addP2pToPlan: nProxyOps
  // is 0) and for broadcasts that became an all-gather (2.29.2 src/scheduler/allgatherv_sched.cc).
  if (release() >= 231) return;
  const std::lock_guard lock(stamps_mutex_);
  std::size_t counted = plan.works;
  for (Task* task : all) {
    const bool own = task->point_to_point && task->peer == comm_.rank;
    const bool stamped = (task->mask & profiler::kKernelCh) != 0 && task->told;
    if (own || task->all_gather_v || (stamped && plan.persistent)) continue;
    if (task->work != counted) ++host_work_;
    counted = task->work;
    task->expected = host_work_;
  }
}

// 2.27.7 src/enqueue.cc, hostStreamPlanTask.
void PluginSession::post(Plan& plan) {
  if (!loaded_) return;
  std::vector<Task*> all = plan.collectives;
  all.insert(all.end(), plan.messages.begin(), plan.messages.end());
  // 2.27.7 src/plugin/profiler.cc, ncclProfilerStartGroupEvent: by the first task that anything is wanted of.
  const auto first = std::find_if(all.begin(), all.end(), [](const Task* task) { return task->mask != 0 && task->told; });
  if (first != all.end() && (static_cast<std::uint64_t>((*first)->mask) & (profiler::kGroup | kTasks)) != 0)
    plan.group_event = start(Event{profiler::kGroup});
  for (Task* task : all) start_task(plan, *task);
  {
    // 2.27.7 src/proxy.cc, SaveProxyProfiler: a persistent plan takes its numbers at each launch of its graph.
    // 2.31.0 src/plugin/profiler.cc, ncclProfilerPostPlanWork: every plan does here, for what asks for stamps alone.
    const std::lock_guard lock(stamps_mutex_);
    std::size_t counted = plan.works;
    for (Task* task : all) {
      const bool own = task->point_to_point && task->peer == comm_.rank;
      if ((task->mask & profiler::kKernelCh) == 0 || !task->told || (own && release() < 231)) continue;
      if (plan.persistent || release() >= 231) {
        if (task->work != counted) ++host_work_;
        counted = task->work;
        task->expected = host_work_;
      }
      waiting_.push_back({task->task_event, task->expected, {}, false});
    }
  }
  for (Task* task : all) stop(task->task_event);
  stop(plan.group_event);
}

void PluginSession::start_task(Plan& plan, Task& task) {
  const auto mask_of_it = static_cast<std::uint64_t>(task.mask);
  const std::uint64_t kinds = kDevice | (task.point_to_point ? profiler::kP2p : profiler::kColl);
  task.task_event = nullptr;
  task.sequence = sequences_[task.func];
  // 2.27.7 src/plugin/profiler.cc:240, ncclProfilerStartTaskEvents: if (plan->groupEventHandle). From 2.28.3 on without it.
  const bool grouped = plugin().version >= 5 || plan.group_event != nullptr;
  if (task.told && grouped && (mask_of_it & kinds) != 0) {
    Event event{task.point_to_point ? profiler::kP2p : profiler::kColl};
    event.parent = plugin().version >= 5 ? task.api_event : plan.group_event;
    event.parent_group = plan.group_event;
    event.task = &task;
    task.task_event = start(event);
  }
  // The same function: captured collectives do not count in the plugin's numbers, unless channels are timed.
  if (!task.point_to_point && (!plan.persistent || (mask_of_it & profiler::kKernelCh) != 0)) ++sequences_[task.func];
}

// 2.29.2 src/ce_coll.cc, ncclLaunchCeColl: while it is enqueued, so once for a graph; by the mask of that moment.
void PluginSession::copy(Task& task) {
  if (!wanted(profiler::kCeColl | profiler::kCeSync | profiler::kCeBatch)) return;
  task.sequence = copies_++;
  Event event{profiler::kCeColl};
  event.parent = task.api_event;
  event.task = &task;
  stop(start(event));
}

// 2.27.7 src/device/common.h:347: the counter of a channel grows by every work, and stamps are filed under it.
PluginSession::Running PluginSession::kernel_begins(const Plan& plan, std::int64_t begin_ns) {
  if (!loaded_) return {};
  const std::lock_guard lock(stamps_mutex_);
  Running running{device_work_, std::vector<std::int64_t>(plan.works, begin_ns)};
  device_work_ += plan.works;
  const std::uint64_t first = plan.works > kStamps ? plan.works - kStamps : 0;
  for (std::uint64_t work = first; work < plan.works; ++work) {
    Stamp& stamp = stamps_[(running.base + 1 + work) % kStamps];
    stamp.begun = running.base + 1 + work;
    stamp.begin_ns = begin_ns;
  }
  look_for_stamps();
  return running;
}

void PluginSession::operation_ends(Running& running, const Op& op, std::int64_t end_ns) {
  for (const Task& task : op.tasks)
    if (task.work < running.ends_ns.size()) running.ends_ns[task.work] = std::max(running.ends_ns[task.work], end_ns);
}

void PluginSession::kernel_ends(const Running& running) {
  if (!loaded_) return;
  const std::lock_guard lock(stamps_mutex_);
  const std::uint64_t works = running.ends_ns.size();
  for (std::uint64_t work = works > kStamps ? works - kStamps : 0; work < works; ++work) {
    Stamp& stamp = stamps_[(running.base + 1 + work) % kStamps];
    stamp.ended = running.base + 1 + work;
    stamp.end_ns = running.ends_ns[work];
  }
  look_for_stamps();
}

// 2.27.7 src/transport/profiler.cc, profilerProxyProgress (from 2.31.0 on src/plugin/profiler.cc, profilerProgressOps): what
// stands at the counter's place is taken if that counter was reached or passed, whichever operation's it is.
void PluginSession::look_for_stamps() {
  std::erase_if(waiting_, [&](Waiting& one) {
    const Stamp& stamp = stamps_[one.expected % kStamps];
    if (!one.started && one.expected <= stamp.begun) start_channels(one);
    if (!one.started || one.expected > stamp.ended) return false;
    stop_channels(one);
    return true;
  });
}

void PluginSession::start_channels(Waiting& one) {
  one.started = true;
  for (std::uint8_t channel = 0; channel < channels_count(); ++channel) {
    Event event{profiler::kKernelCh};
    event.parent = one.task_event;
    event.channel = channel;
    event.p_timer =
        static_cast<std::uint64_t>(engine()->globaltimer(comm_.device, stamps_[one.expected % kStamps].begin_ns));
    one.channels.push_back(start(event));
  }
}

void PluginSession::stop_channels(const Waiting& one) {
  static std::atomic<std::uint64_t> ended{0};
  const std::uint64_t number = ended.fetch_add(1) + 1;
  const auto every = [&](const char* key) {
    const auto n = static_cast<std::uint64_t>(setting(key, 0));
    return n != 0 && number % n == 0;
  };
  const bool raced = every("nccl.race"), lost = every("nccl.lost");
  const std::int64_t end_ns = stamps_[one.expected % kStamps].end_ns;
  for (std::size_t at = 0; at < one.channels.size(); ++at) {
    if (lost && at + 1 == one.channels.size()) continue;
    auto stamp = static_cast<std::uint64_t>(engine()->globaltimer(comm_.device, end_ns));
    if (raced) stamp = static_cast<std::uint64_t>(engine()->globaltimer(comm_.device, end_ns - 60'000'000'000));
    tell_state(one.channels[at], profiler::kKernelChStop, stamp);
    stop(one.channels[at]);
  }
}

// A sending and a receiving proxy operation of a collective, one of a message, in flight from the kernel's begin to its end.
// Until all ranks have entered the sender waits for credits and the receiver for data; then each step takes its part of the
// transfer. A message to oneself has none (2.27.7 src/proxy.cc, ncclProxySaveOp: op->root == comm->rank).
void PluginSession::network_begin(const Op& op, Proxies* proxies) {
  if (op.tasks.empty()) return;
  const Task& task = op.tasks.front();
  const bool one_way = op.tasks.size() == 1 && task.point_to_point;
  if (!task.told || (one_way && task.peer == comm_.rank)) return;
  if (!wanted(profiler::kProxyOp | profiler::kProxyStep | profiler::kNetPlugin)) return;
  proxies->elsewhere = setting("nccl.pxn", 0) != 0;
  for (const bool sends : {true, false}) {
    if (one_way && sends != (std::string_view(task.func) == "Send")) continue;
    Event event{profiler::kProxyOp};
    event.elsewhere = proxies->elsewhere && sends;
    event.parent = event.elsewhere ? reinterpret_cast<void*>(0x123456) : task.task_event;
    event.sends = sends;
    event.peer = one_way ? task.peer : (comm_.rank + 1) % comm_.size;
    proxies->operations[sends] = start(event);
    tell_state(proxies->operations[sends], profiler::kProxyOpInProgress, 0);
  }
  step_begin(proxies, 0);
}

void PluginSession::step_begin(Proxies* proxies, int step) {
  if (!wanted(profiler::kProxyStep | profiler::kNetPlugin)) return;
  for (const bool sends : {true, false}) {
    // 2.27.7 src/plugin/profiler.cc, ncclProfilerStartSendProxyStepEvent: if (sub->opEventHandle).
    if (proxies->operations[sends] == nullptr) continue;
    Event event{profiler::kProxyStep};
    event.elsewhere = proxies->elsewhere && sends;
    event.parent = proxies->operations[sends];
    event.step = step;
    proxies->steps[sends] = start(event);
  }
  tell_state(proxies->steps[1], profiler::kSendGpuWait, 0);
  tell_state(proxies->steps[1], profiler::kSendPeerWait, 0);
  tell_state(proxies->steps[0], profiler::kRecvWait, 0);
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
      tell_state(proxies->steps[1], profiler::kSendGpuWait, 0);
      engine()->work_until(std::min(next_ns, step_ns + gpu_ns));
    }
    tell_state(proxies->steps[1], profiler::kSendWait, bytes);
    engine()->work_until(next_ns);
    tell_state(proxies->steps[0], profiler::kRecvFlushWait, bytes);
    tell_state(proxies->steps[0], profiler::kRecvGpuWait, bytes);
    stop(std::exchange(proxies->steps[1], nullptr));
    stop(std::exchange(proxies->steps[0], nullptr));
  }
  stop(proxies->operations[1]);
  stop(proxies->operations[0]);
}

}  // namespace fake
