// Sums of calls beside a plain count, and over any numbers. SPDX-License-Identifier: Apache-2.0
//
// What they mean is tested in tests/timeline/test_call_sums.py; here the sanitizers watch the arithmetic.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/call_sums.h"

namespace {

using namespace stashtrace;
constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();

struct Columns {
  std::vector<std::int64_t> begin, end, result;
  std::vector<std::int32_t> path;
  std::vector<std::int16_t> flags;

  [[nodiscard]] call_sums::Calls part(std::size_t from, std::size_t count) const {
    return {{begin.data() + from, count}, {end.data() + from, count}, {result.data() + from, count},
            {path.data() + from, count}, {flags.data() + from, count}};
  }
};

void parts_do_not_matter() {
  std::mt19937_64 random(7);
  Columns calls;
  const std::size_t count = 5000;
  std::int64_t now = -20'000;
  for (std::size_t i = 0; i < count; ++i) {
    now += static_cast<std::int64_t>(random() % 30);
    calls.begin.push_back(now);
    calls.end.push_back(now + static_cast<std::int64_t>(random() % 100));
    calls.result.push_back(static_cast<std::int64_t>(random() % 50) - 5);
    calls.path.push_back(static_cast<std::int32_t>(random() % 9));
    calls.flags.push_back(static_cast<std::int16_t>(random() % 4));
  }
  call_sums::Summing whole(17, 210, 2), cut(17, 210, 2);
  whole.add(1, calls.part(0, count));
  for (std::size_t at = 0; at < count;) {
    const std::size_t rows = std::min<std::size_t>(random() % 40, count - at);
    cut.add(1, calls.part(at, rows));
    at += rows;
  }
  CHECK_EQUAL(whole.sums().size(), cut.sums().size());
  std::int64_t counted = 0, bytes = 0, blocked = 0;
  for (std::size_t i = 0; i < whole.sums().size(); ++i) {
    const call_sums::Sum &a = whole.sums()[i], &b = cut.sums()[i];
    CHECK(a.begin_ns == b.begin_ns && a.end_ns == b.end_ns && a.busy_ns == b.busy_ns && a.path_code == b.path_code);
    counted += b.calls_count;
    bytes += b.bytes;
    blocked += b.blocked_count;
  }
  std::int64_t moved = 0;
  for (const std::int64_t result : calls.result) moved += std::max<std::int64_t>(result, 0);
  CHECK_EQUAL(counted, static_cast<std::int64_t>(count));
  CHECK_EQUAL(bytes, moved);
  CHECK_EQUAL(blocked, std::count_if(calls.flags.begin(), calls.flags.end(), [](auto f) { return (f & 2) != 0; }));
}

void numbers_of_damaged_files() {
  const std::vector<std::int64_t> any = {kLowest, kLowest + 1, -1, 0, 1, kHighest - 1, kHighest};
  for (const std::int64_t origin : any) {
    for (const std::int64_t width : {std::int64_t{1}, std::int64_t{1000}, kHighest}) {
      Columns calls;
      for (const std::int64_t begin : any)
        for (const std::int64_t end : any) {
          calls.begin.push_back(begin);
          calls.end.push_back(end);
          calls.result.push_back(end);
          calls.path.push_back(1);
          calls.flags.push_back(-1);
        }
      call_sums::Summing sums(origin, width, 1);
      sums.add(0, calls.part(0, calls.begin.size()));
      std::int64_t counted = 0;
      for (const call_sums::Sum& sum : sums.sums()) counted += sum.calls_count;
      CHECK_EQUAL(counted, static_cast<std::int64_t>(calls.begin.size()));
    }
  }
}

}  // namespace

int main() {
  parts_do_not_matter();
  numbers_of_damaged_files();
  return result();
}
