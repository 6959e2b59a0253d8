// NCCL's profiler plugin interface, version 7: NCCL 2.31. SPDX-License-Identifier: Apache-2.0
//
// New: tags of the user, the variant of symmetric kernels and the phases of their barriers. Other projects have headers of
// the same number with another meaning; this is NVIDIA's.
#pragma once

#include "abi/nccl_profiler_v6.h"

namespace stashtrace::nccl::profiler::v7 {

struct CollApiDescr {
  v5::CollApiDescr base;
  std::uint64_t user_tag;  // 0: untagged
};
struct P2pApiDescr {
  v5::P2pApiDescr base;
  std::uint64_t user_tag;
};
struct CollDescr {
  v5::CollDescr base;
  const char* kernel_variant;  // of a symmetric kernel, else null
  bool is_symmetric;
  std::uint64_t user_tag;
};
struct P2pDescr {
  v5::P2pDescr base;
  std::uint64_t user_tag;
};
struct CeCollDescr {
  v6::CeCollDescr base;
  std::uint64_t user_tag;
};
struct KernelPhaseDescr {
  std::uint8_t channel;
  std::uint8_t phase;  // 0 initial_sync, 1 compute, 2 final_sync
  const char* name;
  std::uint64_t p_timer;
};
struct Descriptor {
  std::uint64_t type;
  void* parent;
  int rank;
  union {
    v5::GroupApiDescr group_api;
    CollApiDescr coll_api;
    P2pApiDescr p2p_api;
    void* kernel_launch_stream;
    CollDescr coll;
    P2pDescr p2p;
    ProxyOpDescr proxy_op;
    int proxy_step;
    KernelChDescr kernel_ch;
    NetPluginDescr net_plugin;
    CeCollDescr ce_coll;
    v6::CeSyncDescr ce_sync;
    v6::CeBatchDescr ce_batch;
    KernelPhaseDescr kernel_phase;
  };
};
static_assert(sizeof(Descriptor) == 136 && offsetof(Descriptor, coll.kernel_variant) == 112);
static_assert(offsetof(Descriptor, coll.is_symmetric) == 120 && offsetof(Descriptor, coll.user_tag) == 128);
static_assert(offsetof(Descriptor, coll_api.user_tag) == 72 && offsetof(Descriptor, p2p_api.user_tag) == 64);
static_assert(offsetof(Descriptor, p2p.user_tag) == 72 && offsetof(Descriptor, ce_coll.user_tag) == 112);
static_assert(offsetof(Descriptor, kernel_phase.p_timer) == 40);

using Plugin = profiler::Plugin<Descriptor>;
static_assert(sizeof(Plugin) == 48);

}  // namespace stashtrace::nccl::profiler::v7
