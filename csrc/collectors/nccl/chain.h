// The plugin that was configured before ours. SPDX-License-Identifier: Apache-2.0
//
// Callers: the adapters. NCCL has one slot for a profiler; the launcher takes it and names the former owner in
// STASHTRACE_NCCL_CHAIN. That plugin is found by NCCL's rules and gets every event that it asked for, in the
// interface version that NCCL chose with us; if it does not speak that version it gets none, and a loss row says so.
// Each plugin has separate handles and contexts; what both want is united in activation.h.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/nccl_profiler.h"
#include "collectors/nccl/slab.h"

namespace stashtrace::nccl::chain {

#pragma GCC visibility push(hidden)

// The other plugin's structure for version N, null if there is none. Looks once for each version; not hot.
const void* plugin_of(int version) noexcept;

// Event types that NCCL sends to a plugin with this mask: parents of what was asked for come too.
std::uint64_t closure(std::uint64_t mask) noexcept;

struct ContextPair {
  std::atomic<bool> in_use;
  void* ours;
  void* other;
};
ContextPair*
take_context() noexcept;  // without a place: one shared by all such communicators, without the other plugin
void forget() noexcept;   // in a forked child
bool is_nobody(const ContextPair* pair) noexcept;
void free_context(ContextPair* pair) noexcept;
// The pair that a context of NCCL names; null if it is none of ours: with PXN NCCL hands over the context of another
// process, and its address says nothing here.
ContextPair* find_context(void* context) noexcept;

struct HandlePair {
  void* ours;
  void* other;
  bool pinned;
  void reset() noexcept {
    ours = other = nullptr;
    pinned = false;
  }
};
extern constinit Slab<HandlePair, 65536, 15> pairs;

#pragma GCC visibility pop

}  // namespace stashtrace::nccl::chain
