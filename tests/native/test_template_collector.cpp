// The collector that authors copy: started by the runtime, sampled by the drainer, silent after stop().
// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "collectors/collector.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

using namespace stashtrace;

int main(int, char** argv) {
  setenv("STASHTRACE_SAMPLE_MS", "5", 1);
  TRACED(argv);
  CHECK_EQUAL(collector_list().count, std::size_t{1});
  CHECK_EQUAL(std::string_view(collector_list().entries[0].name), std::string_view("template_collector"));
  CHECK(collector_list().entries[0].started);
  CHECK(runtime().start_drainer());
  const auto counters = [] {
    const auto* ring = detail::thread_state.rings[schema::record_index<schema::Counter>()];
    return ring == nullptr ? 0 : 1;
  };
  CHECK_EQUAL(counters(), 0);  // it samples on the drainer's thread, not on ours
  for (int i = 0; i < 400 && runtime().stats().rows_count < 8; ++i) usleep(5'000);
  CHECK(runtime().stats().rows_count >= 8);
  CHECK(runtime().stats().drainer_running);
  collector_list().entries[0].collector().stop();
  usleep(30'000);
  const auto rows = runtime().stats().rows_count;
  usleep(60'000);
  CHECK(runtime().stats().rows_count <= rows + 1);  // a clock_sync may come, no sample
  return result();
}
