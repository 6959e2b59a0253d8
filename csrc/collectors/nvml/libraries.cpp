// Finding libcuda and libnvidia-ml at run time. SPDX-License-Identifier: Apache-2.0
#include "collectors/nvml/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string_view>

namespace stashtrace::nvml {

namespace {

template <class Function>
void find(void* library, const char* symbol, Function& to) noexcept {
  to = reinterpret_cast<Function>(dlsym(library, symbol));
}

struct Search {
  unsigned long long additions;  // libraries loaded so far, at the last look
  bool found;
};

int look_at(dl_phdr_info* info, std::size_t, void* data) noexcept {
  auto& search = *static_cast<Search*>(data);
  if (info->dlpi_adds == search.additions) return 1;
  std::string_view name(info->dlpi_name);
  name.remove_prefix(name.rfind('/') + 1);
  search.found = name.starts_with("libcuda.so");
  return search.found ? 1 : 0;
}

int remember(dl_phdr_info* info, std::size_t, void* data) noexcept {
  static_cast<Search*>(data)->additions = info->dlpi_adds;
  return 1;
}

constinit Search g_search{0, false};

// As nvmlDeviceGetUUID writes it.
void write_uuid(const unsigned char (&bytes)[16], char (&text)[kUuidTextBytes]) noexcept {
  static constexpr char kDigits[] = "0123456789abcdef";
  char* to = text;
  std::memcpy(to, "GPU-", 4);
  to += 4;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *to++ = '-';
    *to++ = kDigits[bytes[i] >> 4];
    *to++ = kDigits[bytes[i] & 15];
  }
  *to = '\0';
}

}  // namespace

// dl_iterate_phdr, not dlopen(RTLD_NOLOAD): that one waits for a dlopen that runs constructors, for seconds while
// torch is imported, and would block the drainer.
bool driver_is_loaded() noexcept {
  if (g_search.found) return true;
  dl_iterate_phdr(&look_at, &g_search);
  if (!g_search.found) dl_iterate_phdr(&remember, &g_search);
  return g_search.found;
}

Status Libraries::open() noexcept {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return Status::failed("no_driver", "libcuda.so.1 was loaded under another name");
  find(driver, "cuDeviceGetCount", cuda_.count);
  find(driver, "cuDeviceGet", cuda_.device);
  find(driver, "cuDeviceGetUuid", cuda_.uuid);  // not _v2: a MIG instance is sampled as its whole device
  find(driver, "cuDevicePrimaryCtxGetState", cuda_.primary_state);
  if (cuda_.count == nullptr || cuda_.device == nullptr || cuda_.uuid == nullptr)
    return Status::failed("driver_too_old", "libcuda.so.1 lacks cuDeviceGetUuid");
  void* library = dlopen(abi::kNvmlLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status::failed("no_nvml", "libnvidia-ml.so.1 cannot be loaded: no device counters");
#define STASHTRACE_FIND(member, symbol, ...) find(library, symbol, nvml_.member);
  STASHTRACE_NVML_FUNCTIONS(STASHTRACE_FIND)
#undef STASHTRACE_FIND
  return Status::ok();
}

Status Libraries::init() noexcept {
  abi::NvmlReturn result = abi::kNvmlFunctionNotFound;
  if (nvml_.init != nullptr) {
    result = nvml_.init(0);
  } else if (nvml_.init_v2 != nullptr) {
    result = nvml_.init_v2();
  }
  if (result == abi::kNvmlSuccess) return Status::ok();
  return Status::failed("nvml_init_failed", "NVML does not work here (containers need the utility capability)", result);
}

int Libraries::used_devices(char (&uuids)[kMostDevices][kUuidTextBytes], bool any) noexcept {
  int visible = 0;
  if (cuda_.count(&visible) != 0) return -1;
  int found = 0;
  for (int ordinal = 0; ordinal < visible && found < kMostDevices; ++ordinal) {
    int device = 0;
    if (cuda_.device(&device, ordinal) != 0) continue;
    unsigned flags = 0;
    int active = 0;
    const bool asked = cuda_.primary_state != nullptr && cuda_.primary_state(device, &flags, &active) == 0;
    if (asked && active == 0 && !any) continue;
    unsigned char bytes[16] = {};
    if (cuda_.uuid(bytes, device) != 0) continue;
    write_uuid(bytes, uuids[found++]);
  }
  return found;
}

abi::NvmlDevice Libraries::handle_of(const char* uuid) noexcept {
  if (nvml_.device_count == nullptr || nvml_.handle_by_index == nullptr || nvml_.uuid == nullptr) return nullptr;
  unsigned count = 0;
  if (nvml_.device_count(&count) != abi::kNvmlSuccess) return nullptr;
  for (unsigned index = 0; index < count; ++index) {
    abi::NvmlDevice device = nullptr;
    char text[abi::kNvmlUuidBytes] = {};
    if (nvml_.handle_by_index(index, &device) != abi::kNvmlSuccess) continue;
    if (nvml_.uuid(device, text, sizeof text) == abi::kNvmlSuccess && std::strcmp(text, uuid) == 0) return device;
  }
  return nullptr;
}

}  // namespace stashtrace::nvml
