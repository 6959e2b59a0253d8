// NCCL's profiler plugin, interface version 4: NCCL 2.27. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v4.h"

#include "collectors/nccl/adapter.h"

namespace v4 = stashtrace::nccl::profiler::v4;

extern "C" __attribute__((visibility("default"))) constinit const v4::Plugin ncclProfiler_v4 =
    stashtrace::nccl::Adapter<stashtrace::nccl::Interface<4, v4::Descriptor, v4::Plugin>>::structure();
