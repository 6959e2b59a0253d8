// Implementation of chain.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/chain.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstring>

#include "collectors/nccl/nccl_collector.h"
#include "core/futex_lock.h"
#include "core/text_buffer.h"
#include "runtime/emit.h"

namespace stashtrace::nccl::chain {

constinit Slab<HandlePair, 65536, 15> pairs;

namespace {

constexpr unsigned kContexts = 1024;
constinit ContextPair g_contexts[kContexts] = {};
constinit FutexLock g_lock;
constinit ContextPair g_nobody = {};
constinit bool g_looked = false;
constinit bool g_without_memory = false;
constinit void* g_library = nullptr;
constinit std::atomic<bool> g_reported{false};

void* open_library(const char* name) noexcept { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

// NCCL's rules: the name as it is; then, if it is a plain word, libnccl-profiler-<word>.so. Without a name it looks for
// libnccl-profiler.so, and then into the network plugin if that is loaded.
void* find_library(const char* name) noexcept {
  if (*name == '\0') {
    void* found = open_library("libnccl-profiler.so");
    return found != nullptr ? found : dlopen("libnccl-net.so", RTLD_NOW | RTLD_NOLOAD);
  }
  if (strcasecmp(name, "none") == 0) return nullptr;
  if (strcasecmp(name, "STATIC_PLUGIN") == 0) return open_library(nullptr);
  void* found = open_library(name);
  if (found != nullptr) return found;
  const std::size_t length = std::strlen(name);
  const bool whole_name = std::strncmp(name, "lib", 3) == 0 && length > 3 && std::strcmp(name + length - 3, ".so") == 0;
  if (std::strchr(name, '/') == nullptr && !whole_name) {
    char memory[512];
    TextBuffer path(memory, sizeof memory - 1);
    path.add("libnccl-profiler-").add(name).add(".so");
    found = open_library(path.c_str());
  }
  if (found == nullptr)
    report_loss(kCollectorCode, "chained_plugin_missing", 1,
                "the NCCL profiler plugin that was configured before cannot be loaded", schema::codes::Severity::error);
  return found;
}

const void* foreign_symbol(const char* name) noexcept {
  const auto not_ours = [](const void* found) -> const void* {
    Dl_info its{}, own{};
    if (found == nullptr || dladdr(found, &its) == 0 || dladdr(&g_lock, &own) == 0) return nullptr;
    return its.dli_fbase != own.dli_fbase ? found : nullptr;
  };
  if (const void* found = not_ours(dlsym(g_library, name))) return found;
  if (strcasecmp(settings.chain, "STATIC_PLUGIN") != 0) return nullptr;
  // Preloaded, we stand in front of a library that the program is linked with; only the program is in front of us.
  const void* next = dlsym(RTLD_NEXT, name);
  asm volatile("" : "+r"(next));  // no tail call: RTLD_NEXT looks at the return address
  return not_ours(next);
}

const void* structure(int version) noexcept {
  char name[] = "ncclProfiler_v0";
  name[sizeof name - 2] = static_cast<char>('0' + version);
  return foreign_symbol(name);
}

}  // namespace

const void* plugin_of(int version) noexcept {
  {
    const raw::SignalsBlocked quiet;
    g_lock.lock();
    if (!g_looked) g_library = find_library(settings.chain);
    g_looked = true;
    g_lock.unlock();
  }
  dlerror();
  if (g_library == nullptr) return nullptr;
  const void* found = structure(version);
  // All contexts are pairs or none is, so a failure is final.
  if (found != nullptr && !g_without_memory) g_without_memory = !pairs.prepare();
  if (found != nullptr) return g_without_memory ? nullptr : found;
  if (g_reported.exchange(true)) return nullptr;
  char memory[160];
  TextBuffer detail(memory, sizeof memory - 1);
  detail.add("the chained NCCL profiler plugin does not speak version ").add(std::int64_t{version}).add(", only");
  for (int other = 1; other <= 9; ++other)
    if (structure(other) != nullptr) detail.add(" ").add(std::int64_t{other});
  report_loss(kCollectorCode, "chained_plugin_version", 1, detail.c_str(), schema::codes::Severity::error);
  return nullptr;
}

std::uint64_t closure(std::uint64_t mask) noexcept {
  using namespace profiler;
  constexpr std::uint64_t kProxy = kProxyOp | kProxyStep | kNetPlugin;
  constexpr std::uint64_t kCe = kCeColl | kCeSync | kCeBatch;
  std::uint64_t all = mask;
  if (mask & kKernelPhase) all |= kKernelCh;
  if (mask & (kProxyStep | kNetPlugin)) all |= kProxyOp | kProxyStep;
  if (mask & (kProxy | kKernelCh | kKernelPhase)) all |= kColl | kP2p;
  if (all & (kColl | kP2p)) all |= kGroup;
  if (mask & (kColl | kProxy | kKernelCh | kCe)) all |= kCollApi;
  if (mask & (kP2p | kProxy | kKernelCh)) all |= kP2pApi;
  if (mask & (kGroup | kColl | kP2p | kProxy | kKernelCh | kCollApi | kP2pApi | kKernelLaunch | kCe)) all |= kGroupApi;
  if (mask & (kCeSync | kCeBatch)) all |= kCeColl;
  return all;
}

ContextPair* take_context() noexcept {
  for (ContextPair& pair : g_contexts) {
    bool free = false;
    if (!pair.in_use.load(std::memory_order_relaxed) && pair.in_use.compare_exchange_strong(free, true)) return &pair;
  }
  count(Count::registry_full);
  return &g_nobody;
}

bool is_nobody(const ContextPair* pair) noexcept { return pair == &g_nobody; }

void forget() noexcept {
  g_lock.reset();
  pairs.forget();
  for (ContextPair& pair : g_contexts) pair.in_use.store(false, std::memory_order_relaxed);
}

void free_context(ContextPair* pair) noexcept { pair->in_use.store(false, std::memory_order_release); }

ContextPair* find_context(void* context) noexcept {
  if (context == &g_nobody) return &g_nobody;
  const auto first = reinterpret_cast<std::uintptr_t>(&g_contexts[0]);
  const auto at = reinterpret_cast<std::uintptr_t>(context);
  if (at < first || at - first >= sizeof g_contexts || (at - first) % sizeof g_contexts[0] != 0) return nullptr;
  ContextPair& pair = g_contexts[(at - first) / sizeof g_contexts[0]];
  return pair.in_use.load(std::memory_order_acquire) ? &pair : nullptr;
}

}  // namespace stashtrace::nccl::chain
