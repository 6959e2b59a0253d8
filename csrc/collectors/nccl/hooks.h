// Every hook of this collector by name, exported or not. SPDX-License-Identifier: Apache-2.0
//
// Callers: got_patch.cpp, which writes their addresses into import tables.
#pragma once

#include "abi/nccl_abi.h"

namespace stashtrace::nccl {

#pragma GCC visibility push(hidden)

// Rows of names: clang-format would move each row further to the right.
// clang-format off

// In all releases from 2.18 on, hence exported for preload; hook_ is the prefix of STASHTRACE_HOOK.
#define STASHTRACE_NCCL_EXPORTED(X)                                                                                       \
  X(ncclAllReduce) X(ncclReduce) X(ncclBroadcast) X(ncclBcast) X(ncclAllGather) X(ncclReduceScatter) X(ncclSend) X(ncclRecv) \
  X(ncclGroupStart) X(ncclGroupEnd) X(ncclCommInitRank) X(ncclCommInitRankConfig) X(ncclCommInitAll) X(ncclCommSplit)     \
  X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError)
// Newer ones, reached through import tables only.
#define STASHTRACE_NCCL_HIDDEN(X)                                                                                         \
  X(ncclAlltoAll) X(ncclGather) X(ncclScatter) X(ncclAllReduceConfig) X(ncclReduceConfig) X(ncclBroadcastConfig)          \
  X(ncclAllGatherConfig) X(ncclReduceScatterConfig) X(ncclAlltoAllConfig) X(ncclGatherConfig) X(ncclScatterConfig)        \
  X(ncclPutSignal) X(ncclSignal) X(ncclWaitSignal) X(ncclGroupSimulateEnd) X(ncclCommInitRankScalable) X(ncclCommShrink)  \
  X(ncclCommGrow) X(ncclCommRevoke)

// clang-format on

namespace hooked {
#define STASHTRACE_NCCL_DECLARE(name) function::name name;
STASHTRACE_NCCL_HIDDEN(STASHTRACE_NCCL_DECLARE)
#undef STASHTRACE_NCCL_DECLARE
}  // namespace hooked

// Makes import tables lead to the hooks; returns how many slots this call changed. Any thread, not hot, idempotent.
// `preloaded`: calls reach the exported hooks anyway, so of these only slots that were bound past us are changed.
int patch_imports(bool preloaded) noexcept;
void forget_imports() noexcept;            // in a forked child
bool imports_may_have_changed() noexcept;  // a library was loaded since the last patch_imports(); about 50 ns

#pragma GCC visibility pop

}  // namespace stashtrace::nccl
