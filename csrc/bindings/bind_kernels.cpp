// Names of kernels as text, for the decoder of deep mode. SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>

#include "bindings/binders.h"

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
  module.def("demangle", &demangle, py::arg("name"), "A C++ symbol as text; anything else as it is.");
}
