// Attaching to NCCL in a process that was started without preload. SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "bindings/binders.h"
#include "runtime/capi.h"

namespace py = pybind11;

void bind_nccl(py::module_& module) {
  module.def(
      "attach_nccl", [] { return stashtrace_attach_nccl(); },
      "Make calls of NCCL lead to the recorder, in a process without LD_PRELOAD: how many import-table slots were "
      "changed, 0 if none was left to change or no libnccl is loaded, -1 if the collector is off.");
}
