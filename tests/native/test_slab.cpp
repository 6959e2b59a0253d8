// Pools of the NCCL plugin: handles, order of reuse, eight threads that take and end, and callers that come too late.
// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "check.h"
#include "collectors/nccl/slab.h"

using stashtrace::nccl::Slab;

namespace {

constexpr std::uint32_t kSlots = 64;

struct Value {
  std::atomic<int> owners;
  int number;
  void reset() noexcept { number = 0; }
};
using Pool = Slab<Value, kSlots, 3>;

void handles_name_what_they_named() {
  Pool pool;
  void* first = nullptr;
  CHECK(pool.take(first) == nullptr);
  CHECK(pool.prepare());
  Value* value = pool.take(first);
  value->number = 7;
  CHECK(pool.find(first) == value);
  CHECK(pool.give_back(first));
  CHECK(!pool.give_back(first));
  CHECK_EQUAL(pool.find(first)->number, 7);  // ended, and not reused before all others were
  std::vector<void*> all(kSlots);
  for (void*& handle : all) CHECK(pool.take(handle) != nullptr);
  CHECK(pool.find(first) == nullptr);
  void* none = nullptr;
  CHECK(pool.take(none) == nullptr);
  int shown_count = 0;
  for (std::uint32_t i = 0; i < kSlots / 2; ++i) pool.show(all[i]);
  pool.each([&](void* handle, Value& seen) { shown_count += pool.find(handle) == &seen; });
  CHECK_EQUAL(shown_count, static_cast<int>(kSlots / 2));
  for (void* handle : all) CHECK(pool.give_back(handle));
  CHECK(pool.find(reinterpret_cast<void*>(0x123)) == nullptr);
  pool.forget();
  CHECK(pool.take(none) == nullptr);
  CHECK(pool.prepare() && pool.take(none) != nullptr);
}

// Each thread ends what it took, and then tries to end it again and again while others take the slot.
void nobody_ends_what_is_another_s() {
  static Slab<Value, 8, 3> pool;  // few, so that slots come round quickly
  static std::atomic<int> twice{0}, stolen{0};
  CHECK(pool.prepare());
  std::vector<std::thread> all;
  for (int t = 0; t < 8; ++t)
    all.emplace_back([] {
      void* late[2] = {};
      for (int i = 0; i < 40'000; ++i) {
        void* handle = nullptr;
        Value* value = pool.take(handle);
        if (value == nullptr) continue;
        if (value->owners.fetch_add(1) != 0) ++twice;
        for (void* old : late) stolen += old != nullptr && pool.give_back(old);
        value->owners.fetch_sub(1);
        if (!pool.give_back(handle)) ++stolen;
        late[i % 2] = handle;
      }
    });
  for (auto& thread : all) thread.join();
  CHECK_EQUAL(twice.load(), 0);
  CHECK_EQUAL(stolen.load(), 0);
  void* handle = nullptr;
  std::uint32_t left = 0;
  while (pool.take(handle) != nullptr) ++left;
  CHECK_EQUAL(left, 8);
}

}  // namespace

int main() {
  handles_name_what_they_named();
  nobody_ends_what_is_another_s();
  return result();
}
