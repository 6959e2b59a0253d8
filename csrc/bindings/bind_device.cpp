// Timing events for the probes: batch waits and steps on a stream of the device. SPDX-License-Identifier: Apache-2.0
//
// Thin: each function is one call of runtime/capi.h. The GIL is kept: nothing here waits for a device.
#include <pybind11/pybind11.h>

#include "bindings/binders.h"
#include "runtime/capi.h"

namespace py = pybind11;

void bind_device(py::module_& module) {
  module.def(
      "device_active", [] { return stashtrace_device_active() != 0; },
      "Is a driver loaded, and does this thread have a context?");
  module.def("device_bracket_begin", &stashtrace_device_bracket_begin, py::arg("kind"), py::arg("stream"),
             py::arg("correlation"), "First event of a Bracket on a stream; gives a token, 0 if nothing was begun.");
  module.def("device_bracket_end", &stashtrace_device_bracket_end, py::arg("token"), py::arg("correlation"),
             "Second event; `correlation` replaces the one given before.");
  module.def("device_mark", &stashtrace_device_mark, py::arg("kind"), py::arg("stream"), py::arg("correlation"),
             "One event: a step's end, or how far the host leads.");
}
