// Buffers for paths, and work on a stack of its own. SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include "check.h"
#include "core/large_stack.h"
#include "core/path_buffer.h"
#include "core/raw_syscall.h"

using stashtrace::on_large_stack;
using stashtrace::PathBuffer;

namespace {

// As handlers would that interrupt each other: more than there are buffers in common.
void nested_buffers_are_different() {
  std::vector<std::unique_ptr<PathBuffer>> buffers;
  std::set<char*> seen;
  for (int i = 0; i < 40; ++i) {
    buffers.push_back(std::make_unique<PathBuffer>());
    CHECK(buffers.back()->text() != nullptr);
    std::memset(buffers.back()->text(), 'a' + i % 26, PathBuffer::kBytes);
    seen.insert(buffers.back()->text());
  }
  CHECK_EQUAL(seen.size(), std::size_t{40});
  for (int i = 0; i < 40; ++i) CHECK_EQUAL(buffers[i]->text()[PathBuffer::kBytes - 1], static_cast<char>('a' + i % 26));
  char* first = buffers.front()->text();
  buffers.clear();
  CHECK(PathBuffer().text() == first);  // given back
}

void threads_do_not_share_a_buffer() {
  int wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t, &wrong] {
      for (int i = 0; i < 20'000; ++i) {
        PathBuffer buffer;
        std::memset(buffer.text(), 'a' + t, 64);
        for (int k = 0; k < 64; ++k)
          if (buffer.text()[k] != 'a' + t) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong, 0);
}

void a_fork_gives_back_buffers_of_other_threads() {
  auto kept = std::make_unique<PathBuffer>();
  std::set<char*> seen;
  std::thread([&] {
    std::vector<std::unique_ptr<PathBuffer>> others;
    for (int i = 0; i < 31; ++i) seen.insert((others.emplace_back(std::make_unique<PathBuffer>()))->text());
    for (auto& buffer : others) static_cast<void>(buffer.release());  // the thread is gone, as after a fork
  }).join();
  PathBuffer::after_fork();
  PathBuffer again;
  CHECK(seen.contains(again.text()));
  CHECK(again.text() != kept->text());
}

int depth(int more) {
  volatile char large[8192];
  std::memset(const_cast<char*>(large), more, sizeof large);
  return more == 0 ? large[7] : depth(more - 1) + large[9] / more;
}

void work_runs_elsewhere_on_the_same_thread() {
  char here;
  errno = 7;
  const int thread = stashtrace::raw::gettid();
  const stashtrace::raw::SignalMask before = stashtrace::raw::current_signal_mask();
  const auto distance = on_large_stack([&] {
    char there;
    CHECK_EQUAL(stashtrace::raw::gettid(), thread);
    CHECK(~stashtrace::raw::current_signal_mask() != ~before);
    return &there - &here;
  });
  CHECK(distance > 1'000'000 || distance < -1'000'000 || distance == 0);
  CHECK(distance != 0);
  CHECK_EQUAL(stashtrace::raw::current_signal_mask(), before);
  CHECK_EQUAL(errno, 7);
  CHECK_EQUAL(on_large_stack([] { return depth(8) + on_large_stack([] { return depth(8); }); }), 16);
  int done = 0;
  on_large_stack([&] { ++done; });
  CHECK_EQUAL(done, 1);
}

}  // namespace

int main() {
  nested_buffers_are_different();
  threads_do_not_share_a_buffer();
  a_fork_gives_back_buffers_of_other_threads();
  work_runs_elsewhere_on_the_same_thread();
  return g_failures != 0;
}
