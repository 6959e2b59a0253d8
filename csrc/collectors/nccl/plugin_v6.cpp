// NCCL's profiler plugin, interface version 6 (NCCL 2.29, 2.30): reads its descriptors, nothing else. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v6.h"

#include "collectors/nccl/adapter.h"

namespace stashtrace::nccl {

namespace {

namespace v6 = profiler::v6;

struct Api6 {
  static constexpr int kVersion = 6;
  using Descriptor = v6::Descriptor;
  using Structure = v6::Plugin;

  static plugin::Event read(const Descriptor& from) noexcept {
    plugin::Event event = read_common(from);
    read_api(event, from, from.coll_api, from.p2p_api);
    if (from.type == profiler::kColl) read_coll(event, from.coll.base);
    if (from.type == profiler::kP2p) read_p2p(event, from.p2p.base);
    if (from.type == profiler::kCeColl) {
      event.func = from.ce_coll.func;
      event.datatype = from.ce_coll.datatype;
      event.elements = from.ce_coll.count;
      event.sequence = from.ce_coll.sequence;
      event.peer = from.ce_coll.root;
    }
    return event;
  }
  static void** second_parent(Descriptor& from) noexcept {
    if (from.type == profiler::kColl) return &from.coll.parent_group;
    return from.type == profiler::kP2p ? &from.p2p.parent_group : nullptr;
  }
  static profiler::Result other_init(const Structure& other, void** context, int* mask, const plugin::CommFacts& facts,
                                     profiler::Logger logger) noexcept {
    return other.init(context, facts.comm_id, mask, facts.name, facts.nodes, facts.size, facts.rank, logger);
  }
};

profiler::Result init(void** context, std::uint64_t comm_id, int* mask, const char* name, int nodes, int size, int rank,
                      profiler::Logger logger) noexcept {
  return Adapter<Api6>::init(context, mask, {6, comm_id, name, nodes, size, rank}, logger);
}

}  // namespace

}  // namespace stashtrace::nccl

extern "C" __attribute__((visibility("default"))) const stashtrace::nccl::profiler::v6::Plugin ncclProfiler_v6 = {
    "stashtrace",
    &stashtrace::nccl::init,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api6>::start,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api6>::stop,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api6>::state,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api6>::finalize,
};
