// Packets of stack samples. SPDX-License-Identifier: Apache-2.0
//
//   [ thread descriptor, time of the first sample ]
//   [ what these samples are the first to use: names, files, frames, stacks ][ stack, us since the last | stack, us | .. ]
//
// A sample takes six or seven bytes. Times are in microseconds, as viewers want them of this packet.
#include <algorithm>

#include "kernels/perfetto_encoder.h"

namespace stashtrace::perfetto {
namespace {

// TracePacket.
constexpr std::uint32_t kTracePacket = 1;
constexpr std::uint32_t kClockSnapshot = 6;
constexpr std::uint32_t kSequenceId = 10;
constexpr std::uint32_t kInternedData = 12;
constexpr std::uint32_t kSequenceFlags = 13;
constexpr std::uint32_t kThreadDescriptor = 44;
constexpr std::uint32_t kStreamingProfile = 54;
constexpr std::uint32_t kTrackDescriptor = 60;
// InternedData.
constexpr std::uint32_t kFunctionNames = 5;
constexpr std::uint32_t kFrames = 6;
constexpr std::uint32_t kCallstacks = 7;
constexpr std::uint32_t kMappingPaths = 17;
constexpr std::uint32_t kSourcePaths = 18;
constexpr std::uint32_t kMappings = 19;

constexpr std::uint64_t kIncrementalStateCleared = 1;
constexpr std::uint64_t kNeedsIncrementalState = 2;
constexpr std::uint64_t kBoottimeClock = 6;
constexpr std::uint64_t kMonotonicClock = 3;  // of the reference time of a thread

// A packet is read as a whole, so that it should not be long.
constexpr std::size_t kSamplesPerPacket = 1024;

// What a sequence has written so far. Codes are ids, but for stacks: each sample names one, so theirs are small.
class Written {
 public:
  Written(protobuf::Buffer& buffer, const FrameTable& frames)
      : buffer_(buffer),
        frames_(frames),
        texts_(frames.texts->size()),
        paths_(frames.texts->size()),
        numbers_(frames.number.size()),
        stacks_(frames.caller.size()) {}

  // Returns the id of the stack whose innermost frame is a row, and writes what of it is new.
  std::uint64_t stack(std::int64_t row) {
    std::uint32_t& id = stacks_[static_cast<std::size_t>(row)];
    if (id != 0) return id;
    id = ++last_stack_;
    path_.clear();
    for (std::int64_t at = row; at >= 0; at = frames_.caller[static_cast<std::size_t>(at)]) path_.push_back(at);
    for (const std::int64_t at : path_) frame(static_cast<std::size_t>(at));
    const std::size_t message = buffer_.begin_message(kCallstacks);
    buffer_.varint_field(1, id);
    for (auto at = path_.rbegin(); at != path_.rend(); ++at) {
      buffer_.varint_field(2, id_of(frames_.number[static_cast<std::size_t>(*at)]));
    }
    buffer_.end_message(message);
    return id;
  }

 private:
  static std::uint64_t id_of(std::int64_t code) { return static_cast<std::uint64_t>(code) + 1; }

  static bool is_new(std::vector<bool>& written, std::int64_t code) {
    if (written[static_cast<std::size_t>(code)]) return false;
    written[static_cast<std::size_t>(code)] = true;
    return true;
  }

  void text(std::uint32_t field, std::int64_t code) {
    const std::size_t message = buffer_.begin_message(field);
    buffer_.varint_field(1, id_of(code));
    buffer_.text_field(2, frames_.texts->text(code));
    buffer_.end_message(message);
  }

  void frame(std::size_t row) {
    const std::int64_t name = frames_.name[row];
    const std::int64_t path = frames_.path[row];
    if (!is_new(numbers_, frames_.number[row])) return;
    if (is_new(texts_, name)) text(kFunctionNames, name);
    if (is_new(paths_, path)) {
      text(kMappingPaths, path);
      text(kSourcePaths, path);
      const std::size_t mapping = buffer_.begin_message(kMappings);
      buffer_.varint_field(1, id_of(path));
      buffer_.varint_field(7, id_of(path));
      buffer_.end_message(mapping);
    }
    const std::size_t message = buffer_.begin_message(kFrames);
    buffer_.varint_field(1, id_of(frames_.number[row]));
    buffer_.varint_field(2, id_of(name));
    buffer_.varint_field(3, id_of(path));
    if (frames_.line[row] >= 0) {  // viewers before v53 pass over it
      buffer_.varint_field(5, id_of(path));
      buffer_.varint_field(6, static_cast<std::uint64_t>(frames_.line[row]));
    }
    buffer_.end_message(message);
  }

