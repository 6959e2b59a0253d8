// stashtrace._native.clock: ticks -> ns, GIL released. Called by loading/clocks/host_clock.py.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "kernels/tick_map.h"

namespace py = pybind11;

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style>;

Column<std::int64_t> map_ticks(const Column<std::uint64_t>& ticks, const Column<std::int64_t>& anchor_ticks,
                               const Column<std::int64_t>& anchor_ns) {
  if (ticks.ndim() != 1 || anchor_ticks.ndim() != 1 || anchor_ticks.size() < 2 ||
      anchor_ns.size() != anchor_ticks.size())
    throw py::value_error("a map needs columns and at least two anchors");
  for (py::ssize_t i = 1; i < anchor_ticks.size(); ++i)
    if (anchor_ticks.at(i) <= anchor_ticks.at(i - 1)) throw py::value_error("anchors do not ascend");
  Column<std::int64_t> out(ticks.size());
  const auto size = [](const auto& column) { return static_cast<std::size_t>(column.size()); };
  std::int64_t* const data = out.mutable_data();
  const py::gil_scoped_release unlocked;
  stashtrace::tick_map::map_ticks({ticks.data(), size(ticks)}, {anchor_ticks.data(), size(anchor_ticks)},
                                  {anchor_ns.data(), size(anchor_ns)}, {data, size(ticks)});
  return out;
}

}  // namespace

void bind_clock(py::module_& module) {
  py::module_ part = module.def_submodule("clock", "Mapping of raw time stamps.");
  part.def("map_ticks", &map_ticks, py::arg("ticks").noconvert(), py::arg("anchor_ticks").noconvert(),
           py::arg("anchor_ns").noconvert(), "uint64 ticks -> int64 ns by a piecewise linear map.");
}
