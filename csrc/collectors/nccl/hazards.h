// Known faults of NCCL's device stamps, by version and machine: avoided, reported. SPDX-License-Identifier: Apache-2.0
//
// Caller: the plugin at the first communicator. The job's behaviour never changes: unsafe events are not requested.
#pragma once

namespace stashtrace::nccl::hazards {

#pragma GCC visibility push(hidden)

// True if KernelCh events may be requested: only where no other source of times is allowed, since stamps put a host function
// into each collective of a CUDA graph (NVIDIA/nccl issue 1805), keep a thread polling while kernels run, and from 2.31 on
// cost several percent (issue 2355). Known before NCCL has loaded the plugin.
bool stamps_are_needed() noexcept;

// True if they are needed and this NCCL gives them without harm. Not where /dev/shm is small: the extra proxy connection
// fails, then NCCL crashes (issue 2326); a loss row says so.
bool stamps_are_wanted(int plugin_version) noexcept;

// NCCL finds stamps by counting operations on the host and on the device; where it counts them apart, later operations get
// the stamps of others. From such an operation on, a communicator's stamps are not used. It is
//   a broadcast from 2.29 on (issues 2278, 2368), unless NCCL_ALLGATHERV_ENABLE=0, which we do not set: it changes the job
//   a message to oneself before 2.31, so each all-to-all (src/enqueue.cc, addP2pToPlan); it has no stamps itself
bool broadcast_shifts_stamps() noexcept;
bool message_shifts_stamps(int plugin_version, bool to_itself) noexcept;

// Operations of a CUDA graph are counted apart, too, and asking for their stamps changes the graph: from the first call that
// is captured on, no communicator is asked for stamps.
void report_captured() noexcept;
// RAS asked NCCL for other events than we did: what was counted meanwhile is not known.
void report_overridden() noexcept;

void set_allgatherv_off(bool off) noexcept;  // from the environment, at start

#pragma GCC visibility pop

}  // namespace stashtrace::nccl::hazards
