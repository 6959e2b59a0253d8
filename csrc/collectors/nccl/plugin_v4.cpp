// NCCL's profiler plugin, interface version 4 (NCCL 2.27): reads its descriptors, nothing else. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v4.h"

#include "collectors/nccl/adapter.h"

namespace stashtrace::nccl {

namespace {

namespace v4 = profiler::v4;

struct Api4 {
  static constexpr int kVersion = 4;
  using Descriptor = v4::Descriptor;
  using Structure = v4::Plugin;

  static plugin::Event read(const Descriptor& from) noexcept {
    plugin::Event event = read_common(from);
    if (from.type == profiler::kColl) read_coll(event, from.coll);
    if (from.type == profiler::kP2p) read_p2p(event, from.p2p);
    return event;
  }
  static void** second_parent(Descriptor&) noexcept { return nullptr; }
  static profiler::Result other_init(const Structure& other, void** context, int* mask, const plugin::CommFacts& facts,
                                     profiler::Logger logger) noexcept {
    return other.init(context, mask, facts.name, facts.comm_id, facts.nodes, facts.size, facts.rank, logger);
  }
};

profiler::Result init(void** context, int* mask, const char* name, std::uint64_t comm_id, int nodes, int size, int rank,
                      profiler::Logger logger) noexcept {
  return Adapter<Api4>::init(context, mask, {4, comm_id, name, nodes, size, rank}, logger);
}

}  // namespace

}  // namespace stashtrace::nccl

extern "C" __attribute__((visibility("default"))) const stashtrace::nccl::profiler::v4::Plugin ncclProfiler_v4 = {
    "stashtrace",
    &stashtrace::nccl::init,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api4>::start,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api4>::stop,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api4>::state,
    &stashtrace::nccl::Adapter<stashtrace::nccl::Api4>::finalize,
};
