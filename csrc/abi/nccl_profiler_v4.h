// NCCL's profiler plugin interface, version 4: NCCL 2.27. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "abi/nccl_profiler.h"

namespace stashtrace::nccl::profiler::v4 {

struct CollDescr {
  std::uint64_t sequence;  // per communicator and function
  const char* func;
  const void* send_buffer;
  void* receive_buffer;
  std::size_t count;
  int root;
  const char* datatype;
  std::uint8_t channels_count, warps_count;
  const char *algorithm, *protocol;
};
struct P2pDescr {
  const char* func;
  void* buffer;
  const char* datatype;
  std::size_t count;
  int peer;
  std::uint8_t channels_count;
};
struct Descriptor {
  std::uint8_t type;
  void* parent;  // of Coll and P2p: the group
  int rank;
  union {
    CollDescr coll;
    P2pDescr p2p;
    ProxyOpDescr proxy_op;
    int proxy_step;
    KernelChDescr kernel_ch;
    NetPluginDescr net_plugin;
  };
};
static_assert(sizeof(Descriptor) == 104 && offsetof(Descriptor, parent) == 8 && offsetof(Descriptor, rank) == 16);
static_assert(offsetof(Descriptor, coll) == 24 && offsetof(Descriptor, kernel_ch.p_timer) == 32);
static_assert(offsetof(CollDescr, root) == 40 && offsetof(CollDescr, channels_count) == 56);
static_assert(offsetof(CollDescr, algorithm) == 64 && offsetof(P2pDescr, peer) == 32);

struct Plugin {
  const char* name;
  Result (*init)(void** context, int* mask, const char* comm_name, std::uint64_t comm_id, int nodes_count, int size,
                 int rank, Logger logger);
  Result (*start_event)(void* context, void** handle, Descriptor* descriptor);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, State state, StateArgs* args);
  Result (*finalize)(void* context);
};
static_assert(sizeof(Plugin) == 48);

}  // namespace stashtrace::nccl::profiler::v4
