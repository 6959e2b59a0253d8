// The functions of the recorder that Python calls, as a dict. SPDX-License-Identifier: Apache-2.0
//
// Callers: stashtrace/probes/native.py through ctypes, once for a process, in any CPython from 3.10 on; and the extension,
// which offers the same functions to offline code. They are ordinary built-in functions: no call goes through ctypes.
#include "python/functions.h"

#include <link.h>

#include "python/arguments.h"
#include "runtime/capi.h"

namespace stashtrace::python {

namespace {

STASHTRACE_FUNCTION(active) {
  (void)self, (void)given;
  return expect("active", count, 0) ? api().PyBool_FromLong(stashtrace_active()) : nullptr;
}

STASHTRACE_FUNCTION(recording) {
  (void)self, (void)given;
  return expect("recording", count, 0) ? api().PyBool_FromLong(stashtrace_recording()) : nullptr;
}

STASHTRACE_FUNCTION(set_recording) {
  (void)self;
  bool on = false;
  if (!expect("set_recording", count, 1) || !to_bool(given[0], on)) return nullptr;
  stashtrace_set_recording(on);
  return none();
}

STASHTRACE_FUNCTION(now_ticks) {
  (void)self, (void)given;
  return expect("now_ticks", count, 0) ? api().PyLong_FromUnsignedLongLong(stashtrace_now_ticks()) : nullptr;
}

STASHTRACE_FUNCTION(tick_hz) {
  (void)self, (void)given;
  return expect("tick_hz", count, 0) ? api().PyLong_FromUnsignedLongLong(stashtrace_tick_hz()) : nullptr;
}

STASHTRACE_FUNCTION(clock_name) {
  (void)self, (void)given;
  return expect("clock_name", count, 0) ? api().PyUnicode_FromString(stashtrace_clock_name()) : nullptr;
}

STASHTRACE_FUNCTION(stamp) {
  (void)self, (void)given;
  if (!expect("stamp", count, 0)) return nullptr;
  stashtrace_stamp_t out;
  stashtrace_stamp(&out);
  return api().Py_BuildValue("(KLL)", static_cast<unsigned long long>(out.ticks), static_cast<long long>(out.cpu_ns),
                             static_cast<long long>(out.runqueue_ns));
}

STASHTRACE_FUNCTION(usage) {
  (void)self, (void)given;
  if (!expect("usage", count, 0)) return nullptr;
  std::int64_t faults = 0, inputs = 0;
  stashtrace_usage(&faults, &inputs);
  return api().Py_BuildValue("(LL)", static_cast<long long>(faults), static_cast<long long>(inputs));
}

STASHTRACE_FUNCTION(intern) {
  (void)self;
  Text text;
  if (!expect("intern", count, 1) || !text.take(given[0])) return nullptr;
  return api().PyLong_FromUnsignedLongLong(stashtrace_intern(text.view().data(), text.view().size()));
}

STASHTRACE_FUNCTION(emit) {
  (void)self;
  std::uint32_t record_id = 0;
  std::string_view row;
  if (!expect("emit", count, 2) || !to_number(given[0], record_id) || !to_bytes(given[1], row)) return nullptr;
  const int done = stashtrace_emit(record_id, row.data(), row.size());
  if (done >= 0) return api().PyBool_FromLong(done);
  api().PyErr_SetString(api().value_error, "no record has this id and size");
  return nullptr;
}

STASHTRACE_FUNCTION(set_thread_role) {
  (void)self;
  std::uint32_t role = 0;
  Text name;
  if (!expect("set_thread_role", count, 2) || !to_number(given[0], role) || !name.take(given[1])) return nullptr;
  stashtrace_set_thread_role(role, name.view().data(), name.view().size());
  return none();
}

STASHTRACE_FUNCTION(watch_waits) {
  (void)self;
  bool on = false;
  if (!expect("watch_waits", count, 1) || !to_bool(given[0], on)) return nullptr;
  stashtrace_watch_waits(on);
  return none();
}

STASHTRACE_FUNCTION(start_drainer) {
  (void)self, (void)given;
  return expect("start_drainer", count, 0) ? api().PyBool_FromLong(stashtrace_start_drainer()) : nullptr;
}

STASHTRACE_FUNCTION(flush) {
  (void)self, (void)given;
  if (!expect("flush", count, 0)) return nullptr;
  void* const thread = api().PyEval_SaveThread();
  const int done = stashtrace_flush();
  api().PyEval_RestoreThread(thread);
  return api().PyBool_FromLong(done);
}

STASHTRACE_FUNCTION(report_loss) {
  (void)self;
  std::uint32_t collector = 0, severity = 0;
  std::uint64_t lost_count = 0;
  Text reason, detail;
  if (!expect("report_loss", count, 5) || !to_number(given[0], collector) || !reason.take(given[1]) ||
      !to_number(given[2], lost_count) || !detail.take(given[3]) || !to_number(given[4], severity))
    return nullptr;
  stashtrace_report_loss(collector, reason.c_str(), lost_count, detail.c_str(), severity);
  return none();
}

STASHTRACE_FUNCTION(attach_nccl) {
  (void)self, (void)given;
  return expect("attach_nccl", count, 0) ? api().Py_BuildValue("i", stashtrace_attach_nccl()) : nullptr;
}

STASHTRACE_FUNCTION(device_active) {
  (void)self, (void)given;
  return expect("device_active", count, 0) ? api().PyBool_FromLong(stashtrace_device_active()) : nullptr;
}

STASHTRACE_FUNCTION(device_bracket_begin) {
  (void)self;
  std::uint32_t kind = 0;
  std::uint64_t stream = 0, correlation = 0;
  if (!expect("device_bracket_begin", count, 3) || !to_number(given[0], kind) || !to_number(given[1], stream) ||
      !to_number(given[2], correlation))
    return nullptr;
  return api().PyLong_FromUnsignedLongLong(stashtrace_device_bracket_begin(kind, stream, correlation));
}

STASHTRACE_FUNCTION(device_bracket_end) {
  (void)self;
  std::uint64_t token = 0, correlation = 0;
  if (!expect("device_bracket_end", count, 2) || !to_number(given[0], token) || !to_number(given[1], correlation))
    return nullptr;
  stashtrace_device_bracket_end(token, correlation);
  return none();
}

STASHTRACE_FUNCTION(device_mark) {
  (void)self;
  std::uint32_t kind = 0;
  std::uint64_t stream = 0, correlation = 0;
  if (!expect("device_mark", count, 3) || !to_number(given[0], kind) || !to_number(given[1], stream) ||
      !to_number(given[2], correlation))
    return nullptr;
  stashtrace_device_mark(kind, stream, correlation);
  return none();
}

STASHTRACE_FUNCTION(kernels_step) {
  (void)self;
  std::uint64_t step = 0;
  if (!expect("kernels_step", count, 1) || !to_number(given[0], step)) return nullptr;
  stashtrace_kernels_step(step);
  return none();
}

STASHTRACE_FUNCTION(kernels_window) {
  (void)self;
  std::uint64_t first = 0, end = 0;
  if (!expect("kernels_window", count, 2) || !to_number(given[0], first) || !to_number(given[1], end)) return nullptr;
  return api().PyLong_FromUnsignedLongLong(stashtrace_kernels_window(first, end));
}

STASHTRACE_FUNCTION(kernels_end) {
  (void)self;
  std::uint64_t step = 0;
  if (!expect("kernels_end", count, 1) || !to_number(given[0], step)) return nullptr;
  return api().PyLong_FromUnsignedLongLong(stashtrace_kernels_end(step));
}

STASHTRACE_FUNCTION(kernels_step_aside) {
  (void)self;
  Text who;
  if (!expect("kernels_step_aside", count, 1) || !who.take(given[0])) return nullptr;
  stashtrace_kernels_step_aside(who.c_str());
  return none();
}

// Python keeps pointers to these for as long as a function lives.
constinit cpython::MethodDef g_methods[] = {
    {"schema", &schema, cpython::kFastCall, "Everything in records.def, as plain lists and dicts."},
    {"active", &active, cpython::kFastCall, "Is this process traced?"},
    {"recording", &recording, cpython::kFastCall, "Traced, and inside the recorded steps?"},
    {"set_recording", &set_recording, cpython::kFastCall, "Off: frequent rows are refused."},
    {"now_ticks", &now_ticks, cpython::kFastCall, "The clock of all records."},
    {"tick_hz", &tick_hz, cpython::kFastCall, "Estimate of ticks per second since the process began."},
    {"clock_name", &clock_name, cpython::kFastCall,
     "\"tsc\", \"cntvct\", or \"monotonic\" where the counter is not to be trusted."},
    {"stamp", &stamp, cpython::kFastCall,
     "(ticks, thread_cpu_ns, thread_runqueue_ns), -1 for what the kernel does not report."},
    {"usage", &usage, cpython::kFastCall, "(major_faults, block_inputs) of the calling thread."},
    {"intern", &intern, cpython::kFastCall, "The id of a text."},
    {"emit", &emit, cpython::kFastCall, "emit(record_id, row): False if the row was not kept."},
    {"set_thread_role", &set_thread_role, cpython::kFastCall, "set_thread_role(role, name) of the calling thread."},
    {"watch_waits", &watch_waits, cpython::kFastCall, "Record blocking calls of the calling thread, or not."},
    {"start_drainer", &start_drainer, cpython::kFastCall, "Start the recorder's thread."},
    {"flush", &flush, cpython::kFastCall, "Write all that has been recorded; other threads may run meanwhile."},
    {"stats", &stats, cpython::kFastCall, "The recorder's counts."},
    {"config", &config, cpython::kFastCall, "The recorder's configuration."},
    {"report_loss", &report_loss, cpython::kFastCall, "report_loss(collector_code, reason, count, detail, severity)"},
    {"watch_outermost_calls", &watch_outermost_calls, cpython::kFastCall,
     "watch_outermost_calls(function, begins, ends): call begins() before and ends(first argument, what begins() gave, "
     "failed) after each call of a Python function that is not inside another one on its thread; no end if begins() "
     "gives None. One function per process: False for a second one, and for what is no Python function."},
    {"in_outermost_call", &in_outermost_call, cpython::kFastCall, "Is this thread inside a watched call?"},
    {"forget_outermost_call", &forget_outermost_call, cpython::kFastCall,
     "For a forked child: its calls are outermost again."},
    {"probe_begins", &probe_begins, cpython::kFastCall,
     "probe_begins(what): begin of an interval, for the call that ends it. 0: ticks alone, 1: with the thread's CPU and "
     "run-queue time, 2: with its page faults and block inputs, too."},
    {"phase_ends", &phase_ends, cpython::kFastCall,
     "phase_ends(begin, name, phase, flags): record a phase_span that ends now."},
    {"batch_ends", &batch_ends, cpython::kFastCall,
     "batch_ends(begin, phase, loader_id, index, worker): record a batch that ends now."},
    {"probe_account", &probe_account, cpython::kFastCall,
     "Ticks that these calls took, and how many intervals they recorded."},
    {"forget_probe_account", &forget_probe_account, cpython::kFastCall, "For a forked child."},
    {"attach_nccl", &attach_nccl, cpython::kFastCall,
     "Make calls of NCCL lead to the recorder, in a process without LD_PRELOAD: how many import-table slots were changed, "
     "0 if none was left to change or no libnccl is loaded, -1 if the collector is off."},
    {"device_active", &device_active, cpython::kFastCall, "Is a driver loaded, and does this thread have a context?"},
    {"device_bracket_begin", &device_bracket_begin, cpython::kFastCall,
     "device_bracket_begin(kind, stream, correlation): first event of a Bracket on a stream; a token, 0 if nothing was "
     "begun."},
    {"device_bracket_end", &device_bracket_end, cpython::kFastCall,
     "device_bracket_end(token, correlation): second event; `correlation` replaces the one given before."},
    {"device_mark", &device_mark, cpython::kFastCall,
     "device_mark(kind, stream, correlation): one event: a step's end, or how far the host leads."},
    {"kernels_step", &kernels_step, cpython::kFastCall, "Deep mode: this many steps have ended."},
    {"kernels_window", &kernels_window, cpython::kFastCall,
     "Deep mode for steps [first, end): 0 ask again, 1 taken, 2 never."},
    {"kernels_end", &kernels_end, cpython::kFastCall, "Deep mode ends with the step before; 0: ask again."},
    {"kernels_step_aside", &kernels_step_aside, cpython::kFastCall,
     "Deep mode: gives CUPTI back before another profiler takes it."},
    {"learn_work", &learn_work, cpython::kFastCall,
     "learn_work(work): from a callback of its future, on gloo's thread; later Works of its class can be followed."},
    {"follow_work", &follow_work, cpython::kFastCall,
     "follow_work(work, collective_id, call_ticks, return_ticks): write collective_done when it ends; its address, 0 if "
     "nothing will be written."},
    {"work_address", &work_address, cpython::kFastCall, "work_address(work): as of follow_work(), 0 if unknown."},
    {"works_in_flight", &works_in_flight, cpython::kFastCall, "How many followed Works have not ended."},
    {"forget_works", &forget_works, cpython::kFastCall, "For a forked child: no Work will end here."},
    {"start_stacks", &start_stacks, cpython::kFastCall,
     "start_stacks(hexversion): find out where frames lie in this interpreter; None, or why they cannot be read."},
    {"own_stack", &own_stack, cpython::kFastCall,
     "(name, file, line) of the calling thread's frames, the innermost first, read as a sampler reads those of another "
     "thread; None if they cannot be read."},
    {"enable_stacks", &enable_stacks, cpython::kFastCall,
     "own_stack() was right: long calls get a stack, threads samples."},
    {"disable_stacks", &disable_stacks, cpython::kFastCall, "The interpreter ends: none get one from here on."},
    {"watch_stack", &watch_stack, cpython::kFastCall, "watch_stack(on): sample the calling thread."},
    {"note_call", &note_call, cpython::kFastCall,
     "note_call(begin_ticks, cause): a call of this thread ends now; it gets a stack if it took long."},
    {"note_awaited", &note_awaited, cpython::kFastCall,
     "note_awaited(begin_ticks, frames): as note_call(), with frames of suspended coroutines below those of the thread: "
     "for each the address of its code object and its f_lasti, as native 64-bit integers, the innermost first."},
    {"tcp_ends", &tcp_ends, cpython::kFastCall,
     "(own, peer) as \"address:port\" of an established TCP connection, None for any other descriptor."},
};

// Passes on the executable segment that holds the interpreter's functions.
void pass_interpreter_code() noexcept {
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void*) noexcept {
        const auto inside = reinterpret_cast<std::uintptr_t>(api().PyEval_RestoreThread);
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
          if (segment.p_type != PT_LOAD || inside < begin || inside >= end) continue;
          stashtrace_interpreter_code(reinterpret_cast<const void*>(begin), reinterpret_cast<const void*>(end));
          return 1;
        }
        return 0;
      },
      nullptr);
}

Object* functions() noexcept {
  Owned out(api().PyDict_New());
  if (!out) return nullptr;
  for (cpython::MethodDef& method : g_methods) {
    const Owned function(api().PyCFunction_NewEx(&method, nullptr, nullptr));
    if (!function || api().PyDict_SetItemString(out.get(), method.name, function.get()) != 0) return nullptr;
  }
  return out.release();
}

}  // namespace
}  // namespace stashtrace::python

void* stashtrace_python_functions() noexcept {
  using namespace stashtrace;
  if (!cpython::find()) return nullptr;
  python::pass_interpreter_code();
  return python::functions();
}
