// NCCL's profiler plugin, interface version 7: NCCL 2.31 and later. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v7.h"

#include "collectors/nccl/adapter.h"

namespace v7 = stashtrace::nccl::profiler::v7;

extern "C" __attribute__((visibility("default"))) constinit const v7::Plugin ncclProfiler_v7 =
    stashtrace::nccl::Adapter<stashtrace::nccl::Interface<7, v7::Descriptor, v7::Plugin>>::structure();
