// As much of libcuda.so.1 as the sampler of devices asks: which devices this process uses. SPDX-License-Identifier: Apache-2.0
//
// SMALL_CUDA_DEVICES is how many there are, CUDA_VISIBLE_DEVICES picks and orders them by number. A device is used once
// use_device(ordinal) was called; nothing works before cuInit(0).
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kNotInitialized = 3;
constexpr int kInvalidDevice = 101;
std::atomic<bool> initialised{false};
std::atomic<bool> used[16]{};

const std::vector<int>& visible() {
  static const auto* list = [] {
    auto* found = new std::vector<int>;
    const char* count = std::getenv("SMALL_CUDA_DEVICES");
    const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
    if (chosen != nullptr) {
      for (const char* at = chosen; *at != '\0'; ++at)
        if (*at != ',') found->push_back(*at - '0');
    } else {
      for (int i = 0; i < (count == nullptr ? 1 : std::atoi(count)); ++i) found->push_back(i);
    }
    return found;
  }();
  return *list;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  initialised = true;
  return 0;
}
int use_device(int ordinal) {
  used[ordinal] = true;
  return 0;
}
// Children that end at once, of several threads at the same time.
void fork_from_threads(int threads_count, int forks_count) {
  std::vector<std::thread> threads;
  for (int i = 0; i < threads_count; ++i)
    threads.emplace_back([forks_count] {
      for (int left = forks_count; left > 0; --left) {
        const pid_t child = fork();
        if (child == 0) _exit(0);
        int status = 0;
        waitpid(child, &status, 0);
      }
    });
  for (std::thread& thread : threads) thread.join();
}
int cuDeviceGetCount(int* count) {
  if (!initialised) return kNotInitialized;
  *count = static_cast<int>(visible().size());
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(visible().size())) return kInvalidDevice;
  *device = ordinal;
  return 0;
}
int cuDeviceGetUuid(unsigned char* uuid, int device) {
  for (int at = 0; at < 16; ++at) uuid[at] = static_cast<unsigned char>(0xa0 + at);
  uuid[15] = static_cast<unsigned char>(visible()[static_cast<std::size_t>(device)]);
  return 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = used[device] ? 1 : 0;
  return 0;
}
}
