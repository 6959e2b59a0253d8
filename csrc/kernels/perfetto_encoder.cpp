// The packets. SPDX-License-Identifier: Apache-2.0
//
// Two packets per slice, about 30 bytes each: constant parts are literal bytes and repeated parts are
// interned. No packet of the loop allocates; the buffer is sent on when a chunk is full.
#include "kernels/perfetto_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/perfetto_order.h"

namespace stashtrace::perfetto {
namespace {

using protobuf::tag;
using protobuf::write_fixed64;
using protobuf::write_varint;

// Trace and TracePacket.
constexpr std::uint32_t kTracePacket = 1;
constexpr std::uint32_t kClockSnapshot = 6;
constexpr std::uint32_t kTimestamp = 8;
constexpr std::uint32_t kSequenceId = 10;
constexpr std::uint32_t kTrackEvent = 11;
constexpr std::uint32_t kInternedData = 12;
constexpr std::uint32_t kSequenceFlags = 13;
constexpr std::uint32_t kPacketDefaults = 59;
constexpr std::uint32_t kTrackDescriptor = 60;
constexpr std::uint32_t kUiState = 78;
// TrackDescriptor.
constexpr std::uint32_t kProcessOrdering = 19;
// TrackEvent.
constexpr std::uint32_t kAnnotation = 4;
constexpr std::uint32_t kType = 9;
constexpr std::uint32_t kNameIid = 10;
constexpr std::uint32_t kTrackUuid = 11;
constexpr std::uint32_t kDoubleCounterValue = 44;
constexpr std::uint32_t kFlowIds = 47;
constexpr std::uint32_t kTerminatingFlowIds = 48;
constexpr std::uint32_t kCorrelationText = 53;
// DebugAnnotation.
constexpr std::uint32_t kAnnotationNameIid = 1;
constexpr std::uint32_t kIntValue = 4;
constexpr std::uint32_t kDoubleValue = 5;
constexpr std::uint32_t kStringValueIid = 17;
// InternedData.
constexpr std::uint32_t kEventNames = 2;
constexpr std::uint32_t kAnnotationNames = 3;
constexpr std::uint32_t kAnnotationTexts = 29;

constexpr std::uint8_t kSliceBegin = 1;
constexpr std::uint8_t kSliceEnd = 2;
constexpr std::uint8_t kCounter = 4;
constexpr std::uint64_t kIncrementalStateCleared = 1;
constexpr std::uint64_t kNeedsIncrementalState = 2;
constexpr std::uint64_t kBoottimeClock = 6;
constexpr std::uint64_t kDeltaClock = 64;

// Upper bounds for a begin packet without arguments and flows, and for one argument or flow.
constexpr std::size_t kPacketBytes = 96;
constexpr std::size_t kArgBytes = 32;

constexpr std::uint8_t byte_tag(std::uint32_t field, std::uint8_t wire) {
  return static_cast<std::uint8_t>(tag(field, wire));
}

// One packet with a track event; p is the position of the next byte. One length byte is kept free for packet and event.
struct EventPacket {
  std::uint8_t* packet;
  std::uint8_t* event;
  std::uint8_t* p;

  EventPacket(std::uint8_t* at, std::int64_t delta_ns, std::uint32_t sequence_id, std::uint8_t type,
              std::uint64_t track) {
    at[0] = byte_tag(kTracePacket, protobuf::kWireBytes);
    packet = at + 2;
    at[2] = byte_tag(kTimestamp, protobuf::kWireVarint);
    p = write_varint(at + 3, static_cast<std::uint64_t>(delta_ns));
    *p = byte_tag(kSequenceId, protobuf::kWireVarint);
    p = write_varint(p + 1, sequence_id);
    p[0] = byte_tag(kSequenceFlags, protobuf::kWireVarint);
    p[1] = static_cast<std::uint8_t>(kNeedsIncrementalState);
    p[2] = byte_tag(kTrackEvent, protobuf::kWireBytes);
    event = p + 4;
    event[0] = byte_tag(kType, protobuf::kWireVarint);
    event[1] = type;
    event[2] = byte_tag(kTrackUuid, protobuf::kWireVarint);
    p = write_varint(event + 3, track);
  }

