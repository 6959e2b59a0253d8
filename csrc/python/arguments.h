// Arguments of a function that Python calls, checked and converted. SPDX-License-Identifier: Apache-2.0
//
// A converter that returns false has set a Python exception, with which the function returns null.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>

#include "abi/cpython.h"

namespace stashtrace::python {

using cpython::api;
using cpython::Object;
using cpython::Owned;
using cpython::Size;

inline Object* none() noexcept {
  api().Py_IncRef(api().none);
  return api().none;
}

inline bool expect(const char* name, Size count, Size wanted) noexcept {
  if (count == wanted) return true;
  api().PyErr_Format(api().type_error, "%s() takes %zd arguments, %zd were given", name, wanted, count);
  return false;
}

template <std::unsigned_integral T>
bool to_number(Object* given, T& out) noexcept {
  const Owned index(api().PyNumber_Index(given));
  if (!index) return false;
  const unsigned long long value = api().PyLong_AsUnsignedLongLong(index.get());
  if (value == std::numeric_limits<unsigned long long>::max() && api().PyErr_Occurred() != nullptr) return false;
  if (value > std::numeric_limits<T>::max()) {
    api().PyErr_Format(api().value_error, "%R is too large", given);
    return false;
  }
  out = static_cast<T>(value);
  return true;
}

template <std::signed_integral T>
bool to_number(Object* given, T& out) noexcept {
  const Owned index(api().PyNumber_Index(given));
  if (!index) return false;
  const long long value = api().PyLong_AsLongLong(index.get());
  if (value == -1 && api().PyErr_Occurred() != nullptr) return false;
  if (value > std::numeric_limits<T>::max() || value < std::numeric_limits<T>::min()) {
    api().PyErr_Format(api().value_error, "%R is out of range", given);
    return false;
  }
  out = static_cast<T>(value);
  return true;
}

inline bool to_bool(Object* given, bool& out) noexcept {
  const int answer = api().PyObject_IsTrue(given);
  out = answer > 0;
  return answer >= 0;
}

inline bool to_bytes(Object* given, std::string_view& out) noexcept {
  char* data = nullptr;
  Size count = 0;
  if (api().PyBytes_AsStringAndSize(given, &data, &count) != 0) return false;
  out = {data, static_cast<std::size_t>(count)};
  return true;
}

// A str as UTF-8, which ends with a zero. Lone surrogates (os.fsdecode of odd file names) become the bytes they stand for.
class Text {
 public:
  bool take(Object* given) noexcept {
    Size count = 0;
    if (const char* utf8 = api().PyUnicode_AsUTF8AndSize(given, &count)) {
      view_ = {utf8, static_cast<std::size_t>(count)};
      return true;
    }
    for (const char* errors : {"surrogateescape", "backslashreplace"}) {
      api().PyErr_Clear();
      encoded_.reset(api().PyUnicode_AsEncodedString(given, "utf-8", errors));
      if (encoded_) return to_bytes(encoded_.get(), view_);
    }
    return false;
  }
  std::string_view view() const noexcept { return view_; }
  const char* c_str() const noexcept { return view_.data(); }

 private:
  Owned encoded_;
  std::string_view view_;
};

}  // namespace stashtrace::python
