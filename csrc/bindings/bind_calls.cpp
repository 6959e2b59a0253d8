// Outermost calls of one Python function, for the probe of nn.Module.__call__. SPDX-License-Identifier: Apache-2.0
//
// A call of a module goes through type(module).__call__, a Python function, and so through its vectorcall slot. That
// slot is set here, nothing else: the function keeps its identity, code and attributes, so that Dynamo, fx,
// pickle and code that compares functions see no difference. A call inside another one on the same thread goes straight
// to the original slot, for the price of reading a thread-local flag: no Python frame, no object.
//
// Not seen: Python 3.11 enters a function named directly, with positional arguments only (`Module.__call__(m, x)`),
// without asking its slot. Calls of instances, with or without keywords, and `super().__call__(*args, **kwargs)` do.
#include <pybind11/pybind11.h>

#include <atomic>
#include <mutex>

#include "bindings/binders.h"

namespace py = pybind11;

namespace {

struct Watch {
  PyObject* function = nullptr;  // all three are held for good: a thread may be inside at any time
  PyObject* begins = nullptr;
  PyObject* ends = nullptr;
  vectorcallfunc original = nullptr;
};
// Written once, before the slot leads here; without a GIL, other threads may be calling the function meanwhile.
Watch watch;
std::mutex watch_lock;
thread_local bool inside = false;

void set_slot(PyObject* function, vectorcallfunc slot) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), slot);
#else
  reinterpret_cast<PyFunctionObject*>(function)->vectorcall = slot;
#endif
}

// `begins` and `ends` keep their exceptions to themselves; one that comes all the same (an interrupt, the end of the
// interpreter) is passed to the caller before the call, and dropped after it, when an outcome already exists.
PyObject* outermost_call(PyObject* function, PyObject* const* args, std::size_t nargsf, PyObject* names) {
  if (PyVectorcall_NARGS(nargsf) < 1) return watch.original(function, args, nargsf, names);
  PyObject* token = PyObject_CallNoArgs(watch.begins);
  if (token == nullptr) return nullptr;
  inside = true;
  PyObject* result = watch.original(function, args, nargsf, names);
  inside = false;
  if (token != Py_None) {
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject* failed = result == nullptr ? Py_True : Py_False;
    PyObject* told = PyObject_CallFunctionObjArgs(watch.ends, args[0], token, failed, nullptr);
    if (told == nullptr && result != nullptr) {
      Py_CLEAR(result);  // an interrupt that came while the end was recorded belongs to the user
    } else {
      if (told == nullptr) PyErr_Clear();
      PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(told);
  }
  Py_DECREF(token);
  return result;
}

PyObject* watched_call(PyObject* function, PyObject* const* args, std::size_t nargsf, PyObject* names) {
  if (inside) return watch.original(function, args, nargsf, names);
  return outermost_call(function, args, nargsf, names);
}

bool watch_outermost_calls(const py::object& function, const py::object& begins, const py::object& ends) {
  if (!PyFunction_Check(function.ptr())) return false;
  const std::lock_guard only(watch_lock);
  if (watch.function != nullptr) return watch.function == function.ptr();
  watch.original = reinterpret_cast<PyFunctionObject*>(function.ptr())->vectorcall;
  if (watch.original == nullptr) return false;
  watch.function = py::object(function).release().ptr();
  watch.begins = py::object(begins).release().ptr();
  watch.ends = py::object(ends).release().ptr();
  std::atomic_thread_fence(std::memory_order_release);
  set_slot(watch.function, &watched_call);
  return true;
}

}  // namespace

void bind_calls(py::module_& module) {
  module.def("watch_outermost_calls", &watch_outermost_calls, py::arg("function"), py::arg("begins"), py::arg("ends"),
             "Call begins() before and ends(first argument, what begins() gave, failed) after each call of a Python "
             "function that is not inside another one on its thread; no end if begins() gives None. One function per "
             "process: False for a second one, and for what is no Python function.");
  module.def("in_outermost_call", [] { return inside; }, "Is this thread inside a watched call?");
  module.def("forget_outermost_call", [] { inside = false; }, "For a forked child: its calls are outermost again.");
}
