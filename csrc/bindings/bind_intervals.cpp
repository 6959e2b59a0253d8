// stashtrace._native.intervals: numpy face of kernels/intervals.h. Called by analysis/; the GIL is released inside.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/intervals.h"

namespace py = pybind11;
namespace intervals = stashtrace::intervals;

namespace {

using Array = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Pair = std::pair<Array, Array>;

intervals::Column column(const Array& array) {
  if (array.ndim() != 1) throw std::invalid_argument("expected columns of one dimension");
  return {array.data(), static_cast<std::size_t>(array.size())};
}

struct Columns {
  intervals::Column begin;
  intervals::Column end;
};

Columns columns(const Array& begin, const Array& end) {
  if (begin.size() != end.size()) throw std::invalid_argument("begin and end differ in length");
  return {column(begin), column(end)};
}

// Hands the vector's memory to numpy.
Array to_array(std::vector<std::int64_t>&& values) {
  auto* owned = new std::vector<std::int64_t>(std::move(values));
  py::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<std::int64_t>*>(pointer); });
  return Array(static_cast<py::ssize_t>(owned->size()), owned->data(), owner);
}

Pair to_pair(intervals::Intervals&& result) {
  return {to_array(std::move(result.begin)), to_array(std::move(result.end))};
}

Pair unite(const Array& begin, const Array& end) {
  const Columns given = columns(begin, end);
  intervals::Intervals out;
  {
    py::gil_scoped_release release;
    out = intervals::unite(given.begin, given.end);
  }
  return to_pair(std::move(out));
}

template <intervals::Intervals (*operation)(const intervals::Set&, const intervals::Set&)>
Pair binary(const Array& begin, const Array& end, const Array& begin_b, const Array& end_b) {
  const Columns a = columns(begin, end), b = columns(begin_b, end_b);
  intervals::Intervals out;
  {
    py::gil_scoped_release release;
    out = operation(intervals::Set(a.begin, a.end), intervals::Set(b.begin, b.end));
  }
  return to_pair(std::move(out));
}

Pair complement(const Array& begin, const Array& end, std::int64_t from, std::int64_t to) {
  const Columns given = columns(begin, end);
  intervals::Intervals out;
  {
    py::gil_scoped_release release;
    out = intervals::complement(intervals::Set(given.begin, given.end), from, to);
  }
  return to_pair(std::move(out));
}

Array coverage(const Array& begin, const Array& end, const Array& query_begin, const Array& query_end) {
  const Columns given = columns(begin, end), queries = columns(query_begin, query_end);
  std::vector<std::int64_t> out;
  {
    py::gil_scoped_release release;
    out = intervals::coverage(intervals::Set(given.begin, given.end), queries.begin, queries.end);
  }
  return to_array(std::move(out));
}

void need_set(const Columns& given) {
  if (!intervals::is_sorted_and_disjoint(given.begin, given.end))
    throw std::invalid_argument("intervals must be sorted, disjoint and not empty");
}

Array locate(const Array& begin, const Array& end, const Array& points) {
  const Columns given = columns(begin, end);
  const intervals::Column wanted = column(points);
  need_set(given);
  std::vector<std::int64_t> out;
  {
    py::gil_scoped_release release;
    out = intervals::locate(given.begin, given.end, wanted);
  }
  return to_array(std::move(out));
}

py::tuple join(const Array& begin, const Array& end, const Array& begin_b, const Array& end_b) {
  const Columns a = columns(begin, end), b = columns(begin_b, end_b);
  need_set(a);
  need_set(b);
  intervals::Pieces out;
  {
    py::gil_scoped_release release;
    out = intervals::join(a.begin, a.end, b.begin, b.end);
  }
  return py::make_tuple(to_array(std::move(out.begin)), to_array(std::move(out.end)), to_array(std::move(out.left)),
                        to_array(std::move(out.right)));
}

std::vector<Columns> layer_columns(const std::vector<Pair>& layers) {
  std::vector<Columns> out;
  out.reserve(layers.size());
  for (const auto& [begin, end] : layers) out.push_back(columns(begin, end));
  return out;
}

std::vector<intervals::Set> layer_sets(const std::vector<Columns>& given) {
  std::vector<intervals::Set> out;
  out.reserve(given.size());
  for (const Columns& layer : given) out.emplace_back(layer.begin, layer.end);
  return out;
}

py::tuple paint(const std::vector<Pair>& layers) {
  const std::vector<Columns> given = layer_columns(layers);
  intervals::Painted out;
  {
    py::gil_scoped_release release;
    out = intervals::paint(layer_sets(given));
  }
  return py::make_tuple(to_array(std::move(out.begin)), to_array(std::move(out.end)), to_array(std::move(out.layer)));
}

Array attribute(const std::vector<Pair>& layers, const Array& window_begin, const Array& window_end) {
  const std::vector<Columns> given = layer_columns(layers);
  const Columns windows = columns(window_begin, window_end);
  need_set(windows);
  std::vector<std::int64_t> out;
  {
    py::gil_scoped_release release;
    out = intervals::attribute(layer_sets(given), windows.begin, windows.end);
  }
  const auto rows = static_cast<py::ssize_t>(windows.begin.size());
  return to_array(std::move(out)).reshape({rows, static_cast<py::ssize_t>(layers.size() + 1)});
}

}  // namespace

void bind_intervals(py::module_& module) {
  py::module_ submodule =
      module.def_submodule("intervals", "Set algebra on sorted columns of [begin, end) in int64 ns.");
  using py::arg;
  submodule.def("union", &unite, arg("begin"), arg("end"), "Sorted disjoint set of any intervals.");
  submodule.def("intersect", &binary<&intervals::intersect>, arg("begin"), arg("end"), arg("begin2"), arg("end2"),
                "Time that lies in both sets.");
  submodule.def("subtract", &binary<&intervals::subtract>, arg("begin"), arg("end"), arg("begin2"), arg("end2"),
                "Time of the first set that is not in the second.");
  submodule.def("complement", &complement, arg("begin"), arg("end"), arg("window_begin"), arg("window_end"),
                "Time of one window that is not in the set.");
  submodule.def("coverage", &coverage, arg("begin"), arg("end"), arg("query_begin"), arg("query_end"),
                "Length of the set inside each query window.");
  submodule.def("locate", &locate, arg("begin"), arg("end"), arg("points"),
                "Row of the interval that holds each point, or -1.");
  submodule.def("join", &join, arg("begin"), arg("end"), arg("begin2"), arg("end2"),
                "(begin, end, row, row2) of each pair that overlaps; both sides sorted and disjoint.");
  submodule.def("paint", &paint, arg("layers"),
                "(begin, end, layer): each piece of time with the first layer that covers it.");
  submodule.def("attribute", &attribute, arg("layers"), arg("window_begin"), arg("window_end"),
                "Matrix windows x (layers + 1): ns of each window by first covering layer, the rest last.");
}
