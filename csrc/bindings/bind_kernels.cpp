// Deep mode: what the probes report to it, and what the decoder needs for names. SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>

#include "bindings/binders.h"
#include "runtime/capi.h"

namespace py = pybind11;

namespace {

// Offline: the demangler needs stack in proportion to the name, which a small thread in the job might not have.
py::str demangle(const std::string& name) {
  int status = -1;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  py::str out(status == 0 && text != nullptr ? text : name.c_str());
  std::free(text);
  return out;
}

}  // namespace

void bind_kernels(py::module_& module) {
  module.def(
      "kernels_step", [](std::uint64_t step) { stashtrace_kernels_step(step); }, py::arg("step"),
      "Deep mode: this many steps have ended.");
  module.def(
      "kernels_step_aside", [](const std::string& who) { stashtrace_kernels_step_aside(who.c_str()); }, py::arg("who"),
      "Deep mode: gives CUPTI back before another profiler takes it.");
  module.def("demangle", &demangle, py::arg("name"), "A C++ symbol as text; anything else as it is.");
}
