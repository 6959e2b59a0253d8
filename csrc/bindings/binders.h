// The list of binders: each csrc/bindings/bind_X.cpp defines `void bind_X(py::module_& module)`.
// SPDX-License-Identifier: Apache-2.0
//
// module.cpp calls them in this order. To add one: a file bind_X.cpp and one line in the list below.
#pragma once

#define STASHTRACE_BINDERS(BINDER) \
  BINDER(bind_intervals)           \
  BINDER(bind_graph)               \
  BINDER(bind_perfetto)            \
  BINDER(bind_codec)               \
  BINDER(bind_clock)               \
  BINDER(bind_kernels)             \
  BINDER(bind_importers)           \
  // end of list
