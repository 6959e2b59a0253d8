// What the adapters of all interface versions have in common. SPDX-License-Identifier: Apache-2.0
//
// Callers: plugin_v4.cpp to plugin_v7.cpp, which name a version and its structures. Interface puts a descriptor and its
// parents in our words, Adapter is the plugin as NCCL calls it. NCCL has our handles, or pairs with a chained one's.
#pragma once

#include "collectors/nccl/activation.h"
#include "collectors/nccl/chain.h"
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin.h"
#include "core/raw_syscall.h"

namespace stashtrace::nccl {

// What a part of a descriptor says, for any event and version: later versions add around what was there.
template <class Part>
void read_part(plugin::Event& event, const Part& part) noexcept {
  if constexpr (requires { part.base; }) read_part(event, part.base);
  if constexpr (requires { part.func; }) {
    event.func = part.func;
    event.datatype = part.datatype;
    event.elements = part.count;
  }
  if constexpr (requires { part.sequence; }) event.sequence = part.sequence;
  if constexpr (requires { part.root; }) event.peer = part.root;
  if constexpr (requires { part.peer; }) event.peer = part.peer;
  if constexpr (requires { part.algorithm; }) {
    event.algorithm = part.algorithm;
    event.protocol = part.protocol;
  }
  if constexpr (requires { part.channels_count; }) event.channels = part.channels_count;
  if constexpr (requires { part.stream; }) event.stream = part.stream;
  if constexpr (requires { part.graph_captured; }) event.captured = part.graph_captured;
  if constexpr (requires { part.group_depth; }) event.group_depth = part.group_depth;
  if constexpr (requires { part.is_symmetric; }) event.symmetric = part.is_symmetric;
}

// The handle of an operation's group, separate from its parent: since v5.
template <class Part>
void** group_of(Part& part) noexcept {
  if constexpr (requires { part.parent_group; }) return &part.parent_group;
  else if constexpr (requires { part.base; }) return group_of(part.base);
  else return nullptr;
}

// One version of the interface.
template <int kNumber, class DescriptorOfIt, class StructureOfIt>
struct Interface {
  static constexpr int kVersion = kNumber;
  using Descriptor = DescriptorOfIt;
  using Structure = StructureOfIt;

  static plugin::Event read(const Descriptor& from) noexcept {
    plugin::Event event;
    event.type = from.type;
    event.parent = from.parent;
    switch (event.type) {
      case profiler::kColl: read_part(event, from.coll); break;
      case profiler::kP2p: read_part(event, from.p2p); break;
      case profiler::kProxyOp: event.proxy_op = from.proxy_op; break;
      case profiler::kKernelCh: event.kernel_ch = from.kernel_ch; break;
      case profiler::kGroupApi:
        if constexpr (requires { from.group_api; }) read_part(event, from.group_api);
        break;
      case profiler::kCollApi:
        if constexpr (requires { from.coll_api; }) read_part(event, from.coll_api);
        break;
      case profiler::kP2pApi:
        if constexpr (requires { from.p2p_api; }) read_part(event, from.p2p_api);
        break;
      case profiler::kCeColl:
        if constexpr (requires { from.ce_coll; }) read_part(event, from.ce_coll);
        break;
      default: break;
    }
    return event;
  }
  static void** second_parent(Descriptor& from) noexcept {
    if (from.type == profiler::kColl) return group_of(from.coll);
    return from.type == profiler::kP2p ? group_of(from.p2p) : nullptr;
  }
  static profiler::Result other_init(const Structure& other, void** context, int* mask, const plugin::CommFacts& facts,
                                     profiler::Logger logger) noexcept {
    if constexpr (kVersion == 4)
      return other.init(context, mask, facts.name, facts.comm_id, facts.nodes, facts.size, facts.rank, logger);
    else return other.init(context, facts.comm_id, mask, facts.name, facts.nodes, facts.size, facts.rank, logger);
  }
};

template <class Api>
class Adapter {
 public:
  using Descriptor = typename Api::Descriptor;
  using Structure = typename Api::Structure;

  // What NCCL finds under ncclProfiler_vN.
  static constexpr Structure structure() noexcept {
    constexpr auto begin = [] {
      if constexpr (Api::kVersion == 4) return &Adapter::init_of_v4;
      else return &Adapter::init_since_v5;
    }();
    return {"stashtrace", begin, &Adapter::start, &Adapter::stop, &Adapter::state, &Adapter::finalize};
  }

 private:
  static constexpr int kSuccess = 0;

  static profiler::Result init_of_v4(void** context, int* mask, const char* name, std::uint64_t comm_id, int nodes,
                                     int size, int rank, profiler::Logger logger) noexcept {
    return init(context, mask, {4, comm_id, name, nodes, size, rank}, logger);
  }
  static profiler::Result init_since_v5(void** context, std::uint64_t comm_id, int* mask, const char* name, int nodes,
                                        int size, int rank, profiler::Logger logger) noexcept {
    return init(context, mask, {Api::kVersion, comm_id, name, nodes, size, rank}, logger);
  }

