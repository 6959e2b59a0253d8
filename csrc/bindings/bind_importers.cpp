// stashtrace._native.importers: the scanners of foreign files. SPDX-License-Identifier: Apache-2.0
//
// Used by stashtrace/importers. The GIL is released while a chunk is scanned, so the next one can be decompressed by
// another thread; one scanner belongs to one thread at a time.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "importers/decimal.h"
#include "importers/json_text.h"
#include "importers/trace_events.h"

namespace py = pybind11;

namespace {

using stashtrace::importers::EventTable;
using stashtrace::importers::Rule;
using stashtrace::importers::TableSpec;
using stashtrace::importers::TraceEvents;
using SpecTuple = std::pair<std::vector<std::string>, std::vector<std::string>>;
using RuleTuple = std::tuple<std::string, std::string, std::string, int>;

// Hands the vector's memory to numpy.
template <typename T>
py::array_t<T> to_array(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
  return py::array_t<T>(static_cast<py::ssize_t>(owned->size()), owned->data(), owner);
}

// Files in the wild hold broken UTF-8; such names are kept all the same.
py::str to_text(const std::string& bytes) {
  PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<py::ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

TraceEvents make(std::vector<std::string> arrays, std::vector<SpecTuple> specs, std::vector<RuleTuple> rules) {
  std::vector<TableSpec> tables;
  for (auto& [ints, texts] : specs) tables.push_back({std::move(ints), std::move(texts)});
  std::vector<Rule> wanted;
  for (auto& [phase, category, prefix, table] : rules) {
    if (table >= static_cast<int>(tables.size())) throw std::invalid_argument("a rule names a table that is not there");
    wanted.push_back({std::move(phase), std::move(category), std::move(prefix), table});
  }
  return TraceEvents(std::move(arrays), std::move(tables), std::move(wanted));
}

void feed(TraceEvents& scanner, const py::buffer& chunk) {
  const py::buffer_info bytes = chunk.request();
  if (bytes.itemsize != 1 || bytes.ndim != 1) throw std::invalid_argument("expected bytes");
  py::gil_scoped_release release;
  scanner.feed({static_cast<const char*>(bytes.ptr), static_cast<std::size_t>(bytes.size)});
}

py::list take_tables(TraceEvents& scanner) {
  py::list out;
  for (EventTable& table : scanner.tables()) {
    py::dict columns;
    columns["begin_ns"] = to_array(std::move(table.begin_ns));
    columns["duration_ns"] = to_array(std::move(table.duration_ns));
    columns["name"] = to_array(std::move(table.name));
    columns["pid"] = to_array(std::move(table.pid));
    columns["tid"] = to_array(std::move(table.tid));
    py::list ints, texts;
    for (auto& column : table.ints) ints.append(to_array(std::move(column)));
    for (auto& column : table.texts) texts.append(to_array(std::move(column)));
    columns["ints"] = ints;
    columns["texts"] = texts;
    out.append(columns);
  }
  return out;
}

}  // namespace

void bind_importers(py::module_& module) {
  py::module_ submodule = module.def_submodule("importers", "Scanners of foreign files.");
  submodule.attr("ABSENT") = stashtrace::importers::kAbsent;
  submodule.def("scaled_decimal", &stashtrace::importers::scaled_decimal, py::arg("text"), py::arg("power"));
  submodule.def(
      "unescape",
      [](const py::bytes& raw) { return to_text(stashtrace::importers::unescape(static_cast<std::string_view>(raw))); },
      py::arg("raw"));
  py::class_<TraceEvents>(submodule, "TraceEvents")
      .def(py::init(&make), py::arg("arrays"), py::arg("tables"), py::arg("rules"))
      .def("feed", &feed, py::arg("chunk"))
      .def("finish", &TraceEvents::finish, py::call_guard<py::gil_scoped_release>())
      .def("take_tables", &take_tables)
      .def("texts",
           [](const TraceEvents& scanner) {
             py::list out;
             for (const std::string& text : scanner.pool().texts()) out.append(to_text(text));
             return out;
           })
      .def("top",
           [](const TraceEvents& scanner) {
             py::dict out;
             for (const auto& [key, text] : scanner.top()) out[to_text(key)] = to_text(text);
             return out;
           })
      .def("categories",
           [](const TraceEvents& scanner) {
             py::dict out;
             for (const auto& [name, count] : scanner.categories()) out[to_text(name)] = count;
             return out;
           })
      .def("counts", [](const TraceEvents& scanner) {
        const auto& counts = scanner.counts();
        py::dict out;
        out["events"] = counts.events;
        out["kept"] = counts.kept;
        out["damaged"] = counts.damaged;
        out["oversized"] = counts.oversized;
        out["timeless"] = counts.timeless;
        out["truncated"] = static_cast<int>(counts.truncated);
        return out;
      });
}
