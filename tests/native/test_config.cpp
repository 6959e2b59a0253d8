// The environment variables of the guest, good and bad. SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "core/config.h"

using namespace stashtrace;

static Config parsed(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  Config config;
  parse_config(config, environment.data());
  return config;
}

int main() {
  CHECK(!parsed({}).active);
  CHECK(!parsed({"STASHTRACE_DIR="}).active);
  CHECK(!parsed({"STASHTRACE_DIR=relative"}).active);
  CHECK(!parsed({"STASHTRACE_DIRECTORY=/run"}).active);
  const std::string deep = "STASHTRACE_DIR=/" + std::string(5000, 'x');
  CHECK(!parsed({deep.c_str()}).active);

  const Config plain = parsed({"STASHTRACE_DIR=/run"});
  CHECK(plain.active);
  CHECK(plain.collector_on("posix_io") && plain.collector_on("proc") && plain.collector_on("core"));
  CHECK_EQUAL(plain.wait_threshold_ns, std::int64_t{20'000});
  CHECK_EQUAL(plain.sample_ms, 100u);
  CHECK(plain.drainer == DrainerMode::automatic && plain.log == LogLevel::error);

  const Config full =
      parsed({"STASHTRACE_COLLECTORS=waits,posix_io,unheard_of", "STASHTRACE_RUN_ID=c0ffee", "STASHTRACE_DIR=/run",
              "STASHTRACE_STEPS=5:10", "STASHTRACE_WAIT_THRESHOLD_NS=0", "STASHTRACE_SAMPLE_MS=250",
              "STASHTRACE_RING_BYTES=65536", "STASHTRACE_DRAINER=self", "STASHTRACE_LOG=debug"});
  CHECK(full.collector_on("posix_io") && full.collector_on("waits") && full.collector_on("core"));
  CHECK(!full.collector_on("proc") && !full.collector_on("annotations"));
  CHECK_EQUAL(full.run_id, std::string_view("c0ffee"));
  CHECK_EQUAL(full.steps, std::string_view("5:10"));
  CHECK_EQUAL(full.wait_threshold_ns, std::int64_t{0});
  CHECK_EQUAL(full.sample_ms, 250u);
  CHECK_EQUAL(full.io_ring_bytes, 65536u);
  CHECK(full.drainer == DrainerMode::self && full.log == LogLevel::debug);

  const Config odd = parsed({"STASHTRACE_DIR=/run", "STASHTRACE_SAMPLE_MS=0", "STASHTRACE_WAIT_THRESHOLD_NS=-5",
                             "STASHTRACE_RING_BYTES=1e6", "STASHTRACE_DRAINER=maybe", "STASHTRACE_LOG="});
  CHECK_EQUAL(odd.sample_ms, 100u);
  CHECK_EQUAL(odd.wait_threshold_ns, std::int64_t{20'000});
  CHECK_EQUAL(odd.io_ring_bytes, 0u);
  CHECK(odd.drainer == DrainerMode::automatic && odd.log == LogLevel::error);
  return result();
}
