// What the adapters of all interface versions have in common. SPDX-License-Identifier: Apache-2.0
//
// Callers: plugin_v4.cpp to plugin_v7.cpp. Api says the version, its structures, how a descriptor reads in our words and where
// its parents stand. Without a chained plugin NCCL holds our handles; with one it holds pairs of both plugins'.
#pragma once

#include "collectors/nccl/chain.h"
#include "collectors/nccl/plugin.h"
#include "collectors/nccl/room.h"
#include "core/raw_syscall.h"

namespace stashtrace::nccl {

// v5 and later begin alike.
template <class Descriptor>
plugin::Event read_common(const Descriptor& from) noexcept {
  plugin::Event event;
  event.type = from.type;
  event.parent = from.parent;
  switch (from.type) {
    case profiler::kProxyOp: event.proxy_op = from.proxy_op; break;
    case profiler::kKernelCh: event.kernel_ch = from.kernel_ch; break;
    default: break;
  }
  return event;
}
template <class Coll>
void read_coll(plugin::Event& event, const Coll& coll) noexcept {
  event.func = coll.func;
  event.datatype = coll.datatype;
  event.elements = coll.count;
  event.sequence = coll.sequence;
  event.peer = coll.root;
  event.algorithm = coll.algorithm;
  event.protocol = coll.protocol;
  event.channels = coll.channels_count;
}
template <class P2p>
void read_p2p(plugin::Event& event, const P2p& p2p) noexcept {
  event.func = p2p.func;
  event.datatype = p2p.datatype;
  event.elements = p2p.count;
  event.peer = p2p.peer;
  event.channels = p2p.channels_count;
}
// The events of v5, which v6 and v7 have too.
template <class CollApi, class P2pApi, class Descriptor>
void read_api(plugin::Event& event, const Descriptor& from, const CollApi& coll, const P2pApi& p2p) noexcept {
  if (from.type == profiler::kGroupApi) {
    event.captured = from.group_api.graph_captured;
    event.group_depth = from.group_api.group_depth;
  } else if (from.type == profiler::kCollApi) {
    event.func = coll.func;
    event.datatype = coll.datatype;
    event.elements = coll.count;
    event.peer = coll.root;
    event.stream = coll.stream;
    event.captured = coll.graph_captured;
  } else if (from.type == profiler::kP2pApi) {
    event.func = p2p.func;
    event.datatype = p2p.datatype;
    event.elements = p2p.count;
    event.stream = p2p.stream;
    event.captured = p2p.graph_captured;
  }
}

template <class Api>
class Adapter {
 public:
  using Descriptor = typename Api::Descriptor;
  using Structure = typename Api::Structure;

  static profiler::Result init(void** context, int* mask, const plugin::CommFacts& facts, profiler::Logger logger) noexcept {
    std::uint64_t wanted = 0;
    void* const ours = plugin::init(facts, &wanted);
    const auto* other = static_cast<const Structure*>(chain::plugin_of(Api::kVersion));
    chain::masks.ours.store(wanted, std::memory_order_relaxed);
    if (other == nullptr) {
      __atomic_store_n(mask, static_cast<int>(wanted), __ATOMIC_RELAXED);  // NCCL's one mask, whichever communicator begins
      *context = ours;
      return kSuccess;
    }
    chain::ContextPair* pair = chain::take_context();
    if (chain::is_nobody(pair)) {
      plugin::finalize(ours);
    } else {
      pair->ours = ours;
      pair->other = nullptr;
      if (Api::other_init(*other, &pair->other, &chain::masks.other, facts, logger) != kSuccess) pair->other = nullptr;
    }
    chain::masks.nccl.store(mask, std::memory_order_release);
    chain::publish_masks();
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
    return start_both(*other, static_cast<chain::ContextPair*>(context), handle, *descriptor);
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
    if (other == nullptr) {
      plugin::finalize(context);
      return kSuccess;
    }
    auto* pair = static_cast<chain::ContextPair*>(context);
    if (chain::is_nobody(pair)) return kSuccess;
    plugin::finalize(pair->ours);
    if (pair->other != nullptr) other->finalize(pair->other);
    chain::free_context(pair);
    return kSuccess;
  }

 private:
  static constexpr int kSuccess = 0;

  // Set before NCCL has the first context of a pair; contexts of one process are pairs all or none, since the other is
  // looked for once, before the first init returns, and stays.
  static std::atomic<const Structure*>& chained() noexcept {
    static constinit std::atomic<const Structure*> other{nullptr};
    return other;
  }

  static void* partner_of(void* handle) noexcept {
    const chain::HandlePair* pair = chain::pairs.find(handle);
    return pair != nullptr ? pair->other : nullptr;
  }

  static profiler::Result start_both(const Structure& other, chain::ContextPair* contexts, void** handle,
                                     const Descriptor& descriptor) noexcept {
    const auto type = static_cast<std::uint64_t>(descriptor.type);
    const bool for_other = contexts->other != nullptr &&
                           (chain::closure(static_cast<std::uint64_t>(__atomic_load_n(&chain::masks.other, __ATOMIC_RELAXED))) & type) != 0;
    // With PXN the parent of a proxy operation is another process's: both plugins check the pid and leave it alone.
    const bool foreign = type == profiler::kProxyOp && descriptor.proxy_op.pid != raw::getpid();
    Descriptor copy = descriptor;
    plugin::Event event = Api::read(descriptor);
    if (!foreign) {
      const chain::HandlePair* parent = chain::pairs.find(descriptor.parent);
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
    pair->ours = (chain::masks.ours.load(std::memory_order_relaxed) & type) != 0 ? plugin::start(contexts->ours, event) : nullptr;
    if (for_other) other.start_event(contexts->other, &pair->other, &copy);
    pair->pinned = event.captured;  // parent of operations at each replay of the graph
    if (pair->ours == nullptr && pair->other == nullptr) chain::pairs.give_back(pair_handle);
    else *handle = pair_handle;
    return kSuccess;
  }
};

}  // namespace stashtrace::nccl
