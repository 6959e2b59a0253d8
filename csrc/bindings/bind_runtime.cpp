// The guest half of stashtrace._native: what probes call inside the traced process. SPDX-License-Identifier: Apache-2.0
//
// Thin: each function is one call of runtime/capi.h. The GIL is kept, except in flush(), the only one that may wait.
#include <link.h>
#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "bindings/binders.h"
#include "runtime/capi.h"
#include "schema/schema.h"

namespace py = pybind11;

// Cheap path for str; lone surrogates (os.fsdecode of odd file names) go back to the bytes they stand for.
std::uint32_t intern_text(const py::str& text) {
  Py_ssize_t bytes = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &bytes);
  if (utf8 != nullptr) return stashtrace_intern(utf8, static_cast<std::size_t>(bytes));
  PyErr_Clear();
  auto raw = py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!raw) {
    PyErr_Clear();
    raw = py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  }
  if (!raw) throw py::error_already_set();
  const std::string_view view(raw);
  return stashtrace_intern(view.data(), view.size());
}

namespace {

bool emit(std::uint32_t record_id, const py::bytes& row) {
  char* data = nullptr;
  Py_ssize_t bytes = 0;
  if (PyBytes_AsStringAndSize(row.ptr(), &data, &bytes) != 0) throw py::error_already_set();
  const int done = stashtrace_emit(record_id, data, static_cast<std::size_t>(bytes));
  if (done < 0) throw py::value_error("no record has this id and size");
  return done != 0;
}

py::tuple stamp() {
  stashtrace_stamp_t out;
  stashtrace_stamp(&out);
  return py::make_tuple(out.ticks, out.cpu_ns, out.runqueue_ns);
}

py::tuple usage() {
  std::int64_t faults = 0, inputs = 0;
  stashtrace_usage(&faults, &inputs);
  return py::make_tuple(faults, inputs);
}

py::dict stats() {
  stashtrace_stats_t raw;
  stashtrace_stats(&raw);
  py::dict out;
  out["rows_count"] = raw.rows_count;
  out["written_rows_count"] = raw.written_rows_count;
  out["dropped_rows_count"] = raw.dropped_rows_count;
  out["lanes_count"] = raw.lanes_count;
  out["ring_bytes"] = raw.ring_bytes;
  out["written_bytes"] = raw.written_bytes;
  out["segments_count"] = raw.segments_count;
  out["drainer_cpu_ns"] = raw.drainer_cpu_ns;
  out["self_drain_ns"] = raw.self_drain_ns;
  out["incarnation"] = raw.incarnation;
  out["drainer_running"] = raw.drainer_running != 0;
  out["stash_path"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(stashtrace_stash_path()));
  return out;
}

py::dict config() {
  stashtrace_config_t raw;
  stashtrace_config(&raw);
  py::list names;
  for (const auto& collector : stashtrace::schema::kCollectors)
    if ((raw.collectors >> collector.code & 1) != 0)
      names.append(py::str(collector.name.data(), collector.name.size()));
  py::dict out;
  out["dir"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(raw.dir));
  out["run_id"] = raw.run_id;
  out["steps"] = raw.steps;
  out["collectors"] = names;
  out["wait_threshold_ns"] = raw.wait_threshold_ns;
  out["sample_ms"] = raw.sample_ms;
  out["drainer"] = raw.drainer;
  out["log"] = raw.log;
  return out;
}

// Passes on the executable segment that holds the interpreter's functions.
void tell_interpreter_code() noexcept {
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void*) noexcept {
        const auto inside = reinterpret_cast<std::uintptr_t>(&PyEval_RestoreThread);
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

}  // namespace

void bind_runtime(py::module_& module) {
  tell_interpreter_code();
  module.def("active", [] { return stashtrace_active() != 0; }, "Is this process traced?");
  module.def("recording", [] { return stashtrace_recording() != 0; }, "Traced, and inside the recorded steps?");
  module.def("set_recording", [](bool on) { stashtrace_set_recording(on); }, py::arg("on"));
  module.def("now_ticks", &stashtrace_now_ticks, "The clock of all records.");
  module.def("tick_hz", &stashtrace_tick_hz, "Estimate of ticks per second since the process began.");
  module.def("clock_name", &stashtrace_clock_name, "\"tsc\", or \"monotonic\" where the TSC is not to be trusted.");
  module.def("stamp", &stamp, "(ticks, thread_cpu_ns, thread_runqueue_ns), -1 for what the kernel does not tell.");
  module.def("usage", &usage, "(major_faults, block_inputs) of the calling thread.");
  module.def("intern", &intern_text, py::arg("text"));
  module.def("emit", &emit, py::arg("record_id"), py::arg("row"), "False if the row was not kept.");
  module.def(
      "set_thread_role",
      [](std::uint32_t role, std::string_view name) { stashtrace_set_thread_role(role, name.data(), name.size()); },
      py::arg("role"), py::arg("name"));
  module.def("watch_waits", [](bool on) { stashtrace_watch_waits(on); }, py::arg("on"));
  module.def("start_drainer", [] { return stashtrace_start_drainer() != 0; });
  module.def("flush", [] {
    const py::gil_scoped_release nogil;
    return stashtrace_flush() != 0;
  });
  module.def("stats", &stats);
  module.def("config", &config);
  module.def(
      "report_loss",
      [](std::uint32_t collector_code, const std::string& reason, std::uint64_t count, const std::string& detail,
         std::uint32_t severity) {
        stashtrace_report_loss(collector_code, reason.c_str(), count, detail.c_str(), severity);
      },
      py::arg("collector_code"), py::arg("reason"), py::arg("count"), py::arg("detail"), py::arg("severity"));
}
