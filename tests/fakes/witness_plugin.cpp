// A profiler plugin that writes down what it is called with, one line a call, to FAKE_PLUGIN_LOG. SPDX-License-Identifier: Apache-2.0
//
// Exports versions 4 to 7, so NCCL takes the newest that it knows; the first line tells which. FAKE_PLUGIN_MASK is the
// activation mask, all bits by default. A handle is a number of the event; a stop names it.
#include <atomic>
#include <cstdio>
#include <mutex>

#include "abi/nccl_profiler_v7.h"
#include "script.h"

using namespace stashtrace::nccl::profiler;

namespace {

std::mutex g_mutex;
std::uintptr_t g_last = 0;

template <class... Values>
void told(const char* format, Values... values) {
  const std::lock_guard lock(g_mutex);
  const char* path = getenv("FAKE_PLUGIN_LOG");
  std::FILE* file = path == nullptr ? nullptr : std::fopen((std::string(path) + "-" + std::to_string(fake::own_rank())).c_str(), "a");
  if (file == nullptr) return;
  std::fprintf(file, format, values...);
  std::fputc('\n', file);
  std::fclose(file);
}

const char* name_of(std::uint64_t type) {
  switch (type) {
    case kGroup: return "Group";
    case kColl: return "Coll";
    case kP2p: return "P2p";
    case kProxyOp: return "ProxyOp";
    case kProxyStep: return "ProxyStep";
    case kKernelCh: return "KernelCh";
    case kGroupApi: return "GroupApi";
    case kCollApi: return "CollApi";
    case kP2pApi: return "P2pApi";
    case kKernelLaunch: return "KernelLaunch";
    case kCeColl: return "CeColl";
    default: return "?";
  }
}

template <int version, class Descriptor>
Result start(void*, void** handle, Descriptor* descriptor) {
  std::uintptr_t number = 0;
  {
    const std::lock_guard lock(g_mutex);
    number = ++g_last;
  }
  *handle = reinterpret_cast<void*>(number);
  const auto parent = reinterpret_cast<std::uintptr_t>(descriptor->parent);
  const auto type = static_cast<std::uint64_t>(descriptor->type);
  if (type == kKernelCh) {
    told("start %s %zu parent %zu timer %llu", name_of(type), number, parent,
         static_cast<unsigned long long>(descriptor->kernel_ch.p_timer));
  } else if (type == kColl) {
    const auto& coll = reinterpret_cast<const v4::CollDescr&>(descriptor->coll);  // the head is the same in all versions
    told("start %s %zu parent %zu %s sequence %llu count %zu", name_of(type), number, parent, coll.func,
         static_cast<unsigned long long>(coll.sequence), coll.count);
  } else if (type == kP2p) {
    const auto& p2p = reinterpret_cast<const v4::P2pDescr&>(descriptor->p2p);  // the same in all versions
    told("start %s %zu parent %zu %s peer %d", name_of(type), number, parent, p2p.func, p2p.peer);
  } else {
    told("start %s %zu parent %zu", name_of(type), number, parent);
  }
  return 0;
}

Result stop(void* handle) {
  told("stop %zu", reinterpret_cast<std::uintptr_t>(handle));
  return 0;
}

Result state(void* handle, State what, StateArgs* args) {
  told("state %zu %d %llu", reinterpret_cast<std::uintptr_t>(handle), static_cast<int>(what),
       static_cast<unsigned long long>(args == nullptr ? 0 : args->p_timer));
  return 0;
}

Result finalize(void*) {
  told("finalize");
  return 0;
}

template <int version>
Result init(void** context, std::uint64_t id, int* mask, const char* name, int nodes, int size, int rank, Logger) {
  *context = &g_last;
  const char* wanted = getenv("FAKE_PLUGIN_MASK");  // NCCL reads the word from all its threads
  std::atomic_ref<int>(*mask).store(wanted == nullptr ? 0xffff : atoi(wanted));
  told("init v%d comm %llx name %s nodes %d size %d rank %d", version, static_cast<unsigned long long>(id),
       name == nullptr ? "-" : name, nodes, size, rank);
  return 0;
}

Result init_v4(void** context, int* mask, const char* name, std::uint64_t id, int nodes, int size, int rank, Logger logger) {
  return init<4>(context, id, mask, name, nodes, size, rank, logger);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED v4::Plugin ncclProfiler_v4;
EXPORTED v5::Plugin ncclProfiler_v5;
EXPORTED v6::Plugin ncclProfiler_v6;
EXPORTED v7::Plugin ncclProfiler_v7;
v4::Plugin ncclProfiler_v4 = {"witness", init_v4, start<4, v4::Descriptor>, stop, state, finalize};
v5::Plugin ncclProfiler_v5 = {"witness", init<5>, start<5, v5::Descriptor>, stop, state, finalize};
v6::Plugin ncclProfiler_v6 = {"witness", init<6>, start<6, v6::Descriptor>, stop, state, finalize};
v7::Plugin ncclProfiler_v7 = {"witness", init<7>, start<7, v7::Descriptor>, stop, state, finalize};
