// What the bytes of a .stash and a .ring file mean, apart from the rows (records.def).
// SPDX-License-Identifier: Apache-2.0
//
//   X.stash   FileHeader | field table | metadata JSON | segment | segment | ...
//             segment = SegmentHeader | payload (row_count rows, or codec 1 columns)
//   X.ring    RingFileHeader | ring | ring | ...      exists while X is written, or after a crash
//             ring = RingHeader (kPageBytes) | capacity_rows rows
//
// A row of a ring has a number that only grows (its sequence); row n lies at index n % capacity.
// Rows [consumed, committed) of a ring are not yet in X.stash. A segment names its ring and the
// number of its first row, so a crash between "segment appended" and "consumed stored" is seen
// by the reader: it starts at max(consumed, end of the ring's last segment). All little endian.
// stashtrace/format/container.py reads the same layout; tests/format checks they agree.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace stashtrace::container {

inline constexpr char kFileMagic[8] = {'S', 'T', 'A', 'S', 'H', 'T', 'R', '\n'};
inline constexpr char kRingFileMagic[8] = {'S', 'T', 'A', 'S', 'H', 'R', 'G', '\n'};
inline constexpr std::uint32_t kRingMagic = 0x454e414c;  // "LANE"
inline constexpr std::uint64_t kSyncWord = 0xd15c0b5e9a7e5eedULL;
inline constexpr std::uint16_t kContainerMajor = 1;  // increase when the framing changes
inline constexpr std::uint16_t kContainerMinor = 0;
inline constexpr std::uint16_t kOldestMajor = 1;
// Rings begin at multiples of it, rows of a ring this far behind its begin, on every machine. Where pages are larger
// (core/pages.h), rings begin at multiples of those, with zeros between.
inline constexpr std::uint32_t kPageBytes = 4096;

struct FileHeader {
  char magic[8];
  std::uint16_t container_major;
  std::uint16_t container_minor;
  std::uint32_t header_bytes;       // sizeof(FileHeader) when written
  std::uint32_t field_table_bytes;  // JSON text, see below; starts at header_bytes
  std::uint32_t metadata_bytes;     // JSON text; starts at header_bytes + field_table_bytes
  std::uint64_t data_offset_bytes;  // first segment, 8-aligned
  std::uint32_t header_crc32;       // zlib crc32 of field table + metadata
  std::uint32_t file_flags;         // FileFlag
};
static_assert(sizeof(FileHeader) == 40);
enum FileFlag : std::uint32_t { kMerged = 1 };  // rewritten columnar by the merge; the ring was folded in

// Field table: {"records": [{"name", "id", "version", "collector", "row_bytes",
//   "fields": [{"name", "type": "u16|i32|u32|i64|u64|f64|text56", "offset"}]}]}
// Metadata: {"run_id", "host", "boot_id", "netns", "pidns", "pid", "ppid", "incarnation", "parent_incarnation", "argv",
//   "exe", "env": {RANK, LOCAL_RANK, WORLD_SIZE, ...}, "clock": "tsc"|"cntvct"|"monotonic", "tick_hz", "start_ticks",
//   "start_monotonic_ns", "start_realtime_ns", "collectors": [...], "version"}
//   And where a library in front of libc bends the job's clock: "job_clock_answered_by", "job_clock_ahead_ns",
//   "job_clock_ns_per_s" (of the job's clock in a second of the kernel's), when our library was loaded.
// A forked child keeps the string ids of its parent (ppid, parent_incarnation; -1 if it was not forked from a
// recorded process): look up an id that its file does not define in the parent's file.
// A merged file also has "losses": [[collector, reason, severity, lost_count, advice], ...], what the ring and the
// raw segments said about missing rows before they were dropped.

// The recorder writes kRaw, the merge writes the others. kColumns: kernels/column_codec.h. kTexts, for rows with texts:
//   u32 bytes | kColumns payload of the rows without their texts | zlib of all texts, each ended by a zero byte.
// kDeflateTurned, if that is smaller (numbered paths): zlib of byte 0 of all rows, byte 1 of all rows, ...
enum Codec : std::uint16_t { kRaw = 0, kColumns = 1, kTexts = 2, kDeflateTurned = 3 };

struct SegmentHeader {
  std::uint64_t sync_word;
  std::uint16_t record_id;
  std::uint16_t codec;
  std::uint32_t tid;
  std::uint32_t ring_id;  // index of the ring in the .ring file
  std::uint32_t row_count;
  std::uint64_t first_sequence;  // of the ring
  std::uint32_t payload_bytes;
  std::uint32_t payload_crc32;
  std::uint32_t header_crc32;  // of the 40 bytes before this field
  std::uint32_t reserved;
};
static_assert(sizeof(SegmentHeader) == 48 && offsetof(SegmentHeader, header_crc32) == 40);
// Payloads are padded with zeros to a multiple of 8; payload_bytes counts without padding.

struct RingFileHeader {  // the begin of X.ring, a page of the machine
  char magic[8];
  std::uint16_t container_major;
  std::uint16_t container_minor;
  std::uint32_t pid;
  std::uint64_t used_bytes;   // rings lie behind this page, up to here; grows, release-stored
  std::uint64_t lost_rows;    // rows lost because no ring could be made, not yet reported in a loss row
  std::uint32_t grow_error;   // errno where this file could not grow, 0 once it can again and all losses are reported
  std::uint32_t write_error;  // the same of writing the .stash
};

struct RingHeader {  // the first kPageBytes of a ring
  std::uint32_t ring_magic;
  std::uint16_t record_id;
  std::uint16_t row_bytes;
  std::uint32_t ring_id;
  std::uint32_t capacity_rows;         // a power of two
  std::uint64_t ring_bytes;            // header + rows, rounded up to pages of the machine
  std::uint32_t tid;                   // current owner; it wrote all rows in [consumed, committed)
  std::uint32_t state;                 // 0 in use, 1 free (owner ended), may be taken once drained
  alignas(64) std::uint64_t reserved;  // producer: rows claimed
  std::uint64_t committed;             // producer: rows complete, release-stored
  std::uint64_t dropped;               // rows refused because the ring was full, not yet reported in a loss row
  std::uint64_t mark;                  // producer only: it leaves its fast path when reserved reaches this
  std::uint64_t row_mask;              // producer only: capacity_rows - 1
  std::uint64_t space_end;             // producer only: rows from this one on have no file space yet; 0: all have it
  std::uint64_t offset_bytes;          // of this header in the file
  alignas(64) std::uint64_t consumed;  // drainer: rows that are in X.stash
};
static_assert(sizeof(RingHeader) == 192 && std::is_standard_layout_v<RingHeader>);
static_assert(offsetof(RingHeader, reserved) == 64 && offsetof(RingHeader, consumed) == 128);

}  // namespace stashtrace::container
