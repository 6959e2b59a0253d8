// Stacks of Python code, as the probes start and check them. SPDX-License-Identifier: Apache-2.0
#include "stacks/stacks.h"

#include <algorithm>
#include <cstring>

#include "python/arguments.h"
#include "python/functions.h"
#include "runtime/capi.h"

namespace stashtrace::python {

STASHTRACE_FUNCTION(start_stacks) {
  (void)self;
  std::uint32_t version = 0;
  if (!expect("start_stacks", count, 1) || !to_number(given[0], version)) return nullptr;
  const char* const why = stacks::start(version);
  return why == nullptr ? none() : api().PyUnicode_FromString(why);
}

STASHTRACE_FUNCTION(own_stack) {
  (void)self, (void)given;
  if (!expect("own_stack", count, 0)) return nullptr;
  const Owned frames(api().PyList_New(0));
  if (!frames) return nullptr;
  const bool read = stacks::read_own_stack(
      [](void* to, const stacks::NamedFrame& frame) {
        Object* const name = api().PyBytes_FromStringAndSize(frame.name, static_cast<Size>(frame.name_bytes));
        Object* const file = api().PyBytes_FromStringAndSize(frame.file, static_cast<Size>(frame.file_bytes));
        // Takes both over, also where one is null; it then fails.
        const Owned described(api().Py_BuildValue("(NNL)", name, file, static_cast<long long>(frame.line)));
        if (described) api().PyList_Append(static_cast<Object*>(to), described.get());
      },
      frames.get());
  if (api().PyErr_Occurred() != nullptr) return nullptr;
  if (!read) return none();
  api().Py_IncRef(frames.get());
  return frames.get();
}

STASHTRACE_FUNCTION(enable_stacks) {
  (void)self, (void)given;
  if (!expect("enable_stacks", count, 0)) return nullptr;
  stacks::enable();
  return none();
}

STASHTRACE_FUNCTION(disable_stacks) {
  (void)self, (void)given;
  if (!expect("disable_stacks", count, 0)) return nullptr;
  stacks::disable();
  return none();
}

STASHTRACE_FUNCTION(watch_stack) {
  (void)self;
  bool on = false;
  if (!expect("watch_stack", count, 1) || !to_bool(given[0], on)) return nullptr;
  stacks::watch_thread(on);
  return none();
}

STASHTRACE_FUNCTION(note_call) {
  (void)self;
  std::uint64_t begin = 0;
  std::uint16_t cause = 0;
  if (!expect("note_call", count, 2) || !to_number(given[0], begin) || !to_number(given[1], cause)) return nullptr;
  stacks::note_call(begin, stashtrace_now_ticks(), cause);
  return none();
}

STASHTRACE_FUNCTION(note_awaited) {
  (void)self;
  std::uint64_t begin = 0;
  std::string_view bytes;
  if (!expect("note_awaited", count, 2) || !to_number(given[0], begin) || !to_bytes(given[1], bytes)) return nullptr;
  stacks::SuspendedFrame frames[stacks::kMostAwaited];
  const std::size_t frames_count = std::min(bytes.size() / sizeof frames[0], stacks::kMostAwaited);
  std::memcpy(frames, bytes.data(), frames_count * sizeof frames[0]);
  stacks::note_awaited(begin, stashtrace_now_ticks(), frames, frames_count);
  return none();
}

}  // namespace stashtrace::python
