// Columns of slices and counters -> bytes of a Perfetto trace. SPDX-License-Identifier: Apache-2.0
//
// Called by bindings/bind_perfetto.cpp with borrowed columns and without the GIL. Pure computation: bytes leave
// through a Sink in chunks, so memory stays at one chunk plus what is interned.
//
//   Encoder ── sequence id ──► Sequence: clock 64 (deltas), interned names, argument names, argument texts
//      │
//      ├─ stack_samples()  : a thread's samples in packets of many, two numbers each; each stack is written once
//      └─ slices(batches) : merged by time; at one instant ends come before begins and parents before children,
//                           because an END closes the innermost open slice of its track, whatever it was meant for
//
// Field numbers are those of perfetto_trace.proto; only fields that viewers since v52 know are written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/protobuf.h"

namespace stashtrace::perfetto {

// Distinct texts addressed by code. A table's number is never reused, so a sequence may remember what it interned.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> texts);
  [[nodiscard]] std::string_view text(std::int64_t code) const { return texts_[static_cast<std::size_t>(code)]; }
  [[nodiscard]] std::size_t size() const { return texts_.size(); }
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  std::vector<std::string> texts_;
  std::uint64_t number_;
};

// A value that leaves the argument out of its slice (for texts any negative code, for doubles NaN).
inline constexpr std::int64_t kNoValue = std::numeric_limits<std::int64_t>::min();

struct ArgColumn {
  std::string name;
  const std::int64_t* ints = nullptr;  // values, or codes when texts is set
  const double* doubles = nullptr;     // instead of ints
  const TextTable* texts = nullptr;
};

struct FlowColumn {
  std::span<const std::int64_t> rows;  // of the batch, ascending, repeats allowed
  std::span<const std::int64_t> ids;
  bool terminating = false;
};

struct SliceBatch {
  std::size_t count = 0;
  const std::int64_t* begin_ns = nullptr;
  const std::int64_t* end_ns = nullptr;
  const std::int64_t* track = nullptr;  // track uuid
  const std::int64_t* name = nullptr;   // code in names
  const TextTable* names = nullptr;
  const std::int64_t* correlation = nullptr;  // code in correlations, negative: none; viewers colour slices by it
  const TextTable* correlations = nullptr;
  std::vector<ArgColumn> args;
  std::vector<FlowColumn> flows;
};

// Slices that begin at one instant. kBatchFirst writes those of earlier batches first whatever their length, so that a
// flow between two of them points from the earlier batch to the later one; the caller must put a parent's
// batch before its child's.
enum class Ties { kLongerFirst, kBatchFirst };

struct TrackDescription {
  std::uint64_t uuid = 0;
  std::uint64_t parent = 0;  // 0: none
  std::string name;
  std::string description;
  std::int64_t rank_among_siblings = 0;
  bool is_process = false;
  std::int32_t pid = 0;             // process only
  std::vector<std::string> labels;  // process only: shown next to its name
  bool is_counter = false;
  std::string unit;        // counter only
  std::string share_axis;  // counter only: tracks of one parent with this key have one scale
};

// Frames of code, each below its caller. Viewers join those of equal name and file.
struct FrameTable {
  std::span<const std::int64_t> caller;  // row of the calling frame, -1 of an outermost one; never a circle
  std::span<const std::int64_t> name;    // codes in texts
  std::span<const std::int64_t> path;
  std::span<const std::int64_t> line;    // negative: unknown
  std::span<const std::int64_t> number;  // equal for rows of equal name, path and line
  const TextTable* texts = nullptr;
};

// A thread as the viewer knows it. Its samples are on a track that the viewer makes.
struct ThreadDescription {
  std::uint64_t uuid = 0;
  std::int32_t pid = 0;
  std::int32_t tid = 0;  // of no process and no other thread
  std::string name;
};

// Takes finished bytes; may throw, which ends the call that encoded them.
using Sink = std::function<void(const std::uint8_t*, std::size_t)>;