  protobuf::Buffer& buffer_;
  const FrameTable& frames_;
  std::vector<bool> texts_, paths_, numbers_;
  std::vector<std::uint32_t> stacks_;  // id, 0: not yet
  std::uint32_t last_stack_ = 0;
  std::vector<std::int64_t> path_;
};

constexpr std::int64_t to_us(std::int64_t ns) { return ns >= 0 ? ns / 1000 : -((-ns + 999) / 1000); }

}  // namespace

void Encoder::begin_thread(std::uint32_t sequence_id, const ThreadDescription& thread, std::int64_t first_us) {
  std::size_t packet = buffer_.begin_message(kTracePacket);
  const std::size_t track = buffer_.begin_message(kTrackDescriptor);
  buffer_.varint_field(1, thread.uuid);
  const std::size_t named = buffer_.begin_message(4);
  buffer_.varint_field(1, static_cast<std::uint64_t>(thread.pid));
  buffer_.varint_field(2, static_cast<std::uint64_t>(thread.tid));
  buffer_.text_field(5, thread.name);
  buffer_.end_message(named);
  buffer_.end_message(track);
  buffer_.end_message(packet);

  packet = buffer_.begin_message(kTracePacket);
  buffer_.varint_field(kSequenceId, sequence_id);
  buffer_.varint_field(kSequenceFlags, kIncrementalStateCleared);
  if (!monotonic_is_known_) {  // once: threads are not in order of time, and this clock must not go back
    monotonic_is_known_ = true;
    const std::size_t snapshot = buffer_.begin_message(kClockSnapshot);
    for (const std::uint64_t clock : {kBoottimeClock, kMonotonicClock}) {
      const std::size_t reading = buffer_.begin_message(1);
      buffer_.varint_field(1, clock);
      buffer_.varint_field(2, static_cast<std::uint64_t>(first_us * 1000));
      buffer_.end_message(reading);
    }
    buffer_.end_message(snapshot);
  }
  buffer_.end_message(packet);

  packet = buffer_.begin_message(kTracePacket);
  buffer_.varint_field(kSequenceId, sequence_id);
  buffer_.varint_field(kSequenceFlags, kNeedsIncrementalState);
  const std::size_t descriptor = buffer_.begin_message(kThreadDescriptor);
  buffer_.varint_field(1, static_cast<std::uint64_t>(thread.pid));
  buffer_.varint_field(2, static_cast<std::uint64_t>(thread.tid));
  buffer_.varint_field(6, static_cast<std::uint64_t>(first_us));
  buffer_.end_message(descriptor);
  buffer_.end_message(packet);
}

void Encoder::stack_samples(std::uint32_t sequence_id, const ThreadDescription& thread, const FrameTable& frames,
                            std::span<const std::int64_t> ts_ns, std::span<const std::int64_t> frame) {
  if (ts_ns.empty()) return;
  Written written(buffer_, frames);
  std::int64_t last_us = to_us(ts_ns[0]);
  begin_thread(sequence_id, thread, last_us);
  std::vector<std::uint64_t> stacks;
  for (std::size_t first = 0; first < ts_ns.size(); first += kSamplesPerPacket) {
    const std::size_t stop = std::min(first + kSamplesPerPacket, ts_ns.size());
    const std::size_t packet = buffer_.begin_message(kTracePacket);
    buffer_.varint_field(kSequenceId, sequence_id);
    buffer_.varint_field(kSequenceFlags, kNeedsIncrementalState);
    const std::size_t interned = buffer_.begin_message(kInternedData);
    stacks.clear();
    for (std::size_t i = first; i < stop; ++i) stacks.push_back(written.stack(frame[i]));
    buffer_.end_message(interned);
    const std::size_t profile = buffer_.begin_message(kStreamingProfile);
    for (const std::uint64_t stack : stacks) buffer_.varint_field(1, stack);
    for (std::size_t i = first; i < stop; ++i) {
      const std::int64_t now_us = to_us(ts_ns[i]);
      buffer_.varint_field(2, static_cast<std::uint64_t>(now_us - last_us));
      last_us = now_us;
    }
    buffer_.end_message(profile);
    buffer_.end_message(packet);
    send_if_full();
  }
}

}  // namespace stashtrace::perfetto
