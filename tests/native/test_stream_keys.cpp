// Keys of threads' default streams: no two share one. SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <set>

#include "check.h"
#include "device/streams.h"

using namespace stashtrace::device;

namespace {

constexpr std::uint32_t kMostThreads = 1U << 22;  // the kernel's limit of thread ids, PID_MAX_LIMIT

void threads_that_differ_in_one_bit() {
  for (std::size_t place = 0; place < kMostContexts; ++place) {
    std::set<std::uint64_t> keys;
    std::uint32_t count = 0;
    for (std::uint32_t bit = 1; bit < kMostThreads; bit <<= 1, ++count) keys.insert(own_stream_key(bit, place));
    CHECK(keys.size() == count);
  }
}

void contexts_of_one_thread() {
  std::set<std::uint64_t> keys;
  for (std::size_t place = 0; place < kMostContexts; ++place) {
    keys.insert(own_stream_key(1, place));
    keys.insert(own_stream_key(kMostThreads - 1, place));
  }
  CHECK(keys.size() == 2 * kMostContexts);
}

void never_a_handle_nor_a_legacy_stream() {
  for (std::size_t place = 0; place < kMostContexts; ++place) CHECK((own_stream_key(12345, place) & 3) == 3);
}

}  // namespace

int main() {
  threads_that_differ_in_one_bit();
  contexts_of_one_thread();
  never_a_handle_nor_a_legacy_stream();
  return result();
}
