// What a job loses while nothing can be written, by a clock of the test's. SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "runtime/full_wait.h"

using stashtrace::FullWait;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// A producer that finds its ring full all the time, while nobody drains: ns that it stands still.
std::int64_t stood_still(FullWait& wait, std::int64_t begin_ns, std::int64_t hang_ns) {
  std::int64_t total = 0;
  for (std::int64_t now = begin_ns; now < begin_ns + hang_ns; now += 1'000'000) {
    const std::int64_t allowed = wait.allowed_ns(now);
    total += allowed;
    now += allowed;
    if (allowed > 0) wait.was_in_vain(now);
  }
  return total;
}

}  // namespace

int main() {
  FullWait wait;
  constexpr std::int64_t kBegin = 1'000 * kSecond;
  CHECK_EQUAL(wait.allowed_ns(kBegin), FullWait::kLongestNs);
  CHECK_EQUAL(stood_still(wait, kBegin, 8 * kSecond), 4 * FullWait::kLongestNs);  // at 0, 1, 3 and 7 s
  wait.reset();
  CHECK_EQUAL(stood_still(wait, kBegin, kSecond / 2), FullWait::kLongestNs);
  wait.reset();
  const std::int64_t hour = stood_still(wait, kBegin, 3600 * kSecond);
  CHECK(hour >= 3 * kSecond && hour < 3 * kSecond + kSecond / 2);

  // Threads that wait side by side: the end of the second one does not double the pause.
  wait.reset();
  wait.was_in_vain(kBegin);
  wait.was_in_vain(kBegin + 1'000);
  CHECK_EQUAL(wait.allowed_ns(kBegin + kSecond - 1), 0);
  CHECK_EQUAL(wait.allowed_ns(kBegin + kSecond), FullWait::kLongestNs);
  wait.was_in_vain(kBegin + kSecond);
  CHECK_EQUAL(wait.allowed_ns(kBegin + 3 * kSecond - 1), 0);

  // A wait that was worth it begins anew.
  wait.was_worth_it();
  wait.was_in_vain(kBegin + 3 * kSecond);
  CHECK_EQUAL(wait.allowed_ns(kBegin + 4 * kSecond), FullWait::kLongestNs);
  return result();
}
