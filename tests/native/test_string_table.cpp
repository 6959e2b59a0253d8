// Ids are stable, unique and survive a full table. SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "check.h"
#include "core/string_table.h"

using namespace stashtrace;

int main() {
  auto table = std::make_unique<StringTable>();
  const std::uint32_t id = table->id_of("/data/a");
  CHECK(id > 0 && id <= kStringSlots);
  CHECK_EQUAL(table->id_of("/data/a"), id);
  CHECK(table->id_of("/data/b") != id);
  CHECK(!table->is_written(id, 1));
  table->set_written(id, 1);
  CHECK(table->is_written(id, 1));
  CHECK(!table->is_written(id, 2));  // a forked child writes it again

  std::set<std::uint32_t> ids;
  const int many = 100'000;  // more than there are slots
  for (int i = 0; i < many; ++i) ids.insert(table->id_of("name " + std::to_string(i)));
  CHECK_EQUAL(ids.size(), std::size_t{many});
  CHECK(*ids.rbegin() > kStringSlots);
  CHECK(!table->is_written(*ids.rbegin(), 1));
  CHECK_EQUAL(table->id_of("/data/a"), id);

  auto shared = std::make_unique<StringTable>();  // threads agree on the id of one text
  std::atomic<int> differing{0};
  std::vector<std::thread> threads;
  std::atomic<std::uint32_t> first[500]{};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const std::uint32_t mine = shared->id_of("text " + std::to_string(i));
        std::uint32_t none = 0;
        if (!first[i].compare_exchange_strong(none, mine) && none != mine) ++differing;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(differing.load(), 0);
  return result();
}
