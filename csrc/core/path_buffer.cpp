// Implementation of path_buffer.h. SPDX-License-Identifier: Apache-2.0
#include "core/path_buffer.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

#include "core/raw_syscall.h"

namespace stashtrace {

namespace {

constexpr std::size_t kBuffers = 32;

// Pages of zeros until they are used. The words lie apart from the texts: looking for a free buffer touches no other page.
alignas(64) constinit std::atomic<std::uintptr_t> owners[kBuffers] = {};
// They do not begin at pages, where other data of ours does: stores and loads with the same low twelve bits of their
// addresses wait for each other, some 40 ns a call.
constexpr std::size_t kStrideBytes = PathBuffer::kBytes + 832;
alignas(64) constinit char texts[kBuffers][kStrideBytes] = {};

constinit thread_local char here = 0;
std::uintptr_t this_thread() noexcept { return reinterpret_cast<std::uintptr_t>(&here); }

}  // namespace

PathBuffer::PathBuffer() noexcept : own_(false) {
  const std::uintptr_t self = this_thread();
  const std::size_t first = (self >> 12) * 0x9e3779b97f4a7c15ULL >> 59;  // threads begin at different buffers
  for (std::size_t i = 0; i < kBuffers; ++i) {
    const std::size_t place = (first + i) % kBuffers;
    std::uintptr_t free = 0;
    if (!owners[place].compare_exchange_strong(free, self, std::memory_order_acquire)) continue;
    text_ = texts[place];
    return;
  }
  own_ = true;
  text_ = static_cast<char*>(raw::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

PathBuffer::~PathBuffer() {
  if (!own_) owners[static_cast<std::size_t>(text_ - texts[0]) / kStrideBytes].store(0, std::memory_order_release);
  else if (text_ != nullptr) raw::munmap(text_, kBytes);
}

void PathBuffer::after_fork() noexcept {
  for (std::atomic<std::uintptr_t>& owner : owners)
    if (owner.load(std::memory_order_relaxed) != this_thread()) owner.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace
