// Another profiler plugin: counts what it gets and prints it when NCCL is done. SPDX-License-Identifier: Apache-2.0
//
// OTHER_VERSION says which version of the interface it speaks, 5 if nothing is said.
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "abi/nccl_profiler_v7.h"

#ifndef OTHER_VERSION
#define OTHER_VERSION 5
#endif
#define PASTE(a, b) a##b
#define NAME(prefix, version) PASTE(prefix, version)

using namespace stashtrace::nccl::profiler;
namespace spoken = NAME(v, OTHER_VERSION);

namespace {

struct Seen {
  std::uint64_t type;
  Seen* parent;
};
std::atomic<int> starts, stops, states, with_parent, odd_types;

Result begin(void** context, int* mask) {
  *mask = kColl | kKernelCh | kNetPlugin;
  *context = &starts;
  return 0;
}
#if OTHER_VERSION == 4
Result init(void** context, int* mask, const char*, std::uint64_t, int, int, int, Logger) { return begin(context, mask); }
#else
Result init(void** context, std::uint64_t, int* mask, const char*, int, int, int, Logger) { return begin(context, mask); }
#endif
Result start(void* context, void** handle, spoken::Descriptor* d) {
  const auto type = static_cast<std::uint64_t>(d->type);
  // As a real one must: parent and context may be those of another process.
  const bool foreign = type == kProxyOp && d->proxy_op.pid != getpid();
  if (context != &starts && !foreign && type != kProxyStep) return 1;
  ++starts;
  auto* parent = foreign ? nullptr : static_cast<Seen*>(d->parent);
  if (parent != nullptr && parent->type != 0) ++with_parent;
  if ((type & (kProxyCtrl | kKernelLaunch)) != 0) ++odd_types;
  *handle = new Seen{type, parent};
  return 0;
}
Result stop(void* handle) {
  ++stops;
  return static_cast<Seen*>(handle)->type != 0 ? 0 : 1;
}
Result state(void* handle, State, StateArgs*) {
  states += static_cast<Seen*>(handle)->type != 0;
  return 0;
}
Result finalize(void* context) {
  std::printf("other: %d starts %d stops %d states %d with parent %d odd %d\n", starts.load(), stops.load(), states.load(),
              with_parent.load(), odd_types.load(), context == &starts);
  return 0;
}

}  // namespace

extern "C" const spoken::Plugin NAME(ncclProfiler_v, OTHER_VERSION) = {"other", &init, &start, &stop, &state, &finalize};
