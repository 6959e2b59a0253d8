// stashtrace._native: the kernels for offline code, and the recorder's functions. SPDX-License-Identifier: Apache-2.0
//
// Not declared to run without the GIL (py::mod_gil_not_used): scanners and encoders are objects without a lock, and no test
// runs on a free-threaded Python. No probe loads this module: they have the recorder's functions from the library itself,
// so that the job's Python may be another than ours (stashtrace/probes/native.py).
#include <pybind11/pybind11.h>

#include "bindings/binders.h"
#include "runtime/capi.h"

namespace py = pybind11;

// Headers leave no name in a binary. The list of parts that a wheel carries is read from the binaries (scripts/release/sbom.py).
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
  const auto functions = py::reinterpret_steal<py::dict>(static_cast<PyObject*>(stashtrace_python_functions()));
  if (!functions) {
    if (PyErr_Occurred() == nullptr) throw py::import_error("this Python lacks a function of the stable ABI");
    throw py::error_already_set();
  }
  for (const auto& [name, function] : functions) module.attr(name) = function;
#define STASHTRACE_CALL(name) name(module);
  STASHTRACE_BINDERS(STASHTRACE_CALL)
#undef STASHTRACE_CALL
}
