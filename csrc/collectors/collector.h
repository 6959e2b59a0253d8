// A native collector: what Runtime starts and stops. SPDX-License-Identifier: Apache-2.0
//
// A folder csrc/collectors/X defines `namespace stashtrace::collectors { Collector& X() noexcept; }`, which returns an
// object that lives for ever (a constinit static without destructor). CMake finds the folder; runtime.cpp starts it
// if STASHTRACE_COLLECTORS names it. template_collector/ is a complete small one to copy.
#pragma once

#include <cstdint>

#include "core/config.h"
#include "core/status.h"

namespace stashtrace {

// Called about every STASHTRACE_SAMPLE_MS on a thread of the recorder. It may emit; it must not block for long.
class TickListener {
 public:
  virtual void tick(std::uint64_t now_ticks) noexcept = 0;
  // Time to the next tick, asked after each one; `usual`: that of STASHTRACE_SAMPLE_MS. For file listeners alone.
  virtual std::int64_t delay_ns(std::int64_t usual) noexcept { return usual; }

 protected:
  ~TickListener() = default;
};

class Context {
 public:
  virtual const Config& config() const noexcept = 0;
  // Ticks per second. In the first 100 us of a process it waits for the rest of them: call it when needed, not in
  // start().
  virtual std::uint64_t tick_hz() noexcept = 0;
  // On the drainer's thread, which has the process's descriptors. False: no place left.
  virtual bool add_tick_listener(TickListener& listener) noexcept = 0;
  // For samplers that open files: on a thread with a separate descriptor table, empty at its start, so that the
  // program's open() gives the numbers it gives without us. It may start no thread and call no library of devices.
  virtual bool add_file_listener(TickListener& listener) noexcept = 0;
  // Whether file listeners may keep descriptors open: before Linux 5.9 their thread stays in the process's table. Known
  // from their first tick on.
  virtual bool file_listeners_may_keep_open() const noexcept = 0;

 protected:
  ~Context() = default;
};

class Collector {
 public:
  // Runs in the library constructor of every traced process: it must be cheap and may not emit. It may refuse: the
  // reason becomes a `loss` row, the run goes on.
  virtual Status start(Context& context) noexcept = 0;
  virtual void stop() noexcept = 0;  // nothing is emitted after it returns
  // In a forked child before its first row: string ids kept from the parent are not in the child's file.
  virtual void after_fork() noexcept {}
  // Recording goes on after a pause (STASHTRACE_STEPS, an idle run), during which hooks have looked at nothing.
  virtual void before_recording() noexcept {}

 protected:
  ~Collector() = default;
};

}  // namespace stashtrace
