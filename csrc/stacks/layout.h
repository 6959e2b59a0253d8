// Where things lie in the objects of a CPython, by version. SPDX-License-Identifier: Apache-2.0
//
// Stacks are read without a call of the interpreter, so the inside of its objects must be known. From 3.13 on CPython
// says most of it itself (_Py_DebugOffsets at the begin of _PyRuntime); for older ones the numbers stand in layout.cpp,
// as offsetof() gives them with the headers of that version, and do not change within a minor version. Whatever they
// are, nothing is used before a stack that was read with them was equal to sys._getframe()'s (probes/stacks.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::stacks {

using Address = std::uintptr_t;

inline constexpr std::uint16_t kNone = 0xffff;  // this version has no such field

// What has a value here is the same in all of them.
struct Layout {
  std::uint16_t minor;  // of version 3
  // PyThreadState. Up to 3.12 the current frame is found through a structure of the C stack, in 3.10 it is an object.
  std::uint16_t thread_interpreter = 16;
  std::uint16_t thread_frame, thread_id, thread_chunk, thread_bytes;
  std::uint16_t thread_native_id;                    // kNone: it has none (3.10)
  std::uint16_t thread_newer = 0, thread_older = 8;  // its neighbours in the list of the interpreter
  std::uint16_t cframe_frame;  // in the structure that thread_frame points to; kNone: thread_frame is the frame
  // A frame.
  std::uint16_t frame_previous, frame_code, frame_instruction, frame_owner, frame_bytes;
  std::uint16_t frame_state;  // up to 3.10: PyFrameState
  // A code object.
  std::uint16_t code_first_line, code_file, code_name, code_lines, code_instructions, code_bytes;
  // A str, and its bytes where it is ASCII and where it is not.
  std::uint16_t text_length = 16, text_state = 32;
  std::uint16_t text_ascii, text_other;
  // A bytes object.
  std::uint16_t bytes_size = 16, bytes_data = 32;
  // The GIL: in _PyRuntime (3.10, 3.11), or a pointer in the interpreter's state.
  std::uint16_t gil;
  std::uint16_t gil_holder = 8, gil_locked = 16, gil_bytes = 208;
  bool gil_by_interpreter;
};

// Where a piece of a thread's stack of frames lies (from 3.11 on): struct _stack_chunk.
struct Chunk {
  Address previous;
  std::uint64_t size_bytes;
  std::uint64_t top;  // slots in use, but for the newest piece
};

// frame_state: FRAME_EXECUTING, FRAME_UNWINDING.
inline constexpr std::uint8_t kExecuting = 0, kUnwinding = 2;
// frame_owner. From 3.12 on each entry from C is a frame (FRAME_OWNED_BY_CSTACK), which is none of Python code.
inline constexpr std::uint8_t kOwnedByGenerator = 1, kOwnedByC = 3;
inline constexpr std::uint16_t kFirstWithEntries = 12;

// The layout of the CPython in this process; null if it is none, or none that is known. `version`: Py_Version's
// 0x030b07f0; `runtime`: address of _PyRuntime, 0 if it was not found.
const Layout* find_layout(std::uint32_t version, Address runtime) noexcept;

}  // namespace stashtrace::stacks
