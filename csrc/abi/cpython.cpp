// Implementation of cpython.h. SPDX-License-Identifier: Apache-2.0
#include "abi/cpython.h"

#include <dlfcn.h>

#include <atomic>

namespace stashtrace::cpython {

namespace {

// Threads that ask at once, in an interpreter without a GIL, fill two tables with the same; the first one published stays.
constinit std::atomic<bool> g_found{false};
constinit std::atomic_flag g_filling = ATOMIC_FLAG_INIT;
constinit Api g_api{};

void* look(const char* name) noexcept { return dlsym(RTLD_DEFAULT, name); }

template <typename F>
bool look(F& to, const char* name) noexcept {
  to = reinterpret_cast<F>(look(name));
  return to != nullptr;
}

// A variable of CPython that holds an object, such as PyExc_ValueError.
bool look_up_variable(Object*& to, const char* name) noexcept {
  auto* const variable = static_cast<Object**>(look(name));
  to = variable != nullptr ? *variable : nullptr;
  return to != nullptr;
}

bool fill(Api& api) noexcept {
  bool complete = true;
#define STASHTRACE_CPYTHON_LOOK(result, name, parameters) complete = look(api.name, #name) && complete;
  STASHTRACE_CPYTHON_FUNCTIONS(STASHTRACE_CPYTHON_LOOK)
#undef STASHTRACE_CPYTHON_LOOK
  complete = look_up_variable(api.type_error, "PyExc_TypeError") && complete;
  complete = look_up_variable(api.value_error, "PyExc_ValueError") && complete;
  complete = look(api.function_type, "PyFunction_Type") && complete;
  complete = look(api.none, "_Py_NoneStruct") && complete;
  if (!look(api.set_vectorcall, "PyFunction_SetVectorcall") || !look(api.get_vectorcall, "PyVectorcall_Function")) {
    api.get_vectorcall = nullptr;
    api.set_vectorcall = nullptr;
  }
  look(api.vectorcall, "_PyFunction_Vectorcall");
  return complete;
}

}  // namespace

bool find() noexcept {
  if (g_found.load(std::memory_order_acquire)) return true;
  Api own{};
  if (!fill(own)) return false;
  if (!g_filling.test_and_set(std::memory_order_acquire)) {
    g_api = own;
    g_found.store(true, std::memory_order_release);
    return true;
  }
  while (!g_found.load(std::memory_order_acquire)) continue;  // another thread copies the table: some nanoseconds
  return true;
}

const Api& api() noexcept { return g_api; }

}  // namespace stashtrace::cpython
