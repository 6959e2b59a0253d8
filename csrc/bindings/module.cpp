// stashtrace._native: the Python face of the schema, the recorder and the kernels.
// SPDX-License-Identifier: Apache-2.0
//
// Not declared to run without the GIL (py::mod_gil_not_used): bind_calls.cpp replaces the slot of a function that other
// threads may be calling, scanners and encoders are objects without a lock, and no test runs on a free-threaded Python.
// In such a job the probes do not load this module (probes/bootstrap.py).
#include <pybind11/pybind11.h>

#include "bindings/binders.h"
#include "runtime/capi.h"

namespace py = pybind11;

#define STASHTRACE_DECLARE(name) void name(py::module_& module);
STASHTRACE_BINDERS(STASHTRACE_DECLARE)
#undef STASHTRACE_DECLARE

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native half of stashtrace: schema, recorder, kernels.";
  module.attr("__version__") = stashtrace_version();
#define STASHTRACE_CALL(name) name(module);
  STASHTRACE_BINDERS(STASHTRACE_CALL)
#undef STASHTRACE_CALL
}
