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

// Headers leave no name in a binary. The list of parts that a wheel carries is read from the binaries (ci/sbom.py).
#define STASHTRACE_TEXT_OF(token) #token
#define STASHTRACE_TEXT(token) STASHTRACE_TEXT_OF(token)
__asm__(".ident \"pybind11 " STASHTRACE_TEXT(PYBIND11_VERSION_MAJOR) "." STASHTRACE_TEXT(
    PYBIND11_VERSION_MINOR) "." STASHTRACE_TEXT(PYBIND11_VERSION_PATCH) "\"");

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
