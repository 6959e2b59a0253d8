// NCCL's profiler plugin, interface version 6: NCCL 2.29, 2.30. SPDX-License-Identifier: Apache-2.0
#include "abi/nccl_profiler_v6.h"

#include "collectors/nccl/adapter.h"

namespace v6 = stashtrace::nccl::profiler::v6;

extern "C" __attribute__((visibility("default"))) constinit const v6::Plugin ncclProfiler_v6 =
    stashtrace::nccl::Adapter<stashtrace::nccl::Interface<6, v6::Descriptor, v6::Plugin>>::structure();
