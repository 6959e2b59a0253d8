// NCCL's profiler plugin interface, version 5: NCCL 2.28.3. SPDX-License-Identifier: Apache-2.0
//
// New: the type has 64 bits, API and launch events; the parent of Coll and P2p is the API event.
#pragma once

#include "abi/nccl_profiler_v4.h"

namespace stashtrace::nccl::profiler::v5 {

struct GroupApiDescr {
  bool graph_captured;
  int group_depth;  // 1: the implicit group around a single call
};
struct CollApiDescr {
  const char* func;
  std::size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graph_captured;
};
struct P2pApiDescr {
  const char* func;
  std::size_t count;
  const char* datatype;
  void* stream;
  bool graph_captured;
};
struct CollDescr {
  v4::CollDescr base;
  void* parent_group;
};
struct P2pDescr {
  v4::P2pDescr base;
  void* parent_group;
};
struct Descriptor {
  std::uint64_t type;
  void* parent;
  int rank;
  union {
    GroupApiDescr group_api;
    CollApiDescr coll_api;
    P2pApiDescr p2p_api;
    void* kernel_launch_stream;
    CollDescr coll;
    P2pDescr p2p;
    ProxyOpDescr proxy_op;
    int proxy_step;
    KernelChDescr kernel_ch;
    NetPluginDescr net_plugin;
  };
};
static_assert(sizeof(Descriptor) == 112 && offsetof(Descriptor, coll) == 24);
static_assert(offsetof(Descriptor, coll_api.stream) == 56 && offsetof(Descriptor, coll_api.graph_captured) == 64);
static_assert(offsetof(Descriptor, coll.parent_group) == 104 && offsetof(Descriptor, p2p.parent_group) == 64);
static_assert(offsetof(Descriptor, p2p_api.stream) == 48 && offsetof(Descriptor, p2p_api.graph_captured) == 56);

using Plugin = profiler::Plugin<Descriptor>;
static_assert(sizeof(Plugin) == 48);

}  // namespace stashtrace::nccl::profiler::v5
