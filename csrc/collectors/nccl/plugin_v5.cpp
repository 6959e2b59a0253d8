// NCCL's profiler plugin, interface version 5: NCCL 2.28. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v5.h"

#include "collectors/nccl/adapter.h"

namespace v5 = stashtrace::nccl::profiler::v5;

extern "C" __attribute__((visibility("default"))) constinit const v5::Plugin ncclProfiler_v5 =
    stashtrace::nccl::Adapter<stashtrace::nccl::Interface<5, v5::Descriptor, v5::Plugin>>::structure();
