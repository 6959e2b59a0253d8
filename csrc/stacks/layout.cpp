// The numbers of layout.h. SPDX-License-Identifier: Apache-2.0
#include "stacks/layout.h"

#include <cstring>

namespace stashtrace::stacks {

namespace {

// PyThreadState: Include/cpython/pystate.h. Frames: Include/cpython/frameobject.h (3.10),
// Include/internal/pycore_frame.h. Code: Include/cpython/code.h. str: Include/cpython/unicodeobject.h. The GIL:
// Include/internal/pycore_gil.h in pycore_runtime.h or pycore_interp.h.
constexpr Layout k310{.minor = 10,
                      .thread_frame = 24,
                      .thread_id = 176,
                      .thread_chunk = kNone,
                      .thread_bytes = 280,
                      .thread_native_id = kNone,
                      .cframe_frame = kNone,
                      .frame_previous = 24,
                      .frame_code = 32,
                      .frame_instruction = 96,
                      .frame_owner = kNone,
                      .frame_bytes = 112,
                      .frame_state = 108,
                      .code_first_line = 40,
                      .code_file = 104,
                      .code_name = 112,
                      .code_lines = 120,
                      .code_instructions = kNone,
                      .code_bytes = 128,
                      .text_ascii = 48,
                      .text_other = 72,
                      .gil = 352,
                      .gil_by_interpreter = false};

// Frames are on a separate stack, and no objects.
constexpr Layout k311 = [] {
  Layout layout = k310;
  layout.minor = 11;
  layout.thread_frame = 56, layout.thread_id = 152, layout.thread_chunk = 296, layout.thread_bytes = 320;
  layout.thread_native_id = 160, layout.cframe_frame = 8;
  layout.frame_previous = 48, layout.frame_instruction = 56, layout.frame_owner = 69, layout.frame_bytes = 72;
  layout.frame_state = kNone;
  layout.code_first_line = 72, layout.code_file = 112, layout.code_name = 128, layout.code_lines = 136;
  layout.code_instructions = 184, layout.code_bytes = 144;
  layout.gil = 360;
  return layout;
}();

// Each interpreter has a GIL.
constexpr Layout k312 = [] {
  Layout layout = k311;
  layout.minor = 12;
  layout.thread_id = 136, layout.thread_chunk = 232, layout.thread_bytes = 256, layout.thread_native_id = 144;
  layout.cframe_frame = 0;
  layout.frame_previous = 8, layout.frame_code = 0, layout.frame_owner = 70;
  layout.code_first_line = 68, layout.code_instructions = 192;
  layout.text_ascii = 40, layout.text_other = 56;
  layout.gil = 384, layout.gil_by_interpreter = true;
  return layout;
}();

constexpr Layout k313 = [] {
  Layout layout = k312;
  layout.minor = 13;
  layout.thread_frame = 72, layout.thread_id = 152, layout.thread_native_id = 160, layout.cframe_frame = kNone;
  layout.code_instructions = 200;
  layout.gil = 16;
  return layout;
}();

constinit Layout layouts[] = {k310, k311, k312, k313};

// _Py_DebugOffsets of 3.13 (Include/internal/pycore_runtime.h), up to the last field that is read; all are 64 bits wide.
enum Field : std::size_t {
  kCookie = 0,
  kVersion = 1,
  kFreeThreaded = 2,
  kThreadInterpreter = 22,
  kThreadFrame = 23,
  kThreadId = 24,
  kThreadNativeId = 25,
  kThreadChunk = 26,
  kFramePrevious = 29,
  kFrameCode = 30,
  kFrameInstruction = 31,
  kFrameOwner = 33,
  kCodeFile = 35,
  kCodeName = 37,
  kCodeLines = 38,
  kCodeFirstLine = 39,
  kCodeInstructions = 43,
  kFields,
};
constexpr char kCookieText[] = "xdebugpy";

bool take_debug_offsets(Layout& layout, std::uint32_t version, Address runtime) noexcept {
  std::uint64_t offsets[kFields];
  std::memcpy(offsets, reinterpret_cast<const void*>(runtime), sizeof offsets);
  if (std::memcmp(offsets, kCookieText, sizeof offsets[0]) != 0) return false;
  if ((offsets[kVersion] & 0xffff0000) != (version & 0xffff0000) || offsets[kFreeThreaded] != 0) return false;
  const struct {
    std::uint16_t& place;
    Field field;
  } places[] = {{layout.thread_interpreter, kThreadInterpreter},
                {layout.thread_frame, kThreadFrame},
                {layout.thread_id, kThreadId},
                {layout.thread_native_id, kThreadNativeId},
                {layout.thread_chunk, kThreadChunk},
                {layout.frame_previous, kFramePrevious},
                {layout.frame_code, kFrameCode},
                {layout.frame_instruction, kFrameInstruction},
                {layout.frame_owner, kFrameOwner},
                {layout.code_file, kCodeFile},
                {layout.code_name, kCodeName},
                {layout.code_lines, kCodeLines},
                {layout.code_first_line, kCodeFirstLine},
                {layout.code_instructions, kCodeInstructions}};
  constexpr std::uint64_t kLargest = 240;  // they must lie within what is read of an object
  for (const auto& place : places)
    if (offsets[place.field] > kLargest) return false;
  for (const auto& place : places) place.place = static_cast<std::uint16_t>(offsets[place.field]);
  return true;
}

}  // namespace

const Layout* find_layout(std::uint32_t version, Address runtime) noexcept {
  if (version >> 24 != 3) return nullptr;
  const std::uint32_t minor = version >> 16 & 0xff;
  for (Layout& layout : layouts) {
    if (layout.minor != minor) continue;
    if (minor >= 13 && (runtime == 0 || !take_debug_offsets(layout, version, runtime))) return nullptr;
    return &layout;
  }
  return nullptr;
}

}  // namespace stashtrace::stacks
