// What all versions of NCCL's profiler plugin interface share. SPDX-License-Identifier: Apache-2.0
//
// A plugin is a structure ncclProfiler_vN of six words; NCCL takes the highest version it knows. Our own words: event types,
// states and the structures of nccl_profiler_v4.h to v7.h, whose offsets are asserted. Callbacks come from several threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::nccl::profiler {

using Result = int;  // ncclResult_t

// Event types: bits of the activation mask and of Descriptor::type.
enum Event : std::uint64_t {
  kGroup = 1 << 0,
  kColl = 1 << 1,
  kP2p = 1 << 2,
  kProxyOp = 1 << 3,
  kProxyStep = 1 << 4,
  kProxyCtrl = 1 << 5,
  kKernelCh = 1 << 6,
  kNetPlugin = 1 << 7,
  kGroupApi = 1 << 8,       // v5
  kCollApi = 1 << 9,        // v5
  kP2pApi = 1 << 10,        // v5
  kKernelLaunch = 1 << 11,  // v5
  kCeColl = 1 << 12,        // v6
  kCeSync = 1 << 13,        // v6
  kCeBatch = 1 << 14,       // v6
  kKernelPhase = 1 << 15,   // v7
};

// States of recordEventState.
enum State : int {
  kSendGpuWait = 8,
  kSendWait = 9,
  kRecvWait = 10,
  kRecvFlushWait = 11,
  kRecvGpuWait = 12,
  kCtrlAppendEnd = 18,
  kProxyOpInProgress = 19,
  kSendPeerWait = 20,
  kNetPluginUpdate = 21,
  kKernelChStop = 22,
  kGroupStartApiStop = 23,
  kGroupEndApiStart = 24,
  kKernelPhaseStop = 31,  // v7; carries StateArgs::p_timer as kKernelChStop does
};

// Argument of recordEventState, the same in all versions: one word whose meaning follows from the state.
union StateArgs {
  std::size_t transfer_bytes;  // proxy steps
  int appended_count;          // kCtrlAppendEnd
  void* data;                  // kNetPluginUpdate
  std::uint64_t p_timer;       // kKernelChStop, kKernelPhaseStop: %globaltimer
};
static_assert(sizeof(StateArgs) == 8);

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

// Parts of descriptors that never changed.
struct ProxyOpDescr {
  int pid;  // of the process that began the parent: with PXN another process, and the parent is not ours to touch
  std::uint8_t channel;
  int peer, steps_count, chunk_bytes, is_send;
};
struct KernelChDescr {
  std::uint8_t channel;
  std::uint64_t p_timer;
};
struct NetPluginDescr {
  std::int64_t id;
  void* data;
};
static_assert(sizeof(ProxyOpDescr) == 24 && offsetof(ProxyOpDescr, is_send) == 20);
static_assert(offsetof(KernelChDescr, p_timer) == 8);

// From v5 on the communicator's id follows the first argument of init; v4 has it later.
template <class Descriptor>
struct Plugin {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, int* mask, const char* comm_name, int nodes_count, int size,
                 int rank, Logger logger);
  Result (*start_event)(void* context, void** handle, Descriptor* descriptor);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, State state, StateArgs* args);
  Result (*finalize)(void* context);
};

}  // namespace stashtrace::nccl::profiler
