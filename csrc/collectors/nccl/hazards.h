// Known faults of NCCL's device stamps, by version and machine: avoided, reported. SPDX-License-Identifier: Apache-2.0
//
// Caller: the plugin at the first communicator. The job's own behaviour never changes: unsafe events are not requested.
#pragma once

namespace stashtrace::nccl::hazards {

#pragma GCC visibility push(hidden)

// True if KernelCh events may be requested. Writes a loss row with the reason if not.
//   small /dev/shm   the extra proxy connection fails, then NCCL crashes (NVIDIA/nccl issue 2326)
//   2.31 and later   a thread per communicator makes them cost several percent (issue 2355): only where there is no other source
bool stamps_are_safe(int plugin_version) noexcept;

// 2.29 to 2.31: broadcasts on the AllGatherV path shift the stamps of later operations by whole operations
// (issue 2368), unless NCCL_ALLGATHERV_ENABLE=0. We do not set that variable, which would change the job: from its
// first broadcast on, a communicator's stamps are not used, its events are.
bool broadcast_shifts_stamps() noexcept;

void set_allgatherv_off(bool off) noexcept;  // from the environment, at start

#pragma GCC visibility pop

}  // namespace stashtrace::nccl::hazards
