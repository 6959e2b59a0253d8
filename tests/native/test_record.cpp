// The whole path in one process: rows, strings, drops and the files they end in. SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <thread>

#include "check.h"
#include "core/crc32.h"
#include "core/string_table.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

using namespace stashtrace;

namespace {

// Rows of one record type in all segments of a .stash file, as raw bytes; checks every checksum on the way.
std::vector<std::string> rows_in(const std::string& path, std::uint16_t record_id) {
  const std::string data = content(path);
  container::FileHeader head;
  CHECK(data.size() > sizeof head);
  std::memcpy(&head, data.data(), sizeof head);
  CHECK(std::memcmp(head.magic, container::kFileMagic, 8) == 0);
  const std::size_t text = head.field_table_bytes + head.metadata_bytes;
  CHECK_EQUAL(crc32(0, data.data() + head.header_bytes, text), head.header_crc32);
  std::vector<std::string> rows;
  std::size_t at = head.data_offset_bytes;
  while (at < data.size()) {
    container::SegmentHeader segment;
    std::memcpy(&segment, data.data() + at, sizeof segment);
    CHECK_EQUAL(segment.sync_word, container::kSyncWord);
    CHECK_EQUAL(crc32(0, &segment, offsetof(container::SegmentHeader, header_crc32)), segment.header_crc32);
    at += sizeof segment;
    CHECK_EQUAL(crc32(0, data.data() + at, segment.payload_bytes), segment.payload_crc32);
    const std::size_t row_bytes = segment.payload_bytes / segment.row_count;
    for (std::size_t i = 0; segment.record_id == record_id && i < segment.row_count; ++i)
      rows.push_back(data.substr(at + i * row_bytes, row_bytes));
    at += segment.payload_bytes;
  }
  CHECK_EQUAL(at, data.size());
  return rows;
}

volatile std::uint64_t g_from_handler = 0;
void record_in_handler(int) {
  if (emit(schema::Counter{1, 1.0, 7, 0})) g_from_handler = g_from_handler + 1;
}

}  // namespace

int main(int, char** argv) {
  TRACED(argv);
  CHECK(recording());
  CHECK(run_files(".stash").empty());  // nothing before the first record
  CHECK_EQUAL(intern(""), 0u);

  const std::string longest(5'000, 'y');
  const std::uint32_t id = intern("a path"), long_id = intern(longest);
  CHECK(id != 0 && long_id != 0 && intern("a path") == id);
  CHECK_EQUAL(run_files(".stash").size(), std::size_t{1});
  CHECK_EQUAL(run_files(".ring").size(), std::size_t{1});

  // Rows of the main flow and of a signal handler that interrupts it, in one ring: none lost, none torn.
  struct sigaction action{};
  action.sa_handler = &record_in_handler;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 50}, {0, 50}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  std::uint64_t kept = 0;
  const std::uint64_t begin = now_ticks();
  while (now_ticks() - begin < runtime().tick_hz() / 5) kept += emit(schema::Counter{2, 2.0, 7, 0});
  setitimer(ITIMER_REAL, &never, nullptr);
  CHECK(g_from_handler > 10);

  std::thread([] {
    ScopedRecord<schema::Span> span;
    span.row.value = 42;
  }).join();
  runtime().set_recording(false);
  CHECK(!recording());
  {
    ScopedRecord<schema::Span> unseen;
  }
  runtime().set_recording(true);

  const RuntimeStats before = runtime().stats();
  runtime().finish();
  CHECK(!recording());
  CHECK(run_files(".ring").empty());
  const std::string stash = run_files(".stash").at(0);
  std::uint64_t handler_rows = 0;
  const auto counters = rows_in(stash, schema::Counter::kId);
  for (const auto& row : counters) {
    schema::Counter counter;
    std::memcpy(&counter, row.data(), sizeof counter);
    if (counter.name_id != 7) continue;  // the template collector samples too
    CHECK(counter.ticks == 1 || counter.ticks == 2);
    CHECK_EQUAL(counter.value, static_cast<double>(counter.ticks));
    handler_rows += counter.ticks == 1;
    kept -= counter.ticks == 2;
  }
  CHECK_EQUAL(kept, std::uint64_t{0});
  CHECK_EQUAL(handler_rows, std::uint64_t{g_from_handler});
  CHECK_EQUAL(rows_in(stash, schema::Span::kId).size(), std::size_t{1});
  CHECK(rows_in(stash, schema::ClockSync::kId).size() >= 2);
  CHECK(rows_in(stash, schema::ThreadInfo::kId).size() >= 2);

  std::string text;
  for (const auto& row : rows_in(stash, schema::StringPart::kId)) {
    schema::StringPart part;
    std::memcpy(&part, row.data(), sizeof part);
    if (part.string_id != long_id) continue;
    CHECK_EQUAL(part.length_bytes, kLongestTextBytes);
    text.append(part.text.data(),
                std::min<std::size_t>(part.text.size(), part.length_bytes - part.part * part.text.size()));
  }
  CHECK_EQUAL(text, longest.substr(0, kLongestTextBytes));
  std::uint64_t told = 0;
  for (const auto& row : rows_in(stash, schema::Loss::kId)) {
    schema::Loss loss;
    std::memcpy(&loss, row.data(), sizeof loss);
    told += loss.lost_count;
  }
  CHECK(told >= before.dropped_rows_count);
  return result();
}
