// One lane: order, wrap-around, a full ring, rows of nested handlers, abandoned rows. SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include <thread>

#include "check.h"
#include "core/ring.h"

using namespace stashtrace;
using container::LaneHeader;

namespace {

struct Row {
  std::uint64_t value, inverse;
};

LaneHeader* make_lane(std::uint32_t capacity) {
  auto* lane = static_cast<LaneHeader*>(aligned_alloc(4096, (4096 + capacity * sizeof(Row) + 4095) / 4096 * 4096));
  std::memset(static_cast<void*>(lane), 0, 4096);
  lane->lane_magic = container::kLaneMagic;
  lane->row_bytes = sizeof(Row);
  lane->capacity_rows = capacity;
  lane->row_mask = capacity - 1;
  lane->mark = capacity / 4;
  return lane;
}

bool put(LaneHeader* lane, std::uint64_t value) {
  if (ring::must_look_up(lane) && !ring::look_up(lane).room) return false;
  const Row row{value, ~value};
  ring::put(lane, sizeof row, [&](std::byte* to) { std::memcpy(to, &row, sizeof row); });
  return true;
}

std::vector<std::uint64_t> take(LaneHeader* lane) {
  const ring::Batch batch = ring::pending(lane);
  std::vector<std::uint64_t> values;
  for (int piece = 0; piece < 2; ++piece)
    for (std::size_t at = 0; at < batch.piece_bytes[piece]; at += sizeof(Row)) {
      Row row;
      std::memcpy(&row, batch.piece[piece] + at, sizeof row);
      CHECK_EQUAL(row.inverse, ~row.value);
      values.push_back(row.value);
    }
  CHECK_EQUAL(values.size(), batch.count);
  ring::consume(lane, batch.first + batch.count);
  return values;
}

void wraps_and_fills() {
  LaneHeader* lane = make_lane(64);
  std::uint64_t next = 0, expected = 0;
  for (int lap = 0; lap < 20; ++lap) {
    for (int i = 0; i < 37; ++i) CHECK(put(lane, next++));
    for (const auto value : take(lane)) CHECK_EQUAL(value, expected++);
  }
  std::uint64_t kept = 0;
  while (put(lane, next + kept)) ++kept;
  CHECK_EQUAL(kept, 64 - ring::kSlackRows);  // the rest is for handlers that nest
  CHECK(!put(lane, 0));
  CHECK_EQUAL(take(lane).size(), kept);
  CHECK(put(lane, 1));  // room again
  free(lane);
}

// A handler that records while a row is half written: published by the outer row, in order, none lost.
void nests() {
  LaneHeader* lane = make_lane(64);
  put(lane, 1);
  const Row outer{2, ~std::uint64_t{2}};
  ring::put(lane, sizeof outer, [&](std::byte* to) {
    put(lane, 3);
    put(lane, 4);
    CHECK_EQUAL(ring::pending(lane).count, std::uint64_t{1});  // not before the outer row is complete
    std::memcpy(to, &outer, sizeof outer);
  });
  CHECK(take(lane) == (std::vector<std::uint64_t>{1, 2, 3, 4}));
  free(lane);
}

// longjmp out of a handler leaves a claimed row that nobody completes: the lane must go on.
void survives_an_abandoned_row() {
  LaneHeader* lane = make_lane(64);
  put(lane, 1);
  ring::claim(lane);
  std::uint64_t put_after = 0, refused = 0;
  for (std::uint64_t value = 100; value < 400; ++value) {
    put(lane, value) ? ++put_after : ++refused;
    take(lane);
  }
  CHECK(lane->dropped > 0 && lane->dropped <= 64);
  CHECK_EQUAL(refused, std::uint64_t{0});
  CHECK_EQUAL(lane->committed, 1 + put_after + 1 - lane->dropped);
  free(lane);
}

// The program maps something of its own over the lane: zeros, or bytes that are not header of ours.
void leaves_a_lane_alone_that_is_gone() {
  for (const int content : {0x00, 0x11, 0xff}) {
    LaneHeader* lane = make_lane(64);
    put(lane, 1);
    std::memset(static_cast<void*>(lane), content, sizeof *lane);
    const ring::LookUp look = ring::look_up(lane);
    CHECK(look.gone && !look.room && !look.wants_drain);
    CHECK_EQUAL(ring::pending(lane).count, std::uint64_t{0});
    CHECK_EQUAL(ring::dropped(lane), std::uint64_t{0});
    const auto* bytes = reinterpret_cast<const unsigned char*>(lane);
    for (std::size_t i = 0; i < sizeof *lane; ++i) CHECK_EQUAL(int{bytes[i]}, content);
    free(lane);
  }
}

// The file has space for the first rows only: nothing is stored beyond, whatever was drained and whatever nests.
void stays_where_the_space_ends() {
  LaneHeader* lane = make_lane(4096);
  lane->mark = 0;
  lane->space_end = 1024;
  std::uint64_t kept = 0;
  while (put(lane, kept)) ++kept;
  CHECK_EQUAL(kept, 1024 - ring::kSlackRows);
  CHECK(ring::look_up(lane).wants_space);
  CHECK_EQUAL(take(lane).size(), kept);
  CHECK(!put(lane, 0) && ring::look_up(lane).wants_space);  // drained, but still without space
  lane->space_end = 0;
  while (kept < 20'000 && put(lane, kept))
    if (++kept % 1000 == 0) take(lane);
  CHECK_EQUAL(kept, std::uint64_t{20'000});
  free(lane);

  lane = make_lane(4096);
  lane->mark = 0;
  lane->space_end = 1024;
  const std::uint64_t last = 1024 - ring::kSlackRows - 1;
  for (std::uint64_t value = 0; value < last; ++value) CHECK(put(lane, value));
  CHECK(!ring::must_look_up(lane));
  CHECK(put(lane, last) && !put(lane, 0));  // handlers, between the look and the claim of the row that they interrupt
  const Row outer{7, ~std::uint64_t{7}};
  ring::put(lane, sizeof outer, [&](std::byte* to) { std::memcpy(to, &outer, sizeof outer); });
  CHECK(lane->committed <= lane->space_end);
  free(lane);
}

void two_threads_agree() {
  LaneHeader* lane = make_lane(1024);
  constexpr std::uint64_t kRows = 300'000;
  std::thread producer([&] {
    for (std::uint64_t value = 0; value < kRows;)
      if (put(lane, value)) ++value;
      else std::this_thread::yield();
  });
  std::uint64_t expected = 0;
  while (expected < kRows)
    for (const auto value : take(lane)) CHECK_EQUAL(value, expected++);
  producer.join();
  free(lane);
}

}  // namespace

int main() {
  wraps_and_fills();
  nests();
  survives_an_abandoned_row();
  leaves_a_lane_alone_that_is_gone();
  stays_where_the_space_ends();
  two_threads_agree();
  CHECK_EQUAL(ring::capacity_rows(1048576, 32), 32768u);
  CHECK_EQUAL(ring::capacity_rows(65536, 72), 512u);
  CHECK_EQUAL(ring::capacity_rows(1, 32), ring::kFewestRows);
  return result();
}
