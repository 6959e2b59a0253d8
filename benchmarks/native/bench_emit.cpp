// Cost of one record: emit<IoOp> with its two time stamps against the least a hook can do, two clock reads and one
// 32-byte store into a hot ring. SPDX-License-Identifier: Apache-2.0
//
//   bench_emit [threads] [blocks]      one JSON line per number of threads, medians over interleaved blocks
//
// Both run in the same process, block by block in turn, so that a busy neighbour hits both alike. The rows really go
// to a run directory (a temporary one), drained in the background as in a traced job.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace {

using namespace stashtrace;

constexpr std::size_t kRowsPerBlock = 4096;  // half of a quarter of the ring: at most one look-up per block
constexpr std::size_t kRingRows = 32768;

struct Floor {
  std::unique_ptr<schema::IoOp[]> rows{new schema::IoOp[kRingRows]()};
  std::uint64_t head = 0;
};

double stamps_only(std::uint64_t& sink) {
  const std::uint64_t begin = now_ticks();
  for (std::size_t i = 0; i < kRowsPerBlock; ++i) {
    const std::uint64_t a = now_ticks();
    sink += now_ticks() - a;
  }
  return static_cast<double>(now_ticks() - begin);
}

double floor_block(Floor& floor) {
  const std::uint64_t begin = now_ticks();
  for (std::size_t i = 0; i < kRowsPerBlock; ++i) {
    const std::uint64_t a = now_ticks();
    const std::uint64_t b = now_ticks();
    floor.rows[floor.head & (kRingRows - 1)] = {a, -1, static_cast<std::uint32_t>(b - a), 4096, 7, 3, 0};
    std::atomic_ref(floor.head).store(floor.head + 1, std::memory_order_release);
  }
  return static_cast<double>(now_ticks() - begin);
}

double emit_block() {
  const std::uint64_t begin = now_ticks();
  for (std::size_t i = 0; i < kRowsPerBlock; ++i) {
    if (!recording()) continue;
    const std::uint64_t a = now_ticks();
    const std::uint64_t b = now_ticks();
    emit(schema::IoOp{a, -1, static_cast<std::uint32_t>(b - a), 4096, 7, 3, 0});
  }
  return static_cast<double>(now_ticks() - begin);
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run(unsigned threads, unsigned blocks) {
  std::vector<double> stamps, floors, emits;
  std::vector<std::thread> workers;
  std::atomic_flag collecting{};
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&] {
      Floor floor;
      std::uint64_t sink = 0;
      std::vector<double> s, f, e;
      for (std::size_t i = 0; i < 2 * kRingRows / kRowsPerBlock; ++i) floor_block(floor), emit_block();  // touch the rings
      for (unsigned block = 0; block < blocks; ++block) {
        s.push_back(stamps_only(sink));
        f.push_back(floor_block(floor));
        e.push_back(emit_block());
      }
      while (collecting.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
      stamps.insert(stamps.end(), s.begin(), s.end());
      floors.insert(floors.end(), f.begin(), f.end());
      emits.insert(emits.end(), e.begin(), e.end());
      collecting.clear(std::memory_order_release);
    });
  for (auto& worker : workers) worker.join();
  const double ns = 1e9 / static_cast<double>(runtime().tick_hz()) / kRowsPerBlock;
  const double stamp = median(stamps) * ns, least = median(floors) * ns, ours = median(emits) * ns;
  const RuntimeStats stats = runtime().stats();
  std::printf("{\"threads\": %u, \"blocks\": %u, \"two_stamps_ns\": %.2f, \"floor_ns\": %.2f, \"emit_ns\": %.2f, "
              "\"ratio\": %.3f, \"added_ns\": %.2f, \"dropped_rows\": %llu, \"drainer_cpu_ns_per_row\": %.2f}\n",
              threads, blocks, stamp, least, ours, ours / least, ours - least,
              static_cast<unsigned long long>(stats.dropped_rows_count),
              static_cast<double>(stats.drainer_cpu_ns) / static_cast<double>(stats.written_rows_count + 1));
}

}  // namespace

int main(int argc, char** argv) {
  if (getenv("STASHTRACE_DIR") == nullptr) {
    char dir[] = "/tmp/bench-emit-XXXXXX";
    if (mkdtemp(dir) == nullptr) return 2;
    setenv("STASHTRACE_DIR", dir, 1);
    const pid_t child = fork();
    if (child == 0) {
      execv("/proc/self/exe", argv);
      _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
    }
    const std::string remove = std::string("rm -rf ") + dir;
    return std::system(remove.c_str()) == 0 ? WEXITSTATUS(status) : 2;
  }
  const unsigned most = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 2;
  const unsigned blocks = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 400;
  for (unsigned threads = 1; threads <= most; threads *= 2) run(threads, blocks);
  return 0;
}
