// Frames, code objects and texts of CPython, read without a call of the interpreter. SPDX-License-Identifier: Apache-2.0
//
// `Memory` is PlainMemory or CheckedMemory for the calling thread's frames, PrefetchedMemory for those of another
// thread, which runs on meanwhile: each pointer may be no longer valid, so each read may fail and every loop is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/string_table.h"
#include "core/text_buffer.h"
#include "stacks/codes.h"
#include "stacks/layout.h"

namespace stashtrace::stacks {

template <class T>
T field(const std::byte* object, std::uint16_t offset) noexcept {
  T value;
  std::memcpy(&value, object + offset, sizeof value);
  return value;
}

inline constexpr std::size_t kObjectBytes = 256;    // of frames and code objects, as far as they are read
inline constexpr std::uint16_t kTypeOffset = 8;     // PyObject.ob_type
inline constexpr std::size_t kReferencesBytes = 8;  // PyObject.ob_refcnt, the begin of each object

struct Frame {
  Address address, code;
  std::int64_t instruction;  // its address; in 3.10 its index
};

struct Walk {
  std::size_t count;
  bool whole;  // the outermost frame was reached
  bool torn;   // a frame could not be read, or was left while it was read
};

// Can a stack end with this frame? A generator that has just yielded, and up to 3.10 a function that has returned, has
// no caller either; from 3.12 on the outermost frame is an entry from C.
inline bool may_be_outermost(const Layout& layout, const std::byte* frame) noexcept {
  if (layout.frame_owner == kNone) {
    const auto state = field<std::uint8_t>(frame, layout.frame_state);
    return state == kExecuting || state == kUnwinding;
  }
  const auto owner = field<std::uint8_t>(frame, layout.frame_owner);
  return layout.minor < kFirstWithEntries ? owner != kOwnedByGenerator : owner == kOwnedByC;
}

// Fills `out` with the frames of a thread, the innermost first. `seen(address)` is called for all, also for those from C.
template <class Memory, class Seen>
Walk walk(Memory& memory, const Layout& layout, Address thread, Frame* out, std::size_t most, Seen seen) noexcept {
  Walk result{0, false, true};
  Address at = 0;
  if (!memory.read(thread + layout.thread_frame, &at, sizeof at)) return result;
  if (layout.cframe_frame != kNone && !memory.read(at + layout.cframe_frame, &at, sizeof at)) return result;
  bool may_end = true;
  for (std::size_t looked = 0; at != 0; ++looked) {
    if (looked == most) return {result.count, false, false};
    std::byte frame[kObjectBytes];
    seen(at);
    if (!memory.read(at, frame, layout.frame_bytes)) return result;
    const auto previous = field<Address>(frame, layout.frame_previous);
    if (layout.frame_owner == kNone || field<std::uint8_t>(frame, layout.frame_owner) != kOwnedByC) {
      const std::int64_t instruction = layout.code_instructions == kNone
                                           ? field<std::int32_t>(frame, layout.frame_instruction)
                                           : field<std::int64_t>(frame, layout.frame_instruction);
      out[result.count++] = {at, field<Address>(frame, layout.frame_code), instruction};
    }
    may_end = may_be_outermost(layout, frame);
    at = previous;
  }
  return {result.count, may_end, !may_end};
}
template <class Memory>
Walk walk(Memory& memory, const Layout& layout, Address thread, Frame* out, std::size_t most) noexcept {
  return walk(memory, layout, thread, out, most, [](Address) noexcept {});
}

inline constexpr std::int64_t kUnitBytes = 2;  // _Py_CODEUNIT

// Bytes from the begin of the code's instructions to the one that a frame is at.
inline std::int64_t instruction_offset(const Layout& layout, const Frame& frame) noexcept {
  if (layout.code_instructions == kNone) return frame.instruction * kUnitBytes;
  return frame.instruction - static_cast<std::int64_t>(frame.code + layout.code_instructions);
}

// Where a frame is that is `offset` bytes behind the begin of a code's instructions.
inline std::int64_t instruction_at(const Layout& layout, Address code, std::int64_t offset) noexcept {
  if (layout.code_instructions == kNone) return offset / kUnitBytes;
  return static_cast<std::int64_t>(code + layout.code_instructions) + offset;
}

// Memory as it is now, without what was copied before.
template <class Memory>
class MemoryNow {
 public:
  explicit MemoryNow(Memory& memory) noexcept : memory_(memory) {}
  bool read(Address from, void* to, std::size_t bytes) noexcept { return memory_.read_now(from, to, bytes); }

 private:
  Memory& memory_;
};

// Where the characters of a str are, as far as they are used.
struct TextPlace {
  Address at;
  std::size_t count;
  std::uint32_t kind;  // bytes of a character

