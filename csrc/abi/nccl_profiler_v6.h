// NCCL's profiler plugin interface, version 6: NCCL 2.29.2. SPDX-License-Identifier: Apache-2.0
//
// New: collectives by copy engines. They come without states: NCCL leaves their timing to the plugin.
#pragma once

#include "abi/nccl_profiler_v5.h"

namespace stashtrace::nccl::profiler::v6 {

struct CeCollDescr {
  std::uint64_t sequence;
  const char* func;
  const void* send_buffer;
  void* receive_buffer;
  std::size_t count;
  int root;
  const char* datatype;
  const char* sync_strategy;
  bool intra_batch_sync;
  std::uint32_t batch_size, batches_count, sequence_in_engine;
  void* stream;
};
struct CeSyncDescr {
  bool is_complete;
  int size;
};
struct CeBatchDescr {
  int ops_count;
  std::size_t total_bytes;
  bool use_intra_sync;
};
struct Descriptor {
  std::uint64_t type;
  void* parent;
  int rank;
  union {
    v5::GroupApiDescr group_api;
    v5::CollApiDescr coll_api;
    v5::P2pApiDescr p2p_api;
    void* kernel_launch_stream;
    v5::CollDescr coll;
    v5::P2pDescr p2p;
    ProxyOpDescr proxy_op;
    int proxy_step;
    KernelChDescr kernel_ch;
    NetPluginDescr net_plugin;
    CeCollDescr ce_coll;
    CeSyncDescr ce_sync;
    CeBatchDescr ce_batch;
  };
};
static_assert(sizeof(Descriptor) == 112 && offsetof(Descriptor, coll.parent_group) == 104);
static_assert(offsetof(Descriptor, ce_coll.sync_strategy) == 80 && offsetof(Descriptor, ce_coll.stream) == 104);

using Plugin = profiler::Plugin<Descriptor>;
static_assert(sizeof(Plugin) == 48);

}  // namespace stashtrace::nccl::profiler::v6