  std::uint8_t* close() { return protobuf::close_message(packet, protobuf::close_message(event, p)); }
};

std::uint64_t next_table_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

TextTable::TextTable(std::vector<std::string> texts) : texts_(std::move(texts)), number_(next_table_number()) {}

Encoder::Encoder(Sink sink, std::size_t chunk_bytes)
    : sink_(std::move(sink)), chunk_bytes_(chunk_bytes), buffer_(chunk_bytes + 4096) {}

void Encoder::flush() {
  if (buffer_.size() == 0) return;
  byte_count_ += buffer_.size();
  const std::size_t size = buffer_.size();
  buffer_.clear();  // before the call: a sink that throws must not see the bytes twice
  sink_(buffer_.data(), size);
}

void Encoder::send_if_full() {
  if (buffer_.size() >= chunk_bytes_) flush();
}

// Without it viewers order processes by the number of their slices, not by their rank among siblings.
void Encoder::keep_order_of_processes() {
  if (processes_ordered_) return;
  processes_ordered_ = true;
  const std::size_t packet = buffer_.begin_message(kTracePacket);
  const std::size_t descriptor = buffer_.begin_message(kTrackDescriptor);
  buffer_.varint_field(1, 0);  // the root, above all processes
  buffer_.varint_field(kProcessOrdering, 1);
  buffer_.end_message(descriptor);
  buffer_.end_message(packet);
}

void Encoder::track(const TrackDescription& track) {
  if (track.is_process) keep_order_of_processes();
  const std::size_t packet = buffer_.begin_message(kTracePacket);
  const std::size_t descriptor = buffer_.begin_message(kTrackDescriptor);
  buffer_.varint_field(1, track.uuid);
  if (track.parent != 0) buffer_.varint_field(5, track.parent);
  if (!track.is_process) buffer_.text_field(2, track.name);
  if (track.is_process) {
    const std::size_t process = buffer_.begin_message(3);
    buffer_.varint_field(1, static_cast<std::uint64_t>(track.pid));
    buffer_.text_field(6, track.name);
    for (const std::string& label : track.labels) buffer_.text_field(8, label);
    buffer_.end_message(process);
  }
  if (track.is_counter) {
    const std::size_t counter = buffer_.begin_message(8);
    if (!track.unit.empty()) buffer_.text_field(6, track.unit);
    if (!track.share_axis.empty()) buffer_.text_field(7, track.share_axis);
    buffer_.end_message(counter);
  }
  buffer_.varint_field(11, 3);  // children in the order of their rank
  buffer_.varint_field(12, static_cast<std::uint64_t>(track.rank_among_siblings));
  if (!track.description.empty()) buffer_.text_field(14, track.description);
  buffer_.end_message(descriptor);
  buffer_.end_message(packet);
  send_if_full();
}

void Encoder::view(std::int64_t begin_ns, std::int64_t end_ns, std::string_view process_name) {
  const std::size_t packet = buffer_.begin_message(kTracePacket);
  const std::size_t state = buffer_.begin_message(kUiState);
  buffer_.varint_field(1, static_cast<std::uint64_t>(begin_ns));
  buffer_.varint_field(2, static_cast<std::uint64_t>(end_ns));
  const std::size_t process = buffer_.begin_message(3);
  buffer_.text_field(2, process_name);
  buffer_.end_message(process);
  buffer_.end_message(state);
  buffer_.end_message(packet);
}

Encoder::Sequence& Encoder::sequence(std::uint32_t id, std::int64_t first_ns) {
  std::unique_ptr<Sequence>& found = sequences_[id];
  if (found) return *found;
  found = std::make_unique<Sequence>();
  found->id = id;
  found->last_ns = first_ns;
  const std::size_t packet = buffer_.begin_message(kTracePacket);
  buffer_.varint_field(kSequenceId, id);
  buffer_.varint_field(kSequenceFlags, kIncrementalStateCleared);
  const std::size_t snapshot = buffer_.begin_message(kClockSnapshot);
  for (const std::uint64_t clock : {kBoottimeClock, kDeltaClock}) {
    const std::size_t reading = buffer_.begin_message(1);
    buffer_.varint_field(1, clock);
    buffer_.varint_field(2, static_cast<std::uint64_t>(first_ns));
    if (clock == kDeltaClock) buffer_.varint_field(3, 1);
    buffer_.end_message(reading);
  }
  buffer_.end_message(snapshot);
  const std::size_t defaults = buffer_.begin_message(kPacketDefaults);
  buffer_.varint_field(58, kDeltaClock);
  buffer_.end_message(defaults);
  buffer_.end_message(packet);
  return *found;
}

std::vector<std::uint32_t>& Encoder::Interner::of(const TextTable& table) {
  std::vector<std::uint32_t>& iids = by_table[table.number()];
  iids.resize(table.size());
  return iids;
}

std::uint32_t Encoder::intern(Sequence& seq, Interner& interner, std::uint32_t field, std::string_view text) {
  const auto [found, is_new] =
      interner.iids.try_emplace(std::string(text), static_cast<std::uint32_t>(interner.iids.size() + 1));
  if (is_new) {
    const std::size_t packet = buffer_.begin_message(kTracePacket);
    buffer_.varint_field(kSequenceId, seq.id);
    buffer_.varint_field(kSequenceFlags, kNeedsIncrementalState);
    const std::size_t interned = buffer_.begin_message(kInternedData);
    const std::size_t entry = buffer_.begin_message(field);
    buffer_.varint_field(1, found->second);
    buffer_.text_field(2, text);
    buffer_.end_message(entry);
    buffer_.end_message(interned);
    buffer_.end_message(packet);
  }
  return found->second;
}

std::uint32_t Encoder::intern_code(Sequence& seq, Interner& interner, std::uint32_t field, const TextTable& table,
                                   std::vector<std::uint32_t>& iids, std::int64_t code) {
  std::uint32_t& iid = iids[static_cast<std::size_t>(code)];
  if (iid == 0) [[unlikely]]
    iid = intern(seq, interner, field, table.text(code));
  return iid;
}

Encoder::Prepared Encoder::prepare(Sequence& seq, const SliceBatch& batch) {
  Prepared prepared{&batch, &seq.names.of(*batch.names), {}, {}};
  for (const ArgColumn& arg : batch.args) {
    Column column{&arg, arg.texts != nullptr ? &seq.arg_texts.of(*arg.texts) : nullptr, {}, 0};
    std::uint8_t* p = column.prefix.data();
    *p++ = byte_tag(kAnnotationNameIid, protobuf::kWireVarint);
    p = write_varint(p, intern(seq, seq.arg_names, kAnnotationNames, arg.name));
    p = write_varint(p, arg.doubles != nullptr ? tag(kDoubleValue, protobuf::kWireFixed64)
                        : arg.texts != nullptr ? tag(kStringValueIid, protobuf::kWireVarint)
                                               : tag(kIntValue, protobuf::kWireVarint));
    column.prefix_bytes = static_cast<std::size_t>(p - column.prefix.data());
    prepared.columns.push_back(column);
  }
  for (const FlowColumn& flow : batch.flows) {
    std::vector<std::uint32_t> starts(batch.count + 1, 0);
    for (const std::int64_t row : flow.rows) ++starts[static_cast<std::size_t>(row) + 1];
    for (std::size_t row = 0; row < batch.count; ++row) starts[row + 1] += starts[row];
    prepared.flow_starts.push_back(std::move(starts));
  }
  return prepared;
}

void Encoder::write_begin(Sequence& seq, const Prepared& prepared, std::size_t row, std::int64_t begin_ns) {
  const SliceBatch& batch = *prepared.batch;
  const std::uint32_t name =
      intern_code(seq, seq.names, kEventNames, *batch.names, *prepared.name_iids, batch.name[row]);
  std::size_t room = kPacketBytes + kArgBytes * prepared.columns.size();
  for (const Column& column : prepared.columns) {  // a packet must not be interrupted by the text it needs
    if (column.text_iids != nullptr && column.source->ints[row] >= 0) {
      intern_code(seq, seq.arg_texts, kAnnotationTexts, *column.source->texts, *column.text_iids,
                  column.source->ints[row]);
    }
  }
  for (const std::vector<std::uint32_t>& starts : prepared.flow_starts)
    room += kArgBytes * (starts[row + 1] - starts[row]);

  std::string_view correlation;
  if (batch.correlation != nullptr && batch.correlation[row] >= 0)
    correlation = batch.correlations->text(batch.correlation[row]);
  room += correlation.size();

  EventPacket packet(buffer_.reserve(room), begin_ns - seq.last_ns, seq.id, kSliceBegin,
                     static_cast<std::uint64_t>(batch.track[row]));
  seq.last_ns = begin_ns;
  std::uint8_t* p = packet.p;
  *p = byte_tag(kNameIid, protobuf::kWireVarint);
  p = write_varint(p + 1, name);
  for (const Column& column : prepared.columns) {
    const bool is_double = column.source->doubles != nullptr;
    std::int64_t value = 0;
    if (is_double) {
      const double number = column.source->doubles[row];
      if (std::isnan(number)) continue;
      value = std::bit_cast<std::int64_t>(number);
    } else {
      value = column.source->ints[row];
      if (value == kNoValue) continue;
      if (column.text_iids != nullptr) {
        if (value < 0) continue;
        value = (*column.text_iids)[static_cast<std::size_t>(value)];
      }
    }
    *p = byte_tag(kAnnotation, protobuf::kWireBytes);
    std::uint8_t* const body = p + 2;
    std::memcpy(body, column.prefix.data(), column.prefix.size());
    p = body + column.prefix_bytes;
    p = is_double ? write_fixed64(p, static_cast<std::uint64_t>(value))
                  : write_varint(p, static_cast<std::uint64_t>(value));
    body[-1] = static_cast<std::uint8_t>(p - body);
  }
  for (std::size_t f = 0; f < prepared.flow_starts.size(); ++f) {
    const FlowColumn& flow = batch.flows[f];
    for (std::uint32_t i = prepared.flow_starts[f][row]; i < prepared.flow_starts[f][row + 1]; ++i) {
      p = write_varint(p, tag(flow.terminating ? kTerminatingFlowIds : kFlowIds, protobuf::kWireFixed64));
      p = write_fixed64(p, static_cast<std::uint64_t>(flow.ids[i]));
    }
  }
  if (!correlation.empty()) {
    p = write_varint(p, tag(kCorrelationText, protobuf::kWireBytes));
    p = write_varint(p, correlation.size());
    std::memcpy(p, correlation.data(), correlation.size());
    p += correlation.size();
  }
  packet.p = p;
  buffer_.commit(packet.close());
}

void Encoder::write_end(Sequence& seq, const Open& open) {
  EventPacket packet(buffer_.reserve(kPacketBytes), open.end_ns - seq.last_ns, seq.id, kSliceEnd, open.track);
  seq.last_ns = open.end_ns;
  buffer_.commit(packet.close());
}

void Encoder::slices(std::uint32_t sequence_id, std::span<const SliceBatch> batches, Ties ties) {
  WriteOrder order(batches, ties);
  if (order.done()) return;
  Sequence& seq = sequence(sequence_id, order.front().begin_ns);
  std::vector<Prepared> prepared;
  prepared.reserve(batches.size());
  for (const SliceBatch& batch : batches) prepared.push_back(prepare(seq, batch));

  std::vector<Open> open;  // heap: the slice that ends first on top
  const auto ends_later = [](const Open& a, const Open& b) { return a.end_ns > b.end_ns; };
  for (; !order.done(); order.advance()) {
    const WriteOrder::Row next = order.front();
    while (!open.empty() && open.front().end_ns <= next.begin_ns) {
      write_end(seq, open.front());
      std::pop_heap(open.begin(), open.end(), ends_later);
      open.pop_back();
    }
    write_begin(seq, prepared[next.batch], next.row, next.begin_ns);
    open.push_back(
        {std::max(next.begin_ns, next.end_ns), static_cast<std::uint64_t>(batches[next.batch].track[next.row])});
    std::push_heap(open.begin(), open.end(), ends_later);
    ++slice_count_;
    send_if_full();
  }
  std::sort_heap(open.begin(), open.end(), ends_later);
  for (auto last = open.rbegin(); last != open.rend(); ++last) write_end(seq, *last);
  send_if_full();
}

void Encoder::counter(std::uint32_t sequence_id, std::uint64_t track, std::span<const std::int64_t> ts_ns,
                      std::span<const double> values) {
  if (ts_ns.empty()) return;
  Sequence& seq = sequence(sequence_id, ts_ns[0]);
  for (std::size_t i = 0; i < ts_ns.size(); ++i) {
    EventPacket packet(buffer_.reserve(kPacketBytes), ts_ns[i] - seq.last_ns, seq.id, kCounter, track);
    seq.last_ns = ts_ns[i];
    packet.p = write_varint(packet.p, tag(kDoubleCounterValue, protobuf::kWireFixed64));
    packet.p = write_fixed64(packet.p, std::bit_cast<std::uint64_t>(values[i]));
    buffer_.commit(packet.close());
    send_if_full();
  }
}

}  // namespace stashtrace::perfetto
