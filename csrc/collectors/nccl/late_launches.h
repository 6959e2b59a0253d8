// Operations of non-blocking communicators, between the call and the launch. SPDX-License-Identifier: Apache-2.0
//
// Callers: calls.cpp, groups.cpp and the hooks. Such a call returns ncclInProgress, and a thread of NCCL launches later
// (2.30.7 src/group.cc:855). A second event at the return would stand in front of the kernel. The program has to ask
// ncclCommGetAsyncError until it answers something else (src/init.cc, ncclCommEnsureReady): then the kernel is on its
// stream, and the event is recorded. Any thread, no lock, no allocation.
#pragma once

#include <cstdint>

#include "abi/nccl_abi.h"
#include "device/timeline.h"

namespace stashtrace::nccl {

#pragma GCC visibility push(hidden)

struct Launch {
  Comm comm;
  Stream stream;
  device::Begin begun;
  std::int64_t message_bytes;
};

// A call or group has returned: ends its bracket, cancels it, or keeps it until the launch is seen.
void end_bracket(const Launch& launch, Result result) noexcept;
// NCCL says that the communicator's operations are launched, or have failed.
void end_late_launches(Comm comm, Result state) noexcept;
// What is still kept gets no times: nobody saw when it was launched. Null: of all communicators.
void lose_late_launches(Comm comm) noexcept;
void forget_late_launches() noexcept;  // in a forked child

#pragma GCC visibility pop

}  // namespace stashtrace::nccl
