// Modules and kernels of the libcuda double. SPDX-License-Identifier: Apache-2.0
//
// A kernel runs for as long as its first argument says (std::uint64_t, ns). PTX that reads %globaltimer is the one thing
// that is understood. With one parameter its kernel stores the timer to the address in it and takes kernel.globaltimer ns;
// with two, an address and ns, it takes so long and stores the timer of its begin and end there, unless the address is 0
// (STAMPED_PTX of benchmarks/gpu/cuda_driver.py).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "cuda_objects.h"

using namespace fake;

namespace {

struct Module {
  std::string text;
  std::map<std::string, Function*> functions;
};

struct GlobaltimerWork : Work {
  std::int64_t run(std::int64_t begin_ns) override {
    const auto half = static_cast<std::int64_t>(setting("kernel.globaltimer", 2000)) / 2;
    state().clock.work_until(begin_ns + half);
    const std::int64_t value = fake_engine()->globaltimer(device, begin_ns + half);
    std::atomic_ref<std::int64_t>(*to).store(value);
    state().clock.work_until(begin_ns + 2 * half);
    return begin_ns + 2 * half;
  }
  bool instant() const override { return true; }
  std::int64_t* to = nullptr;
  int device = 0;
};

struct StampedWork : Work {
  std::int64_t run(std::int64_t begin_ns) override {
    const std::int64_t end_ns = begin_ns + duration_ns;
    state().clock.work_until(end_ns);
    if (to != nullptr) {
      to[0] = fake_engine()->globaltimer(device, begin_ns);
      std::atomic_ref<std::int64_t>(to[1]).store(fake_engine()->globaltimer(device, end_ns));
    }
    return end_ns;
  }
  std::int64_t duration_ns = 0;
  std::int64_t* to = nullptr;
  int device = 0;
};

std::size_t parameters_count(const std::string& text, const std::string& name) {
  const auto entry = text.find(".entry " + name);
  const auto end = text.find(')', entry);
  std::size_t count = 0;
  for (auto at = text.find(".param", entry); at < end; at = text.find(".param", at + 1)) ++count;
  return count;
}

bool plausible_name(const std::string& text, std::string_view name) {
  const auto entry = text.find(".entry " + std::string(name));
  return entry != std::string::npos;
}

}  // namespace

FAKE_API int cuModuleLoadData(void** module, const void* image) {
  FAKE_CALL(cuModuleLoadData);
  if (const int error = context_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  const std::string text(static_cast<const char*>(image));
  if (text.find(".entry") == std::string::npos) return kInvalidImage;
  *module = new Module{text, {}};
  return kSuccess;
}

FAKE_API int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  FAKE_CALL(cuModuleLoadDataEx);
  return cuModuleLoadData(module, image);
}

FAKE_API int cuModuleUnload(void*) {
  FAKE_CALL(cuModuleUnload);
  return context_error();
}

FAKE_API int cuModuleGetFunction(void** function, void* module, const char* name) {
  FAKE_CALL(cuModuleGetFunction);
  if (const int error = context_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  auto* of = static_cast<Module*>(module);
  if (!plausible_name(of->text, name)) return kNotFound;
  Function*& made = of->functions[name];
  if (made == nullptr) {
    const bool timer = of->text.find("%globaltimer") != std::string::npos;
    made = new Function{name, timer, timer && parameters_count(of->text, name) == 2};
  }
  *function = made;
  return kSuccess;
}

FAKE_API int cuLaunchKernel(void* handle_of_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            void* handle, void** arguments, void**) {
  FAKE_CALL(cuLaunchKernel);
  if (const int error = context_error(); error != kSuccess) return error;
  std::unique_lock lock(state().mutex);
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return no_stream(handle);
  if (handle_of_function == nullptr) return kInvalidHandle;
  const auto* function = static_cast<Function*>(handle_of_function);
  Ran description{RanKind::kernel};
  description.name = function->name;
  description.correlation = state().next_correlation.fetch_add(1);
  if (function->stamped) {
    auto work = std::make_shared<StampedWork>();
    std::memcpy(&work->to, arguments[0], sizeof work->to);
    std::memcpy(&work->duration_ns, arguments[1], sizeof work->duration_ns);
    work->device = stream->context->device;
    return submit(lock, stream, std::move(work), description);
  }
  if (function->globaltimer) {
    auto work = std::make_shared<GlobaltimerWork>();
    std::memcpy(&work->to, arguments[0], sizeof work->to);
    work->device = stream->context->device;
    return submit(lock, stream, std::move(work), description);
  }
  std::uint64_t duration_ns = 0;
  if (arguments != nullptr) std::memcpy(&duration_ns, arguments[0], sizeof duration_ns);
  const double slower = device_setting(stream->context->device, "kernel.slower", 1);
  const auto slowed = static_cast<std::int64_t>(static_cast<double>(duration_ns) * slower);
  return submit(lock, stream, std::make_shared<TimedWork>(slowed), description);
}

FAKE_API int cuLaunchCooperativeKernel(void* function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                                       unsigned shared_bytes, void* stream, void** arguments) {
  FAKE_CALL(cuLaunchCooperativeKernel);
  return cuLaunchKernel(function, a, b, c, d, e, f, shared_bytes, stream, arguments, nullptr);
}

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attributes_count;
};

FAKE_API int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void** extra) {
  FAKE_CALL(cuLaunchKernelEx);
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, config->stream, arguments, extra);
}

FAKE_API int cuGetExportTable(const void** table, const void*) {
  FAKE_CALL(cuGetExportTable);
  *table = nullptr;
  return kNotFound;
}