  std::size_t bytes() const noexcept { return count * kind; }
};

// The longest name or file that is read; of a longer one the begin.
inline constexpr std::size_t kMostTextBytes = 1024;

// False if it could not be read, or is no str.
template <class Memory>
bool find_text(Memory& memory, const Layout& layout, Address text, TextPlace& out) noexcept {
  std::byte head[64];
  if (!memory.read(text, head, layout.text_state + sizeof(std::uint32_t))) return false;
  const auto length = field<std::int64_t>(head, layout.text_length);
  const auto state = field<std::uint32_t>(head, layout.text_state);
  const std::uint32_t kind = state >> 2 & 7;
  const bool compact = (state >> 5 & 1) != 0, ascii = (state >> 6 & 1) != 0;
  if (length < 0 || !compact || (kind != 1 && kind != 2 && kind != 4)) return false;
  const std::size_t most = kMostTextBytes / kind;
  const auto count = static_cast<std::uint64_t>(length) < most ? static_cast<std::size_t>(length) : most;
  out = {text + (ascii ? layout.text_ascii : layout.text_other), count, kind};
  return true;
}

// Changes `mark` by the bytes there; false if they could not be read.
template <class Memory>
bool add_to_mark(Memory& memory, Address at, std::size_t bytes, std::uint64_t& mark) noexcept {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  while (bytes > 0) {
    char piece[256];
    const std::size_t here = bytes < sizeof piece ? bytes : sizeof piece;
    if (!memory.read(at, piece, here)) return false;
    mark = (mark ^ hash_of({piece, here})) * kOdd;
    at += here;
    bytes -= here;
  }
  return true;
}

// What identifies a table of lines, a bytes object: its size and its begin.
inline constexpr std::size_t kLinesSampleBytes = 32;

// False if there is no code object at this address, or no longer. `type`: address of PyCode_Type.
template <class Memory>
bool read_identity(Memory& memory, const Layout& layout, Address type, Address code, CodeIdentity& out) noexcept {
  std::byte object[kObjectBytes];
  if (code % 8 != 0 || !memory.read(code, object, layout.code_bytes)) return false;
  if (field<Address>(object, kTypeOffset) != type) return false;
  const auto first_line = field<std::int32_t>(object, layout.code_first_line);
  out = {.address = code,
         .file = field<Address>(object, layout.code_file),
         .name = field<Address>(object, layout.code_name),
         .lines = field<Address>(object, layout.code_lines),
         .texts_mark = 0,
         .lines_mark = 0,
         .first_line = first_line,
         .file_bytes = 0,
         .name_bytes = 0};
  const auto add_text = [&](Address text, std::uint16_t& bytes) noexcept {
    TextPlace place;
    if (!find_text(memory, layout, text, place)) return false;
    bytes = static_cast<std::uint16_t>(place.at - text + place.bytes());
    return add_to_mark(memory, place.at, place.bytes(), out.texts_mark);
  };
  if (!add_text(out.name, out.name_bytes) || !add_text(out.file, out.file_bytes)) return false;
  std::uint64_t size = 0;
  if (!memory.read(out.lines + layout.bytes_size, &size, sizeof size)) return false;
  const std::size_t sampled = size < kLinesSampleBytes ? static_cast<std::size_t>(size) : kLinesSampleBytes;
  out.lines_mark = size;
  return add_to_mark(memory, out.lines + layout.bytes_data, sampled, out.lines_mark);
}

// Adds a character as UTF-8; of the lone surrogates of os.fsdecode() the byte that they stand for.
inline void add_character(TextBuffer& out, std::uint32_t character) noexcept {
  const auto tail = [character](int shift) noexcept { return static_cast<char>(0x80 | (character >> shift & 0x3f)); };
  char bytes[4];
  std::size_t count = 1;
  if (character < 0x80) {
    bytes[0] = static_cast<char>(character);
  } else if (character >= 0xdc80 && character <= 0xdcff) {
    bytes[0] = static_cast<char>(character - 0xdc00);
  } else if (character < 0x800) {
    bytes[0] = static_cast<char>(0xc0 | character >> 6), bytes[1] = tail(0), count = 2;
  } else if (character < 0x10000) {
    bytes[0] = static_cast<char>(0xe0 | character >> 12), bytes[1] = tail(6), bytes[2] = tail(0), count = 3;
  } else {
    bytes[0] = static_cast<char>(0xf0 | (character >> 18 & 7)), bytes[1] = tail(12), bytes[2] = tail(6);
    bytes[3] = tail(0), count = 4;
  }
  if (out.room() >= count) out.add({bytes, count});
}

// Adds a str as UTF-8, as far as there is room; false if it could not be read, or is none.
template <class Memory>
bool read_text(Memory& memory, const Layout& layout, Address text, TextBuffer& out) noexcept {
  TextPlace place;
  if (!find_text(memory, layout, text, place)) return false;
  auto [at, left, kind] = place;
  while (left > 0) {
    alignas(4) std::byte piece[256];
    const std::size_t here = left < sizeof piece / kind ? left : sizeof piece / kind;
    if (!memory.read(at, piece, here * kind)) return false;
    for (std::size_t i = 0; i < here; ++i) {
      const std::uint32_t character = kind == 1   ? field<std::uint8_t>(piece + i, 0)
                                      : kind == 2 ? field<std::uint16_t>(piece + 2 * i, 0)
                                                  : field<std::uint32_t>(piece + 4 * i, 0);
      add_character(out, character);
    }
    at += here * kind;
    left -= here;
  }
  return true;
}

// The bytes of a code's table of lines, one after the other.
template <class Memory>
class LineBytes {
 public:
  LineBytes(Memory& memory, const Layout& layout, Address table) noexcept : memory_(memory) {
    std::int64_t size = 0;
    constexpr std::int64_t kMostBytes = 1 << 20;
    if (!memory.read(table + layout.bytes_size, &size, sizeof size) || size < 0 || size > kMostBytes) return;
    next_ = table + layout.bytes_data;
    end_ = next_ + static_cast<Address>(size);
  }
  // -1 at the end, or where it cannot be read.
  int next() noexcept {
    if (used_ == held_) {
      held_ = end_ - next_ < sizeof piece_ ? end_ - next_ : sizeof piece_;
      used_ = 0;
      if (held_ == 0 || !memory_.read(next_, piece_, held_)) return held_ = 0, end_ = next_, -1;
      next_ += held_;
    }
    return static_cast<int>(piece_[used_++]);
  }

