// NCCL's profiler plugin, interface version 7 (NCCL 2.31 and later): reads its descriptors, nothing else. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v7.h"

#include "collectors/nccl/adapter.h"

namespace stashtrace::nccl {

namespace {

namespace v7 = profiler::v7;

struct Api7 {
  static constexpr int kVersion = 7;
  using Descriptor = v7::Descriptor;
  using Structure = v7::Plugin;

  static plugin::Event read(const Descriptor& from) noexcept {
    plugin::Event event = read_common(from);
    read_api(event, from, from.coll_api.base, from.p2p_api.base);
    if (from.type == profiler::kColl) {
      read_coll(event, from.coll.base.base);
      event.symmetric = from.coll.is_symmetric;
    }
    if (from.type == profiler::kP2p) read_p2p(event, from.p2p.base.base);
    if (from.type == profiler::kCeColl) {
      event.func = from.ce_coll.base.func;
      event.datatype = from.ce_coll.base.datatype;
      event.elements = from.ce_coll.base.count;
      event.sequence = from.ce_coll.base.sequence;
      event.peer = from.ce_coll.base.root;
    }
    return event;
  }
  static void** second_parent(Descriptor& from) noexcept {
    if (from.type == profiler::kColl) return &from.coll.base.parent_group;
    return from.type == profiler::kP2p ? &from.p2p.base.parent_group : nullptr;
  }
  static profiler::Result other_init(const Structure& other, void** context, int* mask, const plugin::CommFacts& facts,
                                     profiler::Logger logger) noexcept {
    return other.init(context, facts.comm_id, mask, facts.name, facts.nodes, facts.size, facts.rank, logger);
  }
};

profiler::Result init(void** context, std::uint64_t comm_id, int* mask, const char* name, int nodes, int size, int rank,
                      profiler::Logger logger) noexcept {
  return Adapter<Api7>::init(context, mask, {7, comm_id, name, nodes, size, rank}, logger);
}

}  // namespace

}  // namespace stashtrace::nccl

extern "C" __attribute__((visibility("default"))) const stashtrace::nccl::profiler::v7::Plugin ncclProfiler_v7 = {
    "stashtrace",
    &stashtrace::nccl::init,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api7>::start,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api7>::stop,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api7>::state,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api7>::finalize,
};