  static profiler::Result init(void** context, int* mask, const plugin::CommFacts& facts,
                               profiler::Logger logger) noexcept {
    std::uint64_t wanted = 0;
    void* const ours = plugin::init(facts, &wanted);
    const auto* other = static_cast<const Structure*>(chain::plugin_of(Api::kVersion));
    activation::begin(mask, wanted, other != nullptr);
    if (other == nullptr) {
      *context = ours;
      return kSuccess;
    }
    chain::ContextPair* pair = chain::take_context();
    if (chain::is_nobody(pair)) {
      plugin::finalize(ours);
    } else {
      pair->ours = ours;
      pair->other = nullptr;
      if (Api::other_init(*other, &pair->other, activation::others(), facts, logger) != kSuccess) pair->other = nullptr;
    }
    activation::publish();
    *context = pair;
    chained().store(other, std::memory_order_release);
    return kSuccess;
  }

  static profiler::Result start(void* context, void** handle, Descriptor* descriptor) noexcept {
    if (handle == nullptr || descriptor == nullptr) return kSuccess;
    *handle = nullptr;
    const Structure* other = chained().load(std::memory_order_acquire);
    if (other == nullptr) {
      *handle = plugin::start(context, Api::read(*descriptor));
      return kSuccess;
    }
    return start_both(*other, context, handle, *descriptor);
  }

  static profiler::Result stop(void* handle) noexcept {
    if (handle == nullptr) return kSuccess;
    const Structure* other = chained().load(std::memory_order_acquire);
    chain::HandlePair* pair = chain::pairs.find(handle);
    if (other == nullptr || pair == nullptr) {
      plugin::stop(handle);
      return kSuccess;
    }
    plugin::stop(pair->ours);
    if (pair->other != nullptr) other->stop_event(pair->other);
    if (!pair->pinned) chain::pairs.give_back(handle);
    return kSuccess;
  }

  static profiler::Result state(void* handle, profiler::State state, profiler::StateArgs* args) noexcept {
    if (handle == nullptr) return kSuccess;
    const Structure* other = chained().load(std::memory_order_acquire);
    chain::HandlePair* pair = chain::pairs.find(handle);
    if (other == nullptr || pair == nullptr) {
      plugin::state(handle, state, args);
      return kSuccess;
    }
    plugin::state(pair->ours, state, args);
    if (pair->other != nullptr) other->record_event_state(pair->other, state, args);
    return kSuccess;
  }

  static profiler::Result finalize(void* context) noexcept {
    const Structure* other = chained().load(std::memory_order_acquire);
    activation::end();
    if (other == nullptr) {
      plugin::finalize(context);
      return kSuccess;
    }
    chain::ContextPair* pair = chain::find_context(context);
    if (pair == nullptr || chain::is_nobody(pair)) return kSuccess;
    plugin::finalize(pair->ours);
    if (pair->other != nullptr) other->finalize(pair->other);
    chain::free_context(pair);
    return kSuccess;
  }

  // Set before NCCL has the first context of a pair. In one process all contexts are pairs or none is, since the other
  // plugin is looked for once, before the first init returns, and stays.
  static std::atomic<const Structure*>& chained() noexcept {
    static constinit std::atomic<const Structure*> other{nullptr};
    return other;
  }

  static void* partner_of(void* handle) noexcept {
    const chain::HandlePair* pair = chain::pairs.find(handle);
    return pair != nullptr ? pair->other : nullptr;
  }

  // With PXN NCCL reports an operation of another process: context and parent are that process's. They are passed as they
  // are, as NCCL hands them to a plugin that is alone; it sees by the pid that it must leave both alone.
  static profiler::Result start_both(const Structure& other, void* context, void** handle,
                                     const Descriptor& descriptor) noexcept {
    const auto type = static_cast<std::uint64_t>(descriptor.type);
    const chain::HandlePair* parent = chain::pairs.find(descriptor.parent);
    const bool foreign_parent = type == profiler::kProxyOp && descriptor.proxy_op.pid != raw::getpid();
    const chain::ContextPair* const contexts = chain::find_context(context);
    void* const context_of_other = contexts != nullptr ? contexts->other : context;
    const bool for_other = context_of_other != nullptr && (chain::closure(activation::wanted_by_other()) & type) != 0;
    Descriptor copy = descriptor;
    plugin::Event event = Api::read(descriptor);
    if (!foreign_parent) {
      event.parent = parent != nullptr ? parent->ours : nullptr;
      copy.parent = parent != nullptr ? parent->other : nullptr;
    }
    if (void** group = Api::second_parent(copy)) *group = partner_of(*group);
    void* pair_handle = nullptr;
    chain::HandlePair* pair = chain::pairs.take(pair_handle);
    if (pair == nullptr) {
      count(Count::pool_full);
      return kSuccess;
    }
    if ((activation::accepted() & type) != 0 && !chain::is_nobody(contexts))
      pair->ours = plugin::start(contexts != nullptr ? contexts->ours : nullptr, event);
    if (for_other) other.start_event(context_of_other, &pair->other, &copy);
    pair->pinned = event.captured;  // parent of operations at each replay of the graph
    if (pair->ours == nullptr && pair->other == nullptr) chain::pairs.give_back(pair_handle);
    else *handle = pair_handle;
    return kSuccess;
  }
};

}  // namespace stashtrace::nccl
