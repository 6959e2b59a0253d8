// The collectors that Runtime starts. CMake writes the list from the folders it finds. SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.h"

namespace stashtrace {

namespace collectors {
#define STASHTRACE_COLLECTOR(name) Collector& name() noexcept;
#include "collector_list.inc"
#undef STASHTRACE_COLLECTOR
}  // namespace collectors

namespace {
// The last entry is a placeholder, so that the array is never empty.
constinit CollectorEntry g_collectors[] = {
#define STASHTRACE_COLLECTOR(name) CollectorEntry{#name, &collectors::name, {}, false},
#include "collector_list.inc"
#undef STASHTRACE_COLLECTOR
    CollectorEntry{nullptr, nullptr, {}, false},
};
}  // namespace

CollectorList collector_list() noexcept { return {g_collectors, sizeof g_collectors / sizeof g_collectors[0] - 1}; }

}  // namespace stashtrace
