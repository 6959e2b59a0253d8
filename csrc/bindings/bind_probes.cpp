// What the Python probes do at both ends of an interval, in one call each. SPDX-License-Identifier: Apache-2.0
//
// A step of a process has five recorded intervals. Stamping, packing and accounting in Python took microseconds for
// each; here the begin is one bytes object and the end one row. The GIL is kept.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "bindings/binders.h"
#include "runtime/capi.h"
#include "schema/schema.h"

namespace py = pybind11;

std::uint32_t intern_text(const py::str& text);  // bind_runtime.cpp

namespace {

using namespace stashtrace;

enum What : int { kTicks, kClocks, kUsage };

struct Begin {
  stashtrace_stamp_t stamp;
  std::int64_t major_faults_count, block_inputs_count;
  int what;
};

std::uint64_t longest_ticks() {
  static const std::uint64_t ticks = stashtrace_tick_hz() / 1'000'000 * 300;  // 300 us
  return ticks;
}

// Ticks that probes took, and how often they recorded. An end that took longer than the bound was off the CPU.
// Atomic for an interpreter without a GIL; with one, there is no contention.
struct Account {
  std::atomic<std::uint64_t> ticks{0}, calls{0};
} account;

void add_ticks(std::uint64_t ticks) {
  account.ticks.fetch_add(std::min(ticks, longest_ticks()), std::memory_order_relaxed);
}

void spend(std::uint64_t since) { add_ticks(stashtrace_now_ticks() - since); }

void take(Begin& out, int what) {
  out.what = what;
  if (what == kUsage) stashtrace_usage(&out.major_faults_count, &out.block_inputs_count);
  if (what == kTicks) {
    out.stamp = {stashtrace_now_ticks(), -1, -1};
  } else {
    stashtrace_stamp(&out.stamp);
  }
}

py::bytes probe_begins(int what) {
  const std::uint64_t entered = stashtrace_now_ticks();
  Begin begin{};
  take(begin, what);
  py::bytes out(reinterpret_cast<const char*>(&begin), sizeof begin);
  // The next clock reading is the interval's first instant: time spent until then is ours.
  begin.stamp.ticks = stashtrace_now_ticks();
  std::memcpy(PyBytes_AS_STRING(out.ptr()), &begin, sizeof begin);
  add_ticks(begin.stamp.ticks - entered);
  return out;
}

struct End {
  std::uint64_t ticks;
  Begin begin, end;
};

// The end's ticks are read first: reading the other clocks is not part of the interval.
End probe_ends(const py::bytes& given) {
  End out{};
  out.ticks = stashtrace_now_ticks();
  const std::string_view bytes(given);
  if (bytes.size() != sizeof out.begin) throw py::value_error("not what probe_begins() gave");
  std::memcpy(&out.begin, bytes.data(), sizeof out.begin);
  take(out.end, out.begin.what);
  return out;
}

template <typename R>
void record(const R& row, std::uint64_t since) {
  stashtrace_emit(R::kId, &row, sizeof row);
  account.calls.fetch_add(1, std::memory_order_relaxed);
  spend(since);
}

void phase_ends(const py::bytes& begin, const py::str& name, std::uint16_t phase, std::uint16_t flags) {
  const End at = probe_ends(begin);
  schema::PhaseSpan row{};
  row.begin_ticks = at.begin.stamp.ticks;
  row.end_ticks = at.ticks;
  row.begin_cpu_ns = at.begin.stamp.cpu_ns;
  row.end_cpu_ns = at.end.stamp.cpu_ns;
  row.begin_runqueue_ns = at.begin.stamp.runqueue_ns;
  row.end_runqueue_ns = at.end.stamp.runqueue_ns;
  row.name_id = intern_text(name);
  row.phase_code = phase;
  row.phase_flags = flags;
  record(row, at.ticks);
}

std::int64_t grown(std::int64_t begin, std::int64_t end) { return begin >= 0 && end >= 0 ? end - begin : -1; }

void batch_ends(const py::bytes& begin, std::uint16_t phase, std::uint64_t loader_id, std::int64_t index,
                std::int32_t worker) {
  const End at = probe_ends(begin);
  schema::Batch row{};
  row.begin_ticks = at.begin.stamp.ticks;
  row.end_ticks = at.ticks;
  row.loader_id = loader_id;
  row.batch_index = index;
  row.cpu_ns = grown(at.begin.stamp.cpu_ns, at.end.stamp.cpu_ns);
  row.runqueue_ns = grown(at.begin.stamp.runqueue_ns, at.end.stamp.runqueue_ns);
  row.worker_id = worker;
  row.major_faults_count = static_cast<std::uint32_t>(at.end.major_faults_count - at.begin.major_faults_count);
  row.block_inputs_count = static_cast<std::uint32_t>(at.end.block_inputs_count - at.begin.block_inputs_count);
  row.phase_code = phase;
  record(row, at.ticks);
}

}  // namespace

void bind_probes(py::module_& module) {
  module.def("probe_begins", &probe_begins, py::arg("what"),
             "Begin of an interval, for the call that ends it. 0: ticks alone, 1: with the thread's CPU and run-queue "
             "time, 2: with its page faults and block inputs, too.");
  module.def("phase_ends", &phase_ends, py::arg("begin"), py::arg("name"), py::arg("phase"), py::arg("flags"),
             "Record a phase_span that ends now.");
  module.def("batch_ends", &batch_ends, py::arg("begin"), py::arg("phase"), py::arg("loader_id"), py::arg("index"),
             py::arg("worker"), "Record a batch that ends now.");
  module.def(
      "probe_account", [] { return py::make_tuple(account.ticks.load(), account.calls.load()); },
      "Ticks that these calls took, and how many intervals they recorded.");
  module.def("forget_probe_account", [] { account.ticks = account.calls = 0; }, "For a forked child.");
}
