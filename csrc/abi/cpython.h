// The functions of CPython that csrc/python uses, as its stable ABI of version 3.10 has them.
// SPDX-License-Identifier: Apache-2.0
//
// libstashtrace.so is linked with no Python and must be loaded by each: it finds these by name in the process, when a
// Python first asks for the probes' functions. Only functions are used, never the inside of an object, so that one
// library serves all versions and builds (debug, without a GIL). All but find() and what it says need the GIL, or an
// attached thread state.
#pragma once

#include <cstddef>

namespace stashtrace::cpython {

struct Object;  // PyObject
using Size = std::ptrdiff_t;
using Function = Object* (*)(Object* self, Object* const* arguments, Size count);
using VectorCall = Object* (*)(Object* callable, Object* const* arguments, std::size_t count_and_flag, Object* names);

struct MethodDef {  // PyMethodDef
  const char* name;
  Function function;
  int flags;
  const char* doc;
};
inline constexpr int kFastCall = 0x0080;  // METH_FASTCALL
inline constexpr std::size_t kArgumentsOffset = std::size_t{1} << (8 * sizeof(std::size_t) - 1);

// X(result, name, parameters)
#define STASHTRACE_CPYTHON_FUNCTIONS(X)                                                            \
  X(void, PyErr_SetString, (Object * kind, const char* text))                                      \
  X(Object*, PyErr_Format, (Object * kind, const char* format, ...))                               \
  X(Object*, PyErr_Occurred, ())                                                                   \
  X(void, PyErr_Clear, ())                                                                         \
  X(void, PyErr_Fetch, (Object * *kind, Object * *value, Object * *traceback))                     \
  X(void, PyErr_Restore, (Object * kind, Object * value, Object * traceback))                      \
  X(Object*, PyNumber_Index, (Object * number))                                                    \
  X(unsigned long long, PyLong_AsUnsignedLongLong, (Object * number))                              \
  X(long long, PyLong_AsLongLong, (Object * number))                                               \
  X(Object*, PyLong_FromUnsignedLongLong, (unsigned long long value))                              \
  X(Object*, PyBool_FromLong, (long value))                                                        \
  X(int, PyObject_IsTrue, (Object * object))                                                       \
  X(Object*, PyUnicode_FromString, (const char* utf8))                                             \
  X(const char*, PyUnicode_AsUTF8AndSize, (Object * text, Size * bytes))                           \
  X(Object*, PyUnicode_AsEncodedString, (Object * text, const char* encoding, const char* errors)) \
  X(Object*, PyUnicode_DecodeFSDefault, (const char* bytes))                                       \
  X(Object*, PyBytes_FromStringAndSize, (const char* bytes, Size count))                           \
  X(int, PyBytes_AsStringAndSize, (Object * bytes, char** data, Size* count))                      \
  X(Object*, Py_BuildValue, (const char* format, ...))                                             \
  X(Object*, PyList_New, (Size count))                                                             \
  X(int, PyList_Append, (Object * list, Object * item))                                            \
  X(Object*, PyDict_New, ())                                                                       \
  X(int, PyDict_SetItemString, (Object * dict, const char* key, Object* value))                    \
  X(Object*, PyCFunction_NewEx, (MethodDef * method, Object * self, Object * module))              \
  X(Object*, PyObject_CallNoArgs, (Object * callable))                                             \
  X(Object*, PyObject_CallFunctionObjArgs, (Object * callable, ...))                               \
  X(Object*, PyObject_Type, (Object * object))                                                     \
  X(Object*, PyObject_GetAttrString, (Object * object, const char* name))                          \
  X(void, Py_IncRef, (Object * object))                                                            \
  X(void, Py_DecRef, (Object * object))                                                            \
  X(void*, PyEval_SaveThread, ())                                                                  \
  X(void, PyEval_RestoreThread, (void* thread))

struct Api {
#define STASHTRACE_CPYTHON_POINTER(result, name, parameters) result(*name) parameters;
  STASHTRACE_CPYTHON_FUNCTIONS(STASHTRACE_CPYTHON_POINTER)
#undef STASHTRACE_CPYTHON_POINTER
  Object* none;
  Object* type_error;
  Object* value_error;
  Object* function_type;  // of functions that are written in Python
  // How the call slot of a Python function is read and set. Null before 3.12, where `vectorcall`, the interpreter's own
  // entry of such functions, shows where in the object the slot lies.
  VectorCall (*get_vectorcall)(Object* function);
  void (*set_vectorcall)(Object* function, VectorCall slot);
  VectorCall vectorcall;
};

// False where the process has no CPython, or one that lacks any of the functions. Needs the GIL; a second call is free.
bool find() noexcept;

// Filled by find(); read by what find() was true for.
const Api& api() noexcept;

// A reference that is given back at the end of the scope.
class Owned {
 public:
  explicit Owned(Object* object = nullptr) noexcept : object_(object) {}
  ~Owned() { reset(); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Object* get() const noexcept { return object_; }
  Object* release() noexcept {
    Object* const object = object_;
    object_ = nullptr;
    return object;
  }
  void reset(Object* object = nullptr) noexcept {
    if (object_ != nullptr) api().Py_DecRef(object_);
    object_ = object;
  }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  Object* object_;
};

}  // namespace stashtrace::cpython
