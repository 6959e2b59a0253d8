// What the probes do at both ends of an interval, in one call each. SPDX-License-Identifier: Apache-2.0
//
// A step of a process has five recorded intervals. Stamping, packing and accounting in Python took microseconds for
// each; here the begin is one bytes object and the end one row.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "python/arguments.h"
#include "python/functions.h"
#include "runtime/capi.h"
#include "schema/schema.h"
#include "stacks/stacks.h"

namespace stashtrace::python {

namespace {

enum What : int { kTicks, kClocks, kUsage };

struct Begin {
  stashtrace_stamp_t stamp;
  std::int64_t major_faults_count, block_inputs_count;
  int what;
};

// Ticks that probes took, and how often they recorded. An end that took longer than the bound was off the CPU.
// Atomic for an interpreter without a GIL; with one, there is no contention.
struct Account {
  std::atomic<std::uint64_t> ticks{0}, calls{0}, longest_ticks{0};
};
constinit Account g_account;

void add_ticks(std::uint64_t ticks) noexcept {
  std::uint64_t longest = g_account.longest_ticks.load(std::memory_order_relaxed);
  if (longest == 0) {
    longest = stashtrace_tick_hz() / 1'000'000 * 300;  // 300 us
    g_account.longest_ticks.store(longest, std::memory_order_relaxed);
  }
  g_account.ticks.fetch_add(std::min(ticks, longest), std::memory_order_relaxed);
}

void take(Begin& out, int what) noexcept {
  out.what = what;
  if (what == kUsage) stashtrace_usage(&out.major_faults_count, &out.block_inputs_count);
  if (what == kTicks) {
    out.stamp = {stashtrace_now_ticks(), -1, -1};
  } else {
    stashtrace_stamp(&out.stamp);
  }
}

struct End {
  std::uint64_t ticks;
  Begin begin, end;
};

// The end's ticks are read first: reading the other clocks is not part of the interval.
bool probe_ends(Object* given, End& out) noexcept {
  out.ticks = stashtrace_now_ticks();
  std::string_view bytes;
  if (!to_bytes(given, bytes)) return false;
  if (bytes.size() != sizeof out.begin) {
    api().PyErr_SetString(api().value_error, "not what probe_begins() gave");
    return false;
  }
  std::memcpy(&out.begin, bytes.data(), sizeof out.begin);
  take(out.end, out.begin.what);
  return true;
}

template <typename R>
Object* record(const R& row, std::uint64_t since) noexcept {
  stashtrace_emit(R::kId, &row, sizeof row);
  g_account.calls.fetch_add(1, std::memory_order_relaxed);
  add_ticks(stashtrace_now_ticks() - since);
  return none();
}

std::int64_t grown(std::int64_t begin, std::int64_t end) noexcept { return begin >= 0 && end >= 0 ? end - begin : -1; }

}  // namespace

STASHTRACE_FUNCTION(probe_begins) {
  (void)self;
  const std::uint64_t entered = stashtrace_now_ticks();
  std::uint32_t what = 0;
  if (!expect("probe_begins", count, 1) || !to_number(given[0], what)) return nullptr;
  Begin begin{};
  take(begin, static_cast<int>(what));
  Object* const out = api().PyBytes_FromStringAndSize(nullptr, sizeof begin);
  char* data = nullptr;
  Size bytes = 0;
  if (out == nullptr || api().PyBytes_AsStringAndSize(out, &data, &bytes) != 0) return out;
  // The next clock reading is the interval's first instant: time spent until then is ours.
  begin.stamp.ticks = stashtrace_now_ticks();
  std::memcpy(data, &begin, sizeof begin);
  add_ticks(begin.stamp.ticks - entered);
  return out;
}

STASHTRACE_FUNCTION(phase_ends) {
  (void)self;
  End at{};
  schema::PhaseSpan row{};
  Text name;
  if (!expect("phase_ends", count, 4) || !probe_ends(given[0], at) || !name.take(given[1]) ||
      !to_number(given[2], row.phase_code) || !to_number(given[3], row.phase_flags))
    return nullptr;
  row.begin_ticks = at.begin.stamp.ticks;
  row.end_ticks = at.ticks;
  row.begin_cpu_ns = at.begin.stamp.cpu_ns;
  row.end_cpu_ns = at.end.stamp.cpu_ns;
  row.begin_runqueue_ns = at.begin.stamp.runqueue_ns;
  row.end_runqueue_ns = at.end.stamp.runqueue_ns;
  row.name_id = stashtrace_intern(name.view().data(), name.view().size());
  stacks::note_call(row.begin_ticks, row.end_ticks, schema::codes::StackCause::phase);
  return record(row, at.ticks);
}

STASHTRACE_FUNCTION(batch_ends) {
  (void)self;
  End at{};
  schema::Batch row{};
  if (!expect("batch_ends", count, 5) || !probe_ends(given[0], at) || !to_number(given[1], row.phase_code) ||
      !to_number(given[2], row.loader_id) || !to_number(given[3], row.batch_index) ||
      !to_number(given[4], row.worker_id))
    return nullptr;
  row.begin_ticks = at.begin.stamp.ticks;
  row.end_ticks = at.ticks;
  row.cpu_ns = grown(at.begin.stamp.cpu_ns, at.end.stamp.cpu_ns);
  row.runqueue_ns = grown(at.begin.stamp.runqueue_ns, at.end.stamp.runqueue_ns);
  row.major_faults_count = static_cast<std::uint32_t>(at.end.major_faults_count - at.begin.major_faults_count);
  stacks::note_call(row.begin_ticks, row.end_ticks, schema::codes::StackCause::batch);
  row.block_inputs_count = static_cast<std::uint32_t>(at.end.block_inputs_count - at.begin.block_inputs_count);
  return record(row, at.ticks);
}

STASHTRACE_FUNCTION(probe_account) {
  (void)self, (void)given;
  if (!expect("probe_account", count, 0)) return nullptr;
  return api().Py_BuildValue("(KK)", static_cast<unsigned long long>(g_account.ticks.load()),
                             static_cast<unsigned long long>(g_account.calls.load()));
}

STASHTRACE_FUNCTION(forget_probe_account) {
  (void)self, (void)given;
  if (!expect("forget_probe_account", count, 0)) return nullptr;
  g_account.ticks = g_account.calls = 0;
  return none();
}

}  // namespace stashtrace::python
