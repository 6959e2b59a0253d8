// stashtrace._native: the Python face of the schema, the recorder and the kernels.
// SPDX-License-Identifier: Apache-2.0
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
