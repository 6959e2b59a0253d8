// NCCL's activation mask: which events it sends to the plugin. SPDX-License-Identifier: Apache-2.0
//
// NCCL has one word for all communicators and hands its address to each init (2.27 to 2.32: &ncclProfilerEventMask). It reads
// the word again with each operation: ncclTaskColl::eActivationMask is set when a call is made (2.27: taskAppend; from 2.28 on
// ncclProfilerStartGroupApiEvent). So what is cleared here holds from the next call on, and calls before it keep their
// events. The word holds what we want and what a chained plugin wants, which may change its own at any time.
//
// From 2.31 on NCCL's RAS client can replace the word while the job runs, and it stays replaced behind each later init
// (src/plugin/profiler.cc, ncclProfilerSetRasOverride). That is somebody's wish: the word is then left alone.
#pragma once

#include <cstdint>

namespace stashtrace::nccl::activation {

#pragma GCC visibility push(hidden)

// At init: what we want from now on. `chained`: another plugin has its own word, others().
void begin(int* nccl, std::uint64_t ours, bool chained) noexcept;
int* others() noexcept;
std::uint64_t wanted_by_other() noexcept;
// Types that we were ever sent for our own sake: events of an operation may come long after its types were dropped.
std::uint64_t accepted() noexcept;
void drop(std::uint64_t types) noexcept;
bool is_overridden() noexcept;    // somebody else wrote another mask
void publish() noexcept;          // after the other plugin's init
void publish_changes() noexcept;  // on the drainer's tick: the other plugin may have changed its word
// At finalize. NCCL may be unloaded once its last communicator has ended, and its mask with it.
void end() noexcept;
void forget() noexcept;  // in a forked child

#pragma GCC visibility pop

}  // namespace stashtrace::nccl::activation
