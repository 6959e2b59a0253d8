// Calls every function that the collectors of devices hook, on a machine that has none of them. SPDX-License-Identifier: Apache-2.0
//
// Argument: runtime, driver or nccl. Prints how many functions there were, and how many gave another answer than the one
// of a library without the function. The tables of the collectors are the lists, so a new hook is called too. test_every_call.py.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "abi/cuda_abi.h"
#include "abi/nccl_abi.h"

namespace {

int calls = 0, others = 0;

template <class T>
T argument() {
  return T{};
}
template <>
const stashtrace::cuda::LaunchConfig* argument() {
  static stashtrace::cuda::LaunchConfig config{};
  return &config;
}
template <>
const stashtrace::cuda::DriverLaunchConfig* argument() {
  static stashtrace::cuda::DriverLaunchConfig config{};
  return &config;
}

template <class F>
struct Call;
template <class... A>
struct Call<int(A...)> {
  static int refuse(A...) { return stashtrace::cuda::kSymbolNotFound; }
  static int with_nothing(void* function) { return reinterpret_cast<int (*)(A...)>(function)(argument<A>()...); }
};

void judge(const char* name, int result, int expected) {
  ++calls;
  if (result == expected) return;
  ++others;
  std::printf("%s %d\n", name, result);
}

template <class F>
void in_front(const char* name, int expected) {
  if (void* function = dlsym(RTLD_DEFAULT, name)) judge(name, Call<F>::with_nothing(function), expected);
}

void runtime() {
  using namespace stashtrace::cuda;
#define CUDART(name, ...) in_front<Result(__VA_ARGS__)>(#name, kSymbolNotFound);
#include "collectors/cuda/runtime_calls.def"
#undef CUDART
}

void nccl() {
  using namespace stashtrace::nccl;
#define HOOKED(name, first, ...) in_front<function::name>(#name, kInternalError);
  STASHTRACE_NCCL_CALLS(HOOKED)
#undef HOOKED
}

// What the look-up hook gives in return for a symbol of the driver's library.
template <class F>
void looked_up(void* (*look_up)(const char*, void*), const char* symbol) {
  void* const real = reinterpret_cast<void*>(&Call<F>::refuse);
  void* const given = look_up(symbol, real);
  if (given != real) judge(symbol, Call<F>::with_nothing(given), stashtrace::cuda::kSymbolNotFound);
}

void driver() {
  using namespace stashtrace::cuda;
  auto* look_up = reinterpret_cast<void* (*)(const char*, void*)>(dlsym(RTLD_DEFAULT, "stashtrace_lookup"));
  if (look_up == nullptr) return;
#define LOOKED_UP(name, suffix, since, until, per_thread, per_thread_since, ...) \
  looked_up<Result(__VA_ARGS__)>(look_up, #name #suffix);                        \
  if (per_thread_since != 0) looked_up<Result(__VA_ARGS__)>(look_up, #name #suffix #per_thread);
#include "collectors/cuda/driver_calls.def"
#undef LOOKED_UP
}

}  // namespace

int main(int, char** arguments) {
  if (std::strcmp(arguments[1], "runtime") == 0) runtime();
  if (std::strcmp(arguments[1], "driver") == 0) driver();
  if (std::strcmp(arguments[1], "nccl") == 0) nccl();
  std::printf("%d calls, %d others\n", calls, others);
}
