// Looks names of the driver up through the look-up hook, as a runtime does. SPDX-License-Identifier: Apache-2.0
//
// Each line of standard input is a name, a CUDA version and flags; for each, one line says whether the answer is ours ("hooked") or
// the driver's own ("passed"). The driver's is invented: it has every name. test_look_ups.py.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

int of_the_driver() { return 0; }

int look_up(const char* name, void** function, int version, std::uint64_t, int* status);

int look_up_without_status(const char* name, void** function, int version, std::uint64_t flags) {
  return look_up(name, function, version, flags, nullptr);
}

void* answer(const char* name, int version) {
  if (std::strcmp(name, "cuGetProcAddress") != 0) return reinterpret_cast<void*>(&of_the_driver);
  return version >= 12000 ? reinterpret_cast<void*>(&look_up) : reinterpret_cast<void*>(&look_up_without_status);
}

int look_up(const char* name, void** function, int version, std::uint64_t, int* status) {
  *function = answer(name, version);
  if (status != nullptr) *status = 0;
  return 0;
}

}  // namespace

int main(int count, char**) {
  auto* hook = reinterpret_cast<void* (*)(const char*, void*)>(dlsym(RTLD_DEFAULT, "stashtrace_lookup"));
  if (hook == nullptr) return 2;
  auto* asked = reinterpret_cast<decltype(&look_up)>(hook("cuGetProcAddress_v2", reinterpret_cast<void*>(&look_up)));
  auto* older = reinterpret_cast<decltype(&look_up_without_status)>(
      hook("cuGetProcAddress", reinterpret_cast<void*>(&look_up_without_status)));
  char name[128];
  int version = 0;
  unsigned long long flags = 0;
  while (std::scanf("%127s %d %llu", name, &version, &flags) == 3) {
    void* function = nullptr;
    const int result = count > 1 ? older(name, &function, version, flags) : asked(name, &function, version, flags, nullptr);
    if (result != 0) return 3;
    std::puts(function == answer(name, version) ? "passed" : "hooked");
  }
}
