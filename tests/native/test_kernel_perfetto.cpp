// The Perfetto encoder's bytes, read back by a plain parser. SPDX-License-Identifier: Apache-2.0
//
// What the bytes mean is checked by the real trace processor (tests/exporters); here run the widths, the nesting and
// the order over many random inputs, and the sanitizers watch the raw pointers.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>

#include "check.h"
#include "kernels/perfetto_encoder.h"
#include "kernels/protobuf.h"

namespace {

using namespace stashtrace;

std::uint64_t read_varint(const std::uint8_t*& p, const std::uint8_t* end) {
  std::uint64_t value = 0;
  for (int shift = 0; p < end; shift += 7) {
    value |= static_cast<std::uint64_t>(*p & 0x7f) << shift;
    if (*p++ < 0x80) break;
  }
  return value;
}

void varints_of_every_width() {
  for (int bit = 0; bit < 64; ++bit) {
    for (const std::int64_t delta : {-1, 0, 1}) {
      const std::uint64_t value = (std::uint64_t{1} << bit) + static_cast<std::uint64_t>(delta);
      std::uint8_t fast[16] = {};
      std::uint8_t plain[16] = {};
      std::uint8_t* end = plain;
      std::uint64_t rest = value;
      for (; rest >= 0x80; rest >>= 7) *end++ = static_cast<std::uint8_t>(rest) | 0x80;
      *end++ = static_cast<std::uint8_t>(rest);
      const std::size_t size = static_cast<std::size_t>(protobuf::write_varint(fast, value) - fast);
      CHECK_EQUAL(size, static_cast<std::size_t>(end - plain));
      CHECK(std::equal(plain, end, fast));
    }
  }
}

void lengths_of_every_width() {
  for (const std::size_t size : {0ul, 127ul, 128ul, 16383ul, 16384ul, 2097151ul, 2097152ul}) {
    protobuf::Buffer buffer(16);
    const std::size_t start = buffer.begin_message(1);
    const std::string body(size, 'x');
    std::uint8_t* p = buffer.reserve(size);
    std::copy(body.begin(), body.end(), p);
    buffer.commit(p + size);
    buffer.end_message(start);
    const std::uint8_t* at = buffer.data() + 1;
    const std::uint8_t* end = buffer.data() + buffer.size();
    CHECK_EQUAL(read_varint(at, end), static_cast<std::uint64_t>(size));
    CHECK_EQUAL(static_cast<std::size_t>(end - at), size);
  }
}

struct Event {
  std::int64_t ts_ns;
  std::uint64_t type;
  std::uint64_t track;
};

// Track events of a trace with absolute times; clock 64 counts on from the snapshot.
std::vector<Event> events_of(const std::string& trace) {
  std::vector<Event> events;
  std::int64_t now = 0;
  const auto* p = reinterpret_cast<const std::uint8_t*>(trace.data());
  const std::uint8_t* const end = p + trace.size();
  while (p < end) {
    CHECK_EQUAL(read_varint(p, end), std::uint64_t{0x0a});
    const std::uint64_t packet_bytes = read_varint(p, end);
    const std::uint8_t* const packet_end = p + packet_bytes;
    Event event{0, 0, 0};
    while (p < packet_end) {
      const std::uint64_t tag = read_varint(p, packet_end);
      const std::uint64_t value = read_varint(p, packet_end);
      if (tag >> 3 == 8) now += static_cast<std::int64_t>(value);
      if ((tag & 7) != 2) continue;
      const std::uint8_t* const body_end = p + value;
      if (tag >> 3 == 6) {                // clock snapshot: the last reading is that of clock 64
        while (p < body_end) {
          read_varint(p, body_end);
          const std::uint64_t reading_bytes = read_varint(p, body_end);
          const std::uint8_t* const reading_end = p + reading_bytes;
          while (p < reading_end) {
            const std::uint64_t field = read_varint(p, reading_end) >> 3;
            const std::uint64_t number = read_varint(p, reading_end);
            if (field == 2) now = static_cast<std::int64_t>(number);
          }
        }
      } else if (tag >> 3 == 11) {
        for (int i = 0; i < 2; ++i) {     // type and track come first
          const std::uint64_t field = read_varint(p, body_end) >> 3;
          (field == 9 ? event.type : event.track) = read_varint(p, body_end);
        }
        event.ts_ns = now;
        events.push_back(event);
      }
      p = body_end;
    }
  }
  return events;
}

// Random calls of a few threads, unsorted, on the lanes they need; every slice must come back.
void random_slices_come_back() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = random() % 200;
    std::vector<std::int64_t> key, begin, end, track, name(count, 0), number, text;
    for (std::size_t i = 0; i < count; ++i) {
      key.push_back(static_cast<std::int64_t>(random() % 3));
      begin.push_back(static_cast<std::int64_t>(random() % 1000));
      end.push_back(begin.back() + static_cast<std::int64_t>(random() % 300));
      number.push_back(static_cast<std::int64_t>(random()) >> (random() % 64));
      text.push_back(static_cast<std::int64_t>(random() % 3) - 1);
    }
    const std::vector<std::int32_t> lane = perfetto::assign_lanes(key, begin, end, round % 2 == 0);
    for (std::size_t i = 0; i < count; ++i) track.push_back(1 + key[i] * 1000 + lane[i]);

    const perfetto::TextTable names({"a name"});
    const perfetto::TextTable texts({"", std::string(round * 20, 'y')});
    perfetto::SliceBatch batch;
    batch.count = count;
    batch.begin_ns = begin.data();
    batch.end_ns = end.data();
    batch.track = track.data();
    batch.name = name.data();
    batch.names = &names;
    batch.args.push_back({"number", number.data(), nullptr, nullptr});
    batch.args.push_back({"text", text.data(), nullptr, &texts});
    std::string trace;
    perfetto::Encoder encoder([&](const std::uint8_t* data, std::size_t size) { trace.append(reinterpret_cast<const char*>(data), size); },
                              64);
    encoder.slices(1, std::span(&batch, 1), round % 3 == 0 ? perfetto::Ties::kBatchFirst : perfetto::Ties::kLongerFirst);
    encoder.flush();
    CHECK_EQUAL(encoder.slice_count(), static_cast<std::uint64_t>(count));

    std::map<std::uint64_t, std::vector<std::int64_t>> open;
    std::vector<std::tuple<std::uint64_t, std::int64_t, std::int64_t>> found, wanted;
    std::int64_t last = -1;
    for (const Event& event : events_of(trace)) {
      CHECK(event.ts_ns >= last);
      last = event.ts_ns;
      std::vector<std::int64_t>& stack = open[event.track];
      if (event.type == 1) {
        stack.push_back(event.ts_ns);
      } else {
        CHECK(!stack.empty());
        if (stack.empty()) continue;
        found.emplace_back(event.track, stack.back(), event.ts_ns);
        stack.pop_back();
      }
    }
    for (std::size_t i = 0; i < count; ++i) wanted.emplace_back(static_cast<std::uint64_t>(track[i]), begin[i], end[i]);
    std::sort(found.begin(), found.end());
    std::sort(wanted.begin(), wanted.end());
    CHECK(found == wanted);
  }
}

}  // namespace

int main() {
  varints_of_every_width();
  lengths_of_every_width();
  random_slices_come_back();
  return result();
}
