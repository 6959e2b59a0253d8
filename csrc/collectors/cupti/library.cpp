// Implementation of library.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/cupti/library.h"

#include <iterator>
#include <string_view>

#include "abi/dynlib.h"

namespace stashtrace::cupti {
namespace {

// Newest first: a machine with both toolkits has the driver for it, and the job's own library was tried before.
constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr int kMajors[] = {13, 12, 0};
constexpr const char* kDriver[] = {"libcuda.so.1"};
constexpr int kVersionsOfMajor = 1000;  // 13020 is 13.2

}  // namespace

Status find_library(Library& out, bool may_load) noexcept {
  const std::size_t count = std::size(kNames);
  const Dynlib library = may_load ? Dynlib::load(kNames, count) : Dynlib::loaded(kNames, count);
  if (!library) return Status::failed("no_libcupti", "libcupti.so.13 or .12 is not loaded and not on the library path");
#define CUPTI_CALL(name, required, ...)           \
  if (!library.find(out.name, #name) && required) \
    return Status::failed("cupti_symbol_missing", #name " is not in libcupti");
  STASHTRACE_CUPTI_CALLS(CUPTI_CALL)
#undef CUPTI_CALL
  out.cuda_major = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (library.name() == std::string_view(kNames[i])) out.cuda_major = kMajors[i];
  return Status::ok();
}

Status find_device(const Library& library) noexcept {
  const Dynlib driver = Dynlib::loaded(kDriver, std::size(kDriver));
  int (*count_devices)(int*) = nullptr;
  int (*get_version)(int*) = nullptr;
  if (!driver || !driver.find(count_devices, "cuDeviceGetCount") || !driver.find(get_version, "cuDriverGetVersion"))
    return Status::failed("no_device", "the job has not used CUDA by the step before those of deep mode");
  int count = 0, version = 0;
  if (count_devices(&count) != 0 || count < 1)  // also where the job has not called cuInit
    return Status::failed("no_device", "the job has no CUDA device by the step before those of deep mode");
  if (get_version(&version) != 0 || version / kVersionsOfMajor < library.cuda_major)
    return Status::failed("driver_too_old", "the driver is older than the CUDA of the job's libcupti");
  return Status::ok();
}

}  // namespace stashtrace::cupti
