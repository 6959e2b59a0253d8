// Implementation of library.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/cupti/library.h"

#include <iterator>

#include "abi/dynlib.h"

namespace stashtrace::cupti {
namespace {

// Newest first: a machine with both toolkits has the driver for it, and the job's own was asked for before.
constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};

}  // namespace

Status find_library(Library& out, bool may_load) noexcept {
  const std::size_t count = std::size(kNames);
  const Dynlib library = may_load ? Dynlib::load(kNames, count) : Dynlib::loaded(kNames, count);
  if (!library)
    return Status::failed("no_libcupti", "libcupti.so.13 or .12 is not loaded and not on the library path");
#define CUPTI_CALL(name, required, ...) \
  if (!library.find(out.name, #name) && required) \
    return Status::failed("cupti_symbol_missing", #name " is not in libcupti");
  STASHTRACE_CUPTI_CALLS(CUPTI_CALL)
#undef CUPTI_CALL
  return Status::ok();
}

}  // namespace stashtrace::cupti
