// Implementation of io_uring.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/io_uring.h"

#include <atomic>
#include <cstdint>

#include "core/clock.h"
#include "core/string_table.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {
constinit std::atomic<std::uint32_t> noted_in{0};  // generation: a forked child has a file of its own
}  // namespace

void note_io_uring() noexcept {
  if (!recording()) return;
  const std::uint32_t generation = runtime().generation();
  if (noted_in.exchange(generation, std::memory_order_relaxed) == generation) return;
  emit(schema::Metadata{now_ticks(), intern("io_uring"), intern("used")});
}

}  // namespace stashtrace
