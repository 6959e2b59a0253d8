// The calls of one thread between ncclGroupStart and ncclGroupEnd. SPDX-License-Identifier: Apache-2.0
//
// Caller: calls.cpp and the hooks. A buffer of fixed size per thread that has a group open, from a pool made at the
// first group of the process; what does not fit gets its row at once, without event and time of return, and is counted.
#pragma once

#include "collectors/nccl/calls.h"

namespace stashtrace::nccl {

#pragma GCC visibility push(hidden)

void keep_in_group(const schema::NcclCall& row, Comm comm, Stream stream, bool wants_events) noexcept;
void count_in_group(CommEntry* entry) noexcept;  // ncclGroupSimulateEnd takes their numbers back
void finish_row(schema::NcclCall& row, Result result) noexcept;
bool wants_events() noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::nccl