 private:
  Memory& memory_;
  Address next_ = 0, end_ = 0;
  std::size_t held_ = 0, used_ = 0;
  std::byte piece_[256];
};

inline constexpr std::int64_t kNoLine = -1, kNotInCode = -2;

// co_linetable of 3.10 (Objects/lnotab_notes.txt): pairs of bytes and lines; -128 lines: these bytes have none.
template <class Memory>
std::int64_t line_of_pairs(LineBytes<Memory>& bytes, std::int64_t offset, std::int64_t line) noexcept {
  for (std::int64_t end = 0;;) {
    const int step = bytes.next();
    const int line_byte = bytes.next();
    if (step < 0 || line_byte < 0) return kNotInCode;
    const auto lines = static_cast<std::int8_t>(line_byte);
    constexpr std::int8_t kNone = -128;
    end += step;
    if (lines != kNone) line += lines;
    if (offset < end) return lines == kNone ? kNoLine : line;
  }
}

// co_linetable from 3.11 on (Objects/locations.md): entries of a first byte, 1 | code | units - 1, and what the code says.
template <class Memory>
std::int64_t line_of_locations(LineBytes<Memory>& bytes, std::int64_t offset, std::int64_t line) noexcept {
  const auto varint = [&bytes]() noexcept {
    std::int64_t value = 0;
    for (int shift = 0; shift < 36; shift += 6) {
      const int byte = bytes.next();
      if (byte < 0) break;
      value |= std::int64_t{byte & 63} << shift;
      if ((byte & 64) == 0) break;
    }
    return value;
  };
  const auto skip = [&bytes](int count) noexcept {
    while (count-- > 0) bytes.next();
  };
  const auto signed_varint = [&varint]() noexcept {
    const std::int64_t value = varint();
    return (value & 1) != 0 ? -(value >> 1) : value >> 1;
  };
  for (std::int64_t end = 0;;) {
    const int first = bytes.next();
    if (first < 0) return kNotInCode;
    constexpr int kUnitBytes = 2, kOneLine = 10, kNoColumns = 13, kLong = 14, kNone = 15;
    const int code = first >> 3 & 15;
    end += std::int64_t{(first & 7) + 1} * kUnitBytes;
    if (code < kOneLine) {
      skip(1);
    } else if (code < kNoColumns) {
      line += code - kOneLine;
      skip(2);
    } else if (code == kNoColumns) {
      line += signed_varint();
    } else if (code == kLong) {
      line += signed_varint();
      varint(), varint(), varint();
    }
    if (offset < end) return code == kNone ? kNoLine : line;
  }
}

// The line of an instruction; kNotInCode also if the table cannot be read.
template <class Memory>
std::int64_t line_at(Memory& memory, const Layout& layout, const CodeIdentity& code, std::int64_t offset) noexcept {
  constexpr std::int64_t kBeforeFirst = -2;
  if (offset < kBeforeFirst) return kNotInCode;
  if (offset < 0) return code.first_line;  // not begun
  LineBytes bytes(memory, layout, code.lines);
  return layout.code_instructions == kNone ? line_of_pairs(bytes, offset, code.first_line)
                                           : line_of_locations(bytes, offset, code.first_line);
}

}  // namespace stashtrace::stacks
