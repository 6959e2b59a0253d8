// Memory that changes and goes away while it is read, and objects that are none. SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collectors/python_stacks/standing_wait.h"
#include "stacks/codes.h"
#include "stacks/memory.h"
#include "stacks/objects.h"

using namespace stashtrace;
using namespace stashtrace::stacks;

namespace {

constexpr std::size_t kPage = 4096;

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

void checked_memory_asks_first() {
  auto* pages =
      static_cast<char*>(mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  pages[kPage - 3] = 7;
  munmap(pages + 2 * kPage, kPage);
  CheckedMemory memory;
  char to[2 * kPage] = {};
  CHECK(memory.read(address_of(pages + kPage - 3), to, 1));
  CHECK_EQUAL(to[0], 7);
  CHECK(memory.read(address_of(pages), to, 2 * kPage));
  CHECK(memory.read(address_of(pages + 2 * kPage - 5), to, 5));
  CHECK(!memory.read(address_of(pages + 2 * kPage - 5), to, 6));
  CHECK(!memory.read(address_of(pages + 2 * kPage), to, 1));
  CHECK(!memory.read(0, to, 1));
  CHECK(!memory.read(8, to, 8));
  CHECK(!memory.read(~Address{0} - 3, to, 8));
  CHECK(!memory.read(Address{1} << 63, to, 8));
  munmap(pages, 2 * kPage);
}

// As the kernel words it.
void who_waits_for_a_lock_is_told_from_others() {
  using python_stacks::Waits;
  const auto wait = [](std::string_view text) {
    return python_stacks::wait_of_text(text, [](std::uint64_t at) { return at != 0x7f66a4001e28; });
  };
  const std::string futex = std::to_string(SYS_futex);
  CHECK(wait(futex + " 0x55d0c0ffee00 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f66\n") == Waits::yes);
  CHECK(wait(futex + " 0x7f66a4001e28 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f66\n") == Waits::no);
  CHECK(wait(std::to_string(SYS_read) + " 0x3 0x7ffe 0x1\n") == Waits::no);
  CHECK(wait("running\n") == Waits::no);
  CHECK(wait("-1 0x7ffe 0x7f66\n") == Waits::no);
  CHECK(wait("") == Waits::unknown);
  CHECK(wait(futex) == Waits::unknown);
}

// Pages come, go and change while they are read, by each way that the kernel has.
void guarded_memory_ends_where_a_piece_is_gone(bool may_open) {
  GuardedMemory memory;
  CHECK(memory.start(may_open));
  auto* pages =
      static_cast<char*>(mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  pages[0] = 1, pages[3 * kPage] = 4;
  munmap(pages + kPage, kPage);
  char first = 0, gone = 0, last = 0;
  const Piece pieces[] = {
      {address_of(pages), &first, 1}, {address_of(pages + kPage), &gone, 1}, {address_of(pages + 3 * kPage), &last, 1}};
  CHECK_EQUAL(memory.read(pieces, 3), std::size_t{1});
  CHECK_EQUAL(memory.read(pieces + 2, 1), std::size_t{1});
  CHECK_EQUAL(first + last, 5);
  char across[16];
  CHECK(!memory.read(address_of(pages + kPage - 8), across, sizeof across));
  std::vector<char> large(1 << 20);
  CHECK(!memory.read(address_of(large.data()), large.data(), large.size()));  // more than fits
  CHECK(memory.read(address_of(pages), &first, 1));

  std::atomic<bool> ends{false};
  std::thread changes([&] {
    while (!ends.load(std::memory_order_relaxed)) {
      mprotect(pages + 2 * kPage, kPage, PROT_NONE);
      madvise(pages, kPage, MADV_DONTNEED);
      mprotect(pages + 2 * kPage, kPage, PROT_READ);
    }
  });
  std::vector<char> to(512);
  std::vector<Piece> many;
  for (std::size_t i = 0; i < 400; ++i) many.push_back({address_of(pages + (i % 2) * 2 * kPage + i), &to[i], 1});
  std::size_t whole = 0;
  for (int i = 0; i < 5'000; ++i) whole += memory.read(many.data(), many.size());
  CHECK(whole >= 5'000);
  ends.store(true);
  changes.join();
  memory.stop();
  CHECK(!memory.read(address_of(pages), &first, 1));
  munmap(pages, 4 * kPage);
}

// The limit comes while the copy is in use: other ways are left.
void a_size_limit_takes_another_way() {
  signal(SIGXFSZ, SIG_IGN);
  GuardedMemory memory;
  CHECK(memory.start(true));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const rlim_t limit : {rlim_t{16}, rlim_t{0}}) {
    const rlimit small{limit, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    char from[64] = {1, 2, 3}, to[64] = {};
    CHECK(memory.read(address_of(from), to, sizeof to));
    CHECK_EQUAL(to[2], 3);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  memory.stop();
}

void what_was_planned_is_copied_at_once() {
  auto memory = std::make_unique<PrefetchedMemory>();
  CHECK(memory->start(true));
  std::uint64_t values[3] = {1, 2, 3}, to = 0;
  memory->plan(address_of(&values[0]), 8);
  memory->plan(8, 8);  // cannot be read
  memory->plan(address_of(&values[2]), 8);
  memory->fetch();
  values[0] = values[1] = values[2] = 9;
  CHECK(memory->read(address_of(&values[0]), &to, 8) && to == 1);
  CHECK(memory->read(address_of(&values[2]), &to, 8) && to == 3);
  CHECK_EQUAL(memory->others_read(), std::size_t{0});
  CHECK(memory->read(address_of(&values[1]), &to, 8) && to == 9);
  CHECK(memory->read_now(address_of(&values[0]), &to, 8) && to == 9);
  CHECK(!memory->read(8, &to, 8));
  CHECK_EQUAL(memory->others_read(), std::size_t{2});
  memory->forget();
  std::vector<char> large(1 << 18);
  for (int i = 0; i < 2'000; ++i)
    memory->plan(address_of(&large[static_cast<std::size_t>(i)]), 900);  // beyond what there is room for
  memory->fetch();
  memory->stop();
}

// Threads that keep and find codes at few places: what is found is one that was kept.
void codes_are_whole_or_not_found() {
  auto table = std::make_unique<CodeTable>();
  const auto code = [](std::uint32_t n) {
    const Address address = 16 * (1 + n % 7);
    return Code{{address, n, n, n, n, n, static_cast<std::int32_t>(n), 1, 1}, n, n, 1, 0};
  };
  std::atomic<int> torn{0}, found{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 20'000; ++i) {
        const std::uint32_t n = i * 4 + t;
        table->keep(code(n));
        const auto kept = table->find(16 * (1 + i % 7), 1);
        if (!kept) continue;
        found.fetch_add(1, std::memory_order_relaxed);
        if (!(kept->identity == code(kept->name_id).identity)) torn.fetch_add(1, std::memory_order_relaxed);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(torn.load(), 0);
  CHECK(found.load() > 0);
  table->keep(code(5));
  CHECK(table->find(16 * 6, 1).has_value());
  CHECK(!table->find(16 * 6, 2).has_value());  // of a forked child
  table->reset_after_fork();
  CHECK(table->find(16 * 6, 1).has_value());
}

// Any bytes, as frames, code objects, texts and tables of lines: nothing is written beyond its end, and all ends.
void bytes_that_are_no_objects() {
  std::mt19937_64 random(7);
  auto arena = std::vector<std::uint64_t>(1 << 14);
  auto memory = std::make_unique<PrefetchedMemory>();
  CHECK(memory->start(true));
  std::uint64_t runtime[64] = {};
  std::memcpy(runtime, "xdebugpy", 8);
  runtime[1] = 0x030d0000;
  for (const std::uint32_t minor : {10u, 11u, 12u}) {
    const Layout* layout = find_layout(0x03000000 | minor << 16, address_of(runtime));
    CHECK(layout != nullptr);
    for (int turn = 0; turn < 300; ++turn) {
      // Half of the words point into the arena, the rest is small or arbitrary.
      for (auto& word : arena) {
        const std::uint64_t any = random();
        word = any % 2 == 0   ? address_of(arena.data()) + any / 2 % (arena.size() * 8) / 8 * 8
               : any % 4 == 1 ? any >> 40
                              : any;
      }
      const Address at = address_of(&arena[random() % (arena.size() - 64)]);
      Frame frames[200];
      const Walk walked = walk(*memory, *layout, at, frames, 200);
      CHECK(walked.count <= 200);
      CodeIdentity identity{};
      read_identity(*memory, *layout, reinterpret_cast<const Address*>(at)[1], at, identity);
      char text[64];
      TextBuffer out(text, sizeof text);
      read_text(*memory, *layout, at, out);
      CHECK(out.text().size() <= sizeof text);
      identity.lines = at;
      line_at(*memory, *layout, identity, static_cast<std::int64_t>(random() % 100'000));
      CHECK_EQUAL(line_at(*memory, *layout, identity, -3), kNotInCode);
    }
  }
  memory->stop();
}

void layouts_are_refused() {
  std::uint64_t runtime[64] = {};
  CHECK(find_layout(0x02070000, 1) == nullptr);
  CHECK(find_layout(0x03090000, 1) == nullptr);
  CHECK(find_layout(0x030e0000, 1) == nullptr);
  CHECK(find_layout(0x030d00f0, 0) == nullptr);
  CHECK(find_layout(0x030d00f0, address_of(runtime)) == nullptr);  // no cookie
  std::memcpy(runtime, "xdebugpy", 8);
  runtime[1] = 0x030c00f0;
  CHECK(find_layout(0x030d00f0, address_of(runtime)) == nullptr);  // another version
  runtime[1] = 0x030d00f0;
  runtime[2] = 1;
  CHECK(find_layout(0x030d00f0, address_of(runtime)) == nullptr);  // without a GIL
  runtime[2] = 0;
  runtime[30] = 5'000;
  CHECK(find_layout(0x030d00f0, address_of(runtime)) == nullptr);  // further away than is read
  runtime[30] = 8;
  CHECK(find_layout(0x030d00f0, address_of(runtime)) != nullptr);
}

}  // namespace

int main() {
  checked_memory_asks_first();
  for (const bool may_open : {true, false}) guarded_memory_ends_where_a_piece_is_gone(may_open);
  a_size_limit_takes_another_way();
  what_was_planned_is_copied_at_once();
  who_waits_for_a_lock_is_told_from_others();
  codes_are_whole_or_not_found();
  bytes_that_are_no_objects();
  layouts_are_refused();
  return result();
}
