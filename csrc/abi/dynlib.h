// Symbols of libraries that the process may or may not have. SPDX-License-Identifier: Apache-2.0
//
// Callers: csrc/device and the collectors that use CUDA, NCCL, NVML and CUPTI. Never call these on a hot path or in a
// signal handler: dlopen and dlsym take the loader's lock. They never return a function of our own library, so no
// call passes through our hooks. No errno is touched.
#pragma once

#include <cstddef>

#include "core/status.h"

namespace stashtrace {

class Dynlib {
 public:
  constexpr Dynlib() noexcept = default;

  // The first of `names` that is already loaded, in any scope; loads nothing and keeps its use count.
  static Dynlib loaded(const char* const* names, std::size_t count) noexcept;
  // The same, else loads the first that can be found, only for this handle (RTLD_LOCAL).
  static Dynlib load(const char* const* names, std::size_t count) noexcept;

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  void* symbol(const char* name) const noexcept;       // null if it is not there
  const char* name() const noexcept { return name_; }  // as passed by the caller, "" if absent

  // True if it is there; `to` is null otherwise.
  template <class F>
  bool find(F*& to, const char* name) const noexcept {
    to = reinterpret_cast<F*>(symbol(name));
    return to != nullptr;
  }

 private:
  void* handle_ = nullptr;
  const char* name_ = "";
};

// Libraries that this process has loaded so far, including unloaded ones: while it does not change, a library that was
// absent is absent. Takes some tens of ns, whereas a look for an absent library compares names with all loaded ones.
unsigned long long libraries_added() noexcept;

// The function that a hook of ours named `name` stands in front of: in the first loaded of `libraries`, under `preferred`
// (null: none) and then under `name`; else the next definition in the caller's scope; else in any loaded object that
// exports it. Null if no object has it.
void* find_behind_hook(const char* const* libraries, std::size_t count, const char* name,
                       const char* preferred = nullptr) noexcept;

// The same for a hook that callers reach by a version of the symbol: the definition that the loader would have bound them to.
// `version` is also the name of the library that defines it.
void* find_versioned_behind_hook(const char* version, const char* name) noexcept;

// Start of the loaded object that an address lies in, null if none.
const void* object_of(const void* address) noexcept;

// The object whose definition of `name` a reference without a version binds to, in the object that `caller` lies in: the first
// in the global scope, else in what that object needs. Null if there is none.
const void* object_of_unversioned(const void* caller, const char* name) noexcept;

}  // namespace stashtrace
