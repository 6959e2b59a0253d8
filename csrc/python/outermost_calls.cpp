// Outermost calls of one Python function, for the probe of nn.Module.__call__. SPDX-License-Identifier: Apache-2.0
//
// A call of a module goes through type(module).__call__, a Python function, and so through its vectorcall slot. That
// slot is set here, nothing else: the function keeps its identity, code and attributes, so that Dynamo, fx,
// pickle and code that compares functions see no difference. A call inside another one on the same thread goes straight
// to the original slot, for the price of reading a thread-local flag: no Python frame, no object.
//
// Not seen: Python 3.11 enters a function named directly, with positional arguments only (`Module.__call__(m, x)`),
// without asking its slot. Calls of instances, with or without keywords, and `super().__call__(*args, **kwargs)` do.
#include <atomic>
#include <cstring>

#include "python/arguments.h"
#include "python/functions.h"

namespace stashtrace::python {

namespace {

using cpython::VectorCall;

struct Watch {
  std::atomic<Object*> function{nullptr};  // all three are held for good: a thread may be inside at any time
  Object* begins = nullptr;
  Object* ends = nullptr;
  std::atomic<VectorCall> original{nullptr};  // stored last
};
// Written once, before the slot leads here; without a GIL, other threads may be calling the function meanwhile.
constinit Watch g_watch;
// Taken for good by the first thread that asks to watch a function, and given back if that cannot be watched.
constinit std::atomic<bool> g_taken{false};
constinit thread_local bool inside = false;

// On a processor that reorders loads, a thread without a GIL may read the new slot first and the watch after that.
VectorCall original_call() noexcept {
  VectorCall original = g_watch.original.load(std::memory_order_acquire);
  while (original == nullptr) original = g_watch.original.load(std::memory_order_acquire);
  return original;
}

// `begins` and `ends` keep their exceptions to themselves; one that comes all the same (an interrupt, the end of the
// interpreter) is passed to the caller before the call, and dropped after it, when an outcome already exists.
Object* outermost_call(VectorCall original, Object* function, Object* const* args, std::size_t nargsf, Object* names) {
  if ((nargsf & ~cpython::kArgumentsOffset) < 1) return original(function, args, nargsf, names);
  const Owned token(api().PyObject_CallNoArgs(g_watch.begins));
  if (!token) return nullptr;
  inside = true;
  Owned result(original(function, args, nargsf, names));
  inside = false;
  if (token.get() == api().none) return result.release();
  Object *kind = nullptr, *value = nullptr, *traceback = nullptr;
  api().PyErr_Fetch(&kind, &value, &traceback);
  const Owned failed(api().PyBool_FromLong(!result));
  const Owned recorded(api().PyObject_CallFunctionObjArgs(g_watch.ends, args[0], token.get(), failed.get(), nullptr));
  if (!recorded && result) {
    result.reset();  // an interrupt that came while the end was recorded belongs to the user
    return nullptr;
  }
  if (!recorded) api().PyErr_Clear();
  api().PyErr_Restore(kind, value, traceback);
  return result.release();
}

Object* watched_call(Object* function, Object* const* args, std::size_t nargsf, Object* names) {
  const VectorCall original = original_call();
  if (inside) return original(function, args, nargsf, names);
  return outermost_call(original, function, args, nargsf, names);
}

// Before 3.12 no function returns where the slot lies. It is the one word of the object that holds the interpreter's own
// entry; null if there is none, or more than one.
VectorCall* slot_of(Object* function) noexcept {
  const Owned type(api().PyObject_Type(function));
  const Owned size(type ? api().PyObject_GetAttrString(type.get(), "__basicsize__") : nullptr);
  std::uint64_t bytes = 0;
  if (!size || !to_number(size.get(), bytes)) {
    api().PyErr_Clear();
    return nullptr;
  }
  VectorCall* found = nullptr;
  auto* const words = reinterpret_cast<VectorCall*>(function);
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) {
    if (words[i] != api().vectorcall) continue;
    if (found != nullptr) return nullptr;
    found = words + i;
  }
  return found;
}

// True if the slot leads to watched_call() now.
bool set_slot(Object* function) noexcept {
  if (api().set_vectorcall != nullptr) {
    const VectorCall original = api().get_vectorcall(function);
    if (original == nullptr) return false;
    g_watch.original.store(original, std::memory_order_release);
    api().set_vectorcall(function, &watched_call);
    return true;
  }
  VectorCall* const slot = api().vectorcall != nullptr ? slot_of(function) : nullptr;
  if (slot == nullptr) return false;
  g_watch.original.store(*slot, std::memory_order_release);
  std::atomic_ref(*slot).store(&watched_call, std::memory_order_release);
  return true;
}

bool watch_calls_of(Object* function, Object* begins, Object* ends) noexcept {
  const Owned type(api().PyObject_Type(function));
  if (type.get() != api().function_type) return false;
  // No lock: a thread that waited for it without a GIL would hold up a stop of all threads.
  if (g_taken.exchange(true, std::memory_order_acquire)) return g_watch.function.load() == function;
  for (Object* held : {function, begins, ends}) api().Py_IncRef(held);
  g_watch.begins = begins;
  g_watch.ends = ends;
  if (set_slot(function)) {
    g_watch.function = function;
    return true;
  }
  for (Object* held : {function, begins, ends}) api().Py_DecRef(held);
  g_taken.store(false, std::memory_order_release);
  return false;
}

}  // namespace

STASHTRACE_FUNCTION(watch_outermost_calls) {
  (void)self;
  if (!expect("watch_outermost_calls", count, 3)) return nullptr;
  return api().PyBool_FromLong(watch_calls_of(given[0], given[1], given[2]));
}

STASHTRACE_FUNCTION(in_outermost_call) {
  (void)self, (void)given;
  return expect("in_outermost_call", count, 0) ? api().PyBool_FromLong(inside) : nullptr;
}

STASHTRACE_FUNCTION(forget_outermost_call) {
  (void)self, (void)given;
  if (!expect("forget_outermost_call", count, 0)) return nullptr;
  inside = false;
  return none();
}

}  // namespace stashtrace::python
