// One ring: order, wrap-around, a full ring, rows of nested handlers, abandoned rows. SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include <thread>

#include "check.h"
#include "core/ring.h"

using namespace stashtrace;
using container::RingHeader;

namespace {

struct Row {
  std::uint64_t value, inverse;
};

RingHeader* make_ring(std::uint32_t capacity) {
  auto* ring = static_cast<RingHeader*>(aligned_alloc(4096, (4096 + capacity * sizeof(Row) + 4095) / 4096 * 4096));
  std::memset(static_cast<void*>(ring), 0, 4096);
  ring->ring_magic = container::kRingMagic;
  ring->row_bytes = sizeof(Row);
  ring->capacity_rows = capacity;
  ring->row_mask = capacity - 1;
  ring->mark = capacity / 4;
  return ring;
}

bool put(RingHeader* ring, std::uint64_t value) {
  if (ring::must_look_up(ring) && !ring::look_up(ring).room) return false;
  const Row row{value, ~value};
  ring::put(ring, sizeof row, [&](std::byte* to) { std::memcpy(to, &row, sizeof row); });
  return true;
}

std::vector<std::uint64_t> take(RingHeader* ring) {
  const ring::Batch batch = ring::pending(ring);
  std::vector<std::uint64_t> values;
  for (int piece = 0; piece < 2; ++piece)
    for (std::size_t at = 0; at < batch.piece_bytes[piece]; at += sizeof(Row)) {
      Row row;
      std::memcpy(&row, batch.piece[piece] + at, sizeof row);
      CHECK_EQUAL(row.inverse, ~row.value);
      values.push_back(row.value);
    }
  CHECK_EQUAL(values.size(), batch.count);
  ring::consume(ring, batch.first + batch.count);
  return values;
}

void wraps_and_fills() {
  RingHeader* ring = make_ring(64);
  std::uint64_t next = 0, expected = 0;
  for (int lap = 0; lap < 20; ++lap) {
    for (int i = 0; i < 37; ++i) CHECK(put(ring, next++));
    for (const auto value : take(ring)) CHECK_EQUAL(value, expected++);
  }
  std::uint64_t kept = 0;
  while (put(ring, next + kept)) ++kept;
  CHECK_EQUAL(kept, 64 - ring::kSlackRows);  // the rest is for handlers that nest
  CHECK(!put(ring, 0));
  CHECK_EQUAL(take(ring).size(), kept);
  CHECK(put(ring, 1));  // room again
  free(ring);
}

// A handler that records while a row is half written: published by the outer row, in order, none lost.
void nests() {
  RingHeader* ring = make_ring(64);
  put(ring, 1);
  const Row outer{2, ~std::uint64_t{2}};
  ring::put(ring, sizeof outer, [&](std::byte* to) {
    put(ring, 3);
    put(ring, 4);
    CHECK_EQUAL(ring::pending(ring).count, std::uint64_t{1});  // not before the outer row is complete
    std::memcpy(to, &outer, sizeof outer);
  });
  CHECK(take(ring) == (std::vector<std::uint64_t>{1, 2, 3, 4}));
  free(ring);
}

// longjmp out of a handler leaves a claimed row that nobody completes: the ring must go on.
void survives_an_abandoned_row() {
  RingHeader* ring = make_ring(64);
  put(ring, 1);
  ring::claim(ring);
  std::uint64_t put_after = 0, refused = 0;
  for (std::uint64_t value = 100; value < 400; ++value) {
    put(ring, value) ? ++put_after : ++refused;
    take(ring);
  }
  CHECK(ring->dropped > 0 && ring->dropped <= 64);
  CHECK_EQUAL(refused, std::uint64_t{0});
  CHECK_EQUAL(ring->committed, 1 + put_after + 1 - ring->dropped);
  free(ring);
}

// The program maps something of its own over the ring: zeros, or bytes that are not header of ours.
void leaves_a_ring_alone_that_is_gone() {
  for (const int content : {0x00, 0x11, 0xff}) {
    RingHeader* ring = make_ring(64);
    put(ring, 1);
    std::memset(static_cast<void*>(ring), content, sizeof *ring);
    const ring::LookUp look = ring::look_up(ring);
    CHECK(look.gone && !look.room && !look.wants_drain);
    CHECK_EQUAL(ring::pending(ring).count, std::uint64_t{0});
    CHECK_EQUAL(ring::dropped(ring), std::uint64_t{0});
    const auto* bytes = reinterpret_cast<const unsigned char*>(ring);
    for (std::size_t i = 0; i < sizeof *ring; ++i) CHECK_EQUAL(int{bytes[i]}, content);
    free(ring);
  }
}

// The file has space for the first rows only: nothing is stored beyond, whatever was drained and whatever nests.
void stays_where_the_space_ends() {
  RingHeader* ring = make_ring(4096);
  ring->mark = 0;
  ring->space_end = 1024;
  std::uint64_t kept = 0;
  while (put(ring, kept)) ++kept;
  CHECK_EQUAL(kept, 1024 - ring::kSlackRows);
  CHECK(ring::look_up(ring).wants_space);
  CHECK_EQUAL(take(ring).size(), kept);
  CHECK(!put(ring, 0) && ring::look_up(ring).wants_space);  // drained, but still without space
  ring->space_end = 0;
  while (kept < 20'000 && put(ring, kept))
    if (++kept % 1000 == 0) take(ring);
  CHECK_EQUAL(kept, std::uint64_t{20'000});
  free(ring);

  ring = make_ring(4096);
  ring->mark = 0;
  ring->space_end = 1024;
  const std::uint64_t last = 1024 - ring::kSlackRows - 1;
  for (std::uint64_t value = 0; value < last; ++value) CHECK(put(ring, value));
  CHECK(!ring::must_look_up(ring));
  CHECK(put(ring, last) && !put(ring, 0));  // handlers, between the look and the claim of the row that they interrupt
  const Row outer{7, ~std::uint64_t{7}};
  ring::put(ring, sizeof outer, [&](std::byte* to) { std::memcpy(to, &outer, sizeof outer); });
  CHECK(ring->committed <= ring->space_end);
  free(ring);
}

void two_threads_agree() {
  RingHeader* ring = make_ring(1024);
  constexpr std::uint64_t kRows = 300'000;
  std::thread producer([&] {
    for (std::uint64_t value = 0; value < kRows;)
      if (put(ring, value)) ++value;
      else std::this_thread::yield();
  });
  std::uint64_t expected = 0;
  while (expected < kRows)
    for (const auto value : take(ring)) CHECK_EQUAL(value, expected++);
  producer.join();
  free(ring);
}

}  // namespace

int main() {
  wraps_and_fills();
  nests();
  survives_an_abandoned_row();
  leaves_a_ring_alone_that_is_gone();
  stays_where_the_space_ends();
  two_threads_agree();
  CHECK_EQUAL(ring::capacity_rows(1048576, 32), 32768u);
  CHECK_EQUAL(ring::capacity_rows(65536, 72), 512u);
  CHECK_EQUAL(ring::capacity_rows(1, 32), ring::kFewestRows);
  return result();
}