class Encoder {
 public:
  Encoder(Sink sink, std::size_t chunk_bytes);

  void track(const TrackDescription& track);
  // What a viewer should show first: a time range and a process. Stored in the file for its viewers.
  void view(std::int64_t begin_ns, std::int64_t end_ns, std::string_view process_name);
  // Slices of one track must nest: see assign_lanes(). Batches may be in any order inside.
  void slices(std::uint32_t sequence_id, std::span<const SliceBatch> batches, Ties ties = Ties::kLongerFirst);
  // One counter track; values in time order.
  void counter(std::uint32_t sequence_id, std::uint64_t track, std::span<const std::int64_t> ts_ns,
               std::span<const double> values);
  // Samples of one thread by time: rows of the innermost frame. The sequence belongs to them alone.
  void stack_samples(std::uint32_t sequence_id, const ThreadDescription& thread, const FrameTable& frames,
                     std::span<const std::int64_t> ts_ns, std::span<const std::int64_t> frame);
  void flush();

  [[nodiscard]] std::uint64_t slice_count() const { return slice_count_; }
  [[nodiscard]] std::uint64_t byte_count() const { return byte_count_ + buffer_.size(); }

 private:
  struct Interner {  // one per sequence and kind of text
    std::unordered_map<std::string, std::uint32_t> iids;
    std::map<std::uint64_t, std::vector<std::uint32_t>> by_table;  // code -> iid, 0: not yet
    std::vector<std::uint32_t>& of(const TextTable& table);
  };
  struct Sequence {
    std::uint32_t id = 0;
    std::int64_t last_ns = 0;
    Interner names, arg_names, arg_texts;
  };
  struct Column {  // an ArgColumn, made ready for the loop
    const ArgColumn* source;
    std::vector<std::uint32_t>* text_iids;
    std::array<std::uint8_t, 16> prefix;  // name_iid field and the tag of the value
    std::size_t prefix_bytes;
  };
  struct Prepared {
    const SliceBatch* batch;
    std::vector<std::uint32_t>* name_iids;
    std::vector<Column> columns;
    std::vector<std::vector<std::uint32_t>> flow_starts;  // per FlowColumn: first flow of each row, then the count
  };
  struct Open {  // a slice whose END is still to be written
    std::int64_t end_ns;
    std::uint64_t track;
  };

  void keep_order_of_processes();
  void begin_thread(std::uint32_t sequence_id, const ThreadDescription& thread, std::int64_t first_us);
  Sequence& sequence(std::uint32_t id, std::int64_t first_ns);
  Prepared prepare(Sequence& seq, const SliceBatch& batch);
  void write_begin(Sequence& seq, const Prepared& prepared, std::size_t row, std::int64_t begin_ns);
  void write_end(Sequence& seq, const Open& open);
  std::uint32_t intern(Sequence& seq, Interner& interner, std::uint32_t field, std::string_view text);
  std::uint32_t intern_code(Sequence& seq, Interner& interner, std::uint32_t field, const TextTable& table,
                            std::vector<std::uint32_t>& iids, std::int64_t code);
  void send_if_full();

  Sink sink_;
  std::size_t chunk_bytes_;
  protobuf::Buffer buffer_;
  std::map<std::uint32_t, std::unique_ptr<Sequence>> sequences_;
  std::uint64_t slice_count_ = 0;
  std::uint64_t byte_count_ = 0;
  bool processes_ordered_ = false;
  bool monotonic_is_known_ = false;
};

// Returns the lane of each slice within its track, so that slices of one (track, lane) nest: partial overlaps go to the
// next free lane. With nest = false even contained slices get a separate lane. Any input order.
std::vector<std::int32_t> assign_lanes(std::span<const std::int64_t> track, std::span<const std::int64_t> begin_ns,
                                       std::span<const std::int64_t> end_ns, bool nest);

}  // namespace stashtrace::perfetto
