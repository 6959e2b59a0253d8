// Another profiler plugin, version 5: counts what it gets and prints it when NCCL is done. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>

#include "abi/nccl_profiler_v5.h"

using namespace stashtrace::nccl::profiler;

namespace {

struct Seen {
  std::uint64_t type;
  Seen* parent;
};
int starts, stops, states, with_parent, odd_types;

Result init(void** context, std::uint64_t, int* mask, const char*, int, int, int, Logger) {
  *mask = kColl | kKernelCh | kNetPlugin;
  *context = &starts;
  return 0;
}
Result start(void* context, void** handle, v5::Descriptor* d) {
  if (context != &starts) return 1;
  ++starts;
  // As a real one must: the parent may be a handle of another process.
  const bool foreign = d->type == kProxyOp && d->proxy_op.pid != getpid();
  auto* parent = foreign ? nullptr : static_cast<Seen*>(d->parent);
  if (parent != nullptr && parent->type != 0) ++with_parent;
  if ((d->type & (kProxyCtrl | kKernelLaunch)) != 0) ++odd_types;
  *handle = new Seen{d->type, parent};
  return 0;
}
Result stop(void* handle) {
  ++stops;
  return static_cast<Seen*>(handle)->type != 0 ? 0 : 1;
}
Result state(void*, State, StateArgs*) {
  ++states;
  return 0;
}
Result finalize(void* context) {
  std::printf("other: %d starts %d stops %d states %d with parent %d odd %d\n", starts, stops, states, with_parent, odd_types,
              context == &starts);
  return 0;
}

}  // namespace

extern "C" const v5::Plugin ncclProfiler_v5 = {"other", &init, &start, &stop, &state, &finalize};
