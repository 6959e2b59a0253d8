// What events stand for: reuse of places, events that are gone, and threads beside each other. SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <thread>

#include "check.h"
#include "device/event_map.h"

using stashtrace::device::EventMap;
using stashtrace::device::EventMeaning;

namespace {

// Handles that are all different and scattered over four gigabytes, as in a heap that has been in use for long.
const void* event(std::uint64_t number) {
  constexpr std::uint64_t kMask = (1u << 28) - 1;
  for (int round = 0; round < 3; ++round) {
    number = number * 0x5bd1e995u & kMask;
    number ^= number >> 13;
  }
  return reinterpret_cast<const void*>(0x5500'0000'0000 + number * 16);
}

bool knows(EventMap& map, std::uintptr_t number) {
  EventMeaning meaning;
  return map.get(event(number), meaning) && meaning.work_id == number;
}

void set(EventMap& map, std::uintptr_t number) {
  map.set(event(number), {1, static_cast<std::uint32_t>(number), 2, 3, 1});
}

void the_last_record_counts(EventMap& map) {
  set(map, 5);
  map.set(event(5), {8, 9, 4, 6, 2});
  EventMeaning meaning;
  CHECK(map.get(event(5), meaning));
  CHECK(meaning.mark_id == 8 && meaning.work_id == 9 && meaning.awaited == 4 && meaning.stream_key == 6);
  CHECK(meaning.copy_code == 2);
  map.forget(event(5));
  CHECK(!map.get(event(5), meaning));
  CHECK(!map.get(event(6), meaning));
}

// A job that makes and destroys events for days must not fill the map with those that are gone.
void gone_events_give_their_places_back(EventMap& map) {
  constexpr std::uintptr_t kGone = 200'000, kAlive = 8'000;
  for (std::uintptr_t number = 1; number <= kGone; ++number) {
    set(map, number);
    map.forget(event(number));
  }
  for (std::uintptr_t number = kGone + 1; number <= kGone + kAlive; ++number) set(map, number);
  std::uintptr_t known = 0;
  for (std::uintptr_t number = kGone + 1; number <= kGone + kAlive; ++number) known += knows(map, number);
  CHECK(known > kAlive * 99 / 100);
  // One place each: a record of an event that is known stays where it is.
  for (int again = 0; again < 2; ++again)
    for (std::uintptr_t number = kGone + 1; number <= kGone + kAlive; ++number) set(map, number);
  std::uintptr_t still = 0;
  for (std::uintptr_t number = kGone + 1; number <= kGone + kAlive; ++number) still += knows(map, number);
  CHECK(still >= known);
}

void threads_never_see_the_meaning_of_another_event(EventMap& map) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 0; t < 4; ++t)
    threads.emplace_back([&map, &wrong, t] {
      for (std::uintptr_t round = 0; round < 20'000; ++round) {
        const std::uintptr_t number = 1'000'000 + t * 1000 + round % 1000;
        set(map, number);
        EventMeaning meaning;
        if (map.get(event(number), meaning) && meaning.work_id != number) ++wrong;
        if (round % 3 == 0) map.forget(event(number));
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
}

// The same where they fight for a few places: a handle that is given up while it is written or read.
void threads_that_share_places_never_see_a_mixture(EventMap& map) {
  constexpr std::size_t kThreads = 4, kOfEach = 12;
  std::vector<std::uint64_t> crowded;  // handles whose search begins at one place of the map
  for (std::uint64_t number = 1; crowded.size() < kThreads * kOfEach; ++number)
    if ((reinterpret_cast<std::uint64_t>(event(number)) * 0x9E3779B97F4A7C15u >> 45) % 32768 == 77)
      crowded.push_back(number);
  std::atomic<int> wrong{0}, known{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (std::uint32_t round = 0; round < 100'000; ++round) {
        const std::uint64_t number = crowded[t * kOfEach + round % kOfEach];
        const auto work = static_cast<std::uint32_t>(number);
        map.set(event(number), {work ^ 0xffff, work, 2, number << 20, 1});
        EventMeaning meaning;
        if (!map.get(event(number), meaning)) continue;
        ++known;
        const bool whole = meaning.work_id == work && meaning.mark_id == (work ^ 0xffff);
        if (!whole || meaning.stream_key != number << 20) ++wrong;
        if (round % 3 == 0) map.forget(event(number));
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
  CHECK(known.load() > 1000);
}

}  // namespace

int main() {
  const auto fresh = [] { return std::make_unique<EventMap>(); };
  the_last_record_counts(*fresh());
  gone_events_give_their_places_back(*fresh());
  threads_never_see_the_meaning_of_another_event(*fresh());
  threads_that_share_places_never_see_a_mixture(*fresh());
  return result();
}
