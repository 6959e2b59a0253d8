// NCCL's profiler plugin, interface version 5 (NCCL 2.28): reads its descriptors, nothing else. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v5.h"

#include "collectors/nccl/adapter.h"

namespace stashtrace::nccl {

namespace {

namespace v5 = profiler::v5;

struct Api5 {
  static constexpr int kVersion = 5;
  using Descriptor = v5::Descriptor;
  using Structure = v5::Plugin;

  static plugin::Event read(const Descriptor& from) noexcept {
    plugin::Event event = read_common(from);
    read_api(event, from, from.coll_api, from.p2p_api);
    if (from.type == profiler::kColl) read_coll(event, from.coll.base);
    if (from.type == profiler::kP2p) read_p2p(event, from.p2p.base);
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
  return Adapter<Api5>::init(context, mask, {5, comm_id, name, nodes, size, rank}, logger);
}

}  // namespace

}  // namespace stashtrace::nccl

extern "C" __attribute__((visibility("default"))) const stashtrace::nccl::profiler::v5::Plugin ncclProfiler_v5 = {
    "stashtrace",
    &stashtrace::nccl::init,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api5>::start,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api5>::stop,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api5>::state,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api5>::finalize,
};
