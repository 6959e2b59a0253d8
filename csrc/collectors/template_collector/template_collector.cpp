// A complete tiny collector: samples the resident set of the process. Copy it. SPDX-License-Identifier: Apache-2.0
//
// Compiled and tested, never shipped. Its other three places would be stashtrace/collectors/template_collector.py (decode),
// tests/collectors/test_template_collector.py and docs/collectors/template_collector.md. Called by Runtime (start, stop) and on the
// drainer's thread (tick).
#include <atomic>

#include "collectors/collector.h"
#include "core/pages.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "runtime/emit.h"

namespace stashtrace::collectors {

namespace {

// Second number of /proc/self/statm, in pages; below zero if it cannot be read.
std::int64_t resident_pages() noexcept {
  char text[128];
  const int fd = raw::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const long bytes = raw::read(fd, text, sizeof text);
  raw::close(fd);
  long at = 0;
  while (at < bytes && text[at] != ' ') ++at;
  std::int64_t value = 0;
  for (++at; at < bytes && text[at] >= '0' && text[at] <= '9'; ++at) value = value * 10 + (text[at] - '0');
  return value;
}

class TemplateCollector final : public Collector, public TickListener {
 public:
  Status start(Context& context) noexcept override {
    if (resident_pages() < 0) return Status::failed("no_statm", "/proc is not mounted");
    if (!context.add_file_listener(*this)) return Status::failed("too_many_samplers");
    on_ = true;
    return Status::ok();
  }

  void stop() noexcept override { on_ = false; }

  // Names are interned when needed, not in start(), which runs in every process, also in those that record nothing.
  void tick(std::uint64_t now) noexcept override {
    if (!on_ || !recording()) return;
    const double bytes = static_cast<double>(resident_pages()) * static_cast<double>(page_bytes());
    emit(schema::Counter{now, bytes, intern("resident_bytes"), 0});
  }

 private:
  std::atomic<bool> on_{false};  // stop() and tick() run on different threads
};

constinit TemplateCollector g_collector;

}  // namespace

Collector& template_collector() noexcept { return g_collector; }

}  // namespace stashtrace::collectors
