// Implementation of activation.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/activation.h"

#include <atomic>

#include "abi/nccl_profiler.h"
#include "core/futex_lock.h"

namespace stashtrace::nccl::activation {

namespace {

constinit FutexLock g_lock;                           // held for a moment, by threads that begin or end a communicator
constinit std::atomic<int*> g_mask_of_nccl{nullptr};  // written under g_lock
constinit std::atomic<int> g_written{0};              // what NCCL's word should hold; written under g_lock
constinit unsigned g_contexts = 0;                    // under g_lock
constinit bool g_chained = false;                     // under g_lock
constinit std::uint64_t g_dropped = 0;                // under g_lock
constinit int g_others = 0;                           // written by the other plugin
constinit std::atomic<std::uint64_t> g_ours{0}, g_accepted{0};

// A word that holds something else was written by another one, who is not overruled.
bool holds_another() noexcept {
  const int* word = g_mask_of_nccl.load(std::memory_order_relaxed);
  return word != nullptr && __atomic_load_n(word, __ATOMIC_RELAXED) != g_written.load(std::memory_order_relaxed);
}

void write_mask() noexcept {
  int* word = g_mask_of_nccl.load(std::memory_order_relaxed);
  if (word == nullptr) return;
  int wanted = __atomic_load_n(&g_others, __ATOMIC_RELAXED) | static_cast<int>(g_ours.load(std::memory_order_relaxed));
  // As NCCL itself completes it (2.32: ncclProfilerEnforceMaskDeps).
  if ((wanted & profiler::kKernelPhase) != 0) wanted |= profiler::kKernelCh;
  g_written.store(wanted, std::memory_order_relaxed);
  if (__atomic_load_n(word, __ATOMIC_RELAXED) != wanted) __atomic_store_n(word, wanted, __ATOMIC_RELAXED);
}

}  // namespace

void begin(int* nccl, std::uint64_t ours, bool chained) noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  ++g_contexts;
  g_mask_of_nccl.store(nccl, std::memory_order_relaxed);
  g_chained = chained;
  g_ours.store(ours & ~g_dropped, std::memory_order_relaxed);
  g_accepted.fetch_or(ours, std::memory_order_relaxed);
  write_mask();
  g_lock.unlock();
}

int* others() noexcept { return &g_others; }
std::uint64_t wanted_by_other() noexcept {
  return static_cast<std::uint64_t>(__atomic_load_n(&g_others, __ATOMIC_RELAXED));
}
std::uint64_t accepted() noexcept { return g_accepted.load(std::memory_order_relaxed); }

void drop(std::uint64_t types) noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  g_dropped |= types;
  g_ours.fetch_and(~types, std::memory_order_relaxed);
  if (!holds_another()) write_mask();
  g_lock.unlock();
}

void publish() noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  write_mask();
  g_lock.unlock();
}

void publish_changes() noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  if (g_chained && !holds_another()) write_mask();
  g_lock.unlock();
}

bool is_overridden() noexcept {
  if (!holds_another()) return false;
  const raw::SignalsBlocked quiet;
  g_lock.lock();  // it may be about to be written
  const bool other = holds_another();
  g_lock.unlock();
  return other;
}

void end() noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  if (g_contexts > 0 && --g_contexts == 0) g_mask_of_nccl.store(nullptr, std::memory_order_relaxed);
  g_lock.unlock();
}

void forget() noexcept {
  g_lock.reset();
  g_mask_of_nccl.store(nullptr, std::memory_order_relaxed);
  g_contexts = 0;
  g_chained = false;
  g_dropped = 0;
  g_ours.store(0, std::memory_order_relaxed);
  g_accepted.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace::nccl::activation
