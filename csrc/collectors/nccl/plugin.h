// The profiler plugin, newest form: what the adapters of all interface versions call. SPDX-License-Identifier: Apache-2.0
//
// Callers: plugin_v4.cpp to plugin_v7.cpp, on the job's, NCCL's proxy and NCCL's profiler threads, at the same time and in any
// order. No lock, no allocation; events come from fixed pools, and one for which there is no slot is counted and gets no
// handle. Every handle may be null. Parents end before their children: a collective's stop means that it was enqueued.
#pragma once

#include <cstdint>

#include "abi/nccl_profiler.h"
#include "collectors/nccl/comms.h"
#include "schema/schema.h"

namespace stashtrace::nccl::plugin {

#pragma GCC visibility push(hidden)

// A descriptor of any version in our words.
struct Event {
  std::uint64_t type = 0;
  void* parent = nullptr;
  const char* func = nullptr;
  const char* datatype = nullptr;
  const char* algorithm = nullptr;
  const char* protocol = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t sequence = ~std::uint64_t{0};
  void* stream = nullptr;
  int peer = -1;
  int group_depth = 0;
  std::uint16_t channels = 0;
  bool captured = false, symmetric = false;
  profiler::ProxyOpDescr proxy_op{};
  profiler::KernelChDescr kernel_ch{};
};

struct CommFacts {
  int version;  // of the interface
  std::uint64_t comm_id;
  const char* name;
  int nodes, size, rank;
};

// Writes the mask of events wanted from now on to *mask. Never fails: without a place the communicator's events are
// counted as lost.
void* init(const CommFacts& facts, std::uint64_t* mask) noexcept;
void finalize(void* context) noexcept;
void* start(void* context, const Event& event) noexcept;
void stop(void* handle) noexcept;
void state(void* handle, int state, const profiler::StateArgs* args) noexcept;

// Joins the communicator that the hooks see with the same one in the plugin: both know size and rank, and the plugin's
// init ran after `since`. 0: at any time.
void join(CommEntry& entry, std::uint64_t since) noexcept;
void leave(CommEntry& entry) noexcept;
// A hooked call is about to be made: for version 4, which has no API events. `bytes`: count and type of the call.
void note_call(CommEntry& entry, const schema::NcclCall& row, std::uint64_t bytes) noexcept;
// A call is about to be captured: see hazards.h.
void stop_stamps() noexcept;
// Stops them where NCCL sends other events than we asked for. Any thread, while a communicator lives.
void heed_override() noexcept;

bool loaded() noexcept;  // NCCL called init of some version
int version() noexcept;  // which one, 0 if none
bool wants_stamps() noexcept;

// Writes rows of events that will not end any more. Drainer's thread; `all`: at the end.
void sweep(std::uint64_t now, bool all) noexcept;
void forget() noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::nccl::plugin
