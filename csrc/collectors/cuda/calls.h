// The calls of CUDA as this collector sees them: what is behind a hook, and what is recorded of it. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_runtime.cpp (libcudart, by preload) and hooks_driver.cpp (libcuda, by the look-up hook), both thin. A
// call that CUDA makes on behalf of one that is already recorded passes through: Inside. Job threads only.
//
// On a thread without a context, a default stream is unknown until the call has made a context current. Such a first
// call is recorded after it has returned, with host times only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/cuda_abi.h"
#include "core/clock.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::cuda {

#pragma GCC visibility push(hidden)

namespace call_code = schema::codes::DeviceCall;
namespace direction = schema::codes::CopyDirection;

extern constinit bool cuda_is_on;

// The first check of every hook; one load where nothing is recorded.
inline bool watching() noexcept { return cuda_is_on && recording() && !device::Inside::already(); }

// Code compiled for per-thread default streams passes 0 and means its thread's own.
inline Stream own_default(Stream stream) noexcept {
  return stream == nullptr ? reinterpret_cast<Stream>(kPerThreadStream) : stream;
}

struct Copy {
  const void* to;
  const void* from;
  std::size_t bytes;
  int kind;  // MemcpyKind
  Stream stream;
  bool blocking;  // the call returns when the copy is done
  bool peer;      // given by the caller; else found out
};

struct CopyFacts {
  std::uint16_t copy_code;
  std::uint16_t flags;  // pinned or pageable
  bool refused;         // the driver only answers once a context is current
};
CopyFacts look_at(const Copy& copy) noexcept;

void write_call(std::uint16_t code, std::uint64_t begin, Stream stream, bool has_stream, std::size_t bytes,
                Result result) noexcept;
// Notes a failure, so that the next of the same size counts as a retry; `code`: what it is otherwise.
void write_allocation(std::uint16_t code, std::uint64_t begin, Stream stream, bool has_stream, std::size_t bytes,
                      Result result) noexcept;
void write_slow_launch(std::uint64_t begin, std::uint64_t end, Stream stream, Result result) noexcept;
bool is_slow(std::uint64_t ticks) noexcept;

template <class Call>
Result copying(const Copy& copy, Call call) noexcept {
  if (!watching()) return call();
  CopyFacts facts = look_at(copy);
  const std::uint64_t begin = now_ticks();
  device::Begin bracket{};
  if (facts.copy_code != direction::host_to_host)
    bracket = device::bracket_begin(device::bracket_code::copy, copy.stream, 0, facts.flags);
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  const bool first_call = bracket.stream_unknown && result == kSuccess;
  if (first_call)
    bracket = device::bracket_begin(device::bracket_code::copy, copy.stream, 0, device::bracket_flag::untimed);
  if (facts.refused && result == kSuccess) facts = look_at(copy);
  if (result == kSuccess && facts.copy_code != direction::host_to_host) {
    device::bracket_end(bracket, {.size_bytes = static_cast<std::int64_t>(copy.bytes),
                                  .copy_code = facts.copy_code,
                                  .flags = facts.flags,
                                  .call_ticks = first_call ? begin : 0});
    if (bracket.bracket_id != 0)
      device::note_work(copy.stream, device::awaited_code::copy, bracket.bracket_id, facts.copy_code);
  } else {
    device::bracket_cancel(bracket);
  }
  if (copy.blocking || (facts.flags & device::bracket_flag::pageable) != 0)
    write_call(call_code::copy, begin, copy.stream, true, copy.bytes, result);
  return result;
}

// A copy of rows or planes. Copies with a CUDA array are not recorded: only the driver knows the size of its elements.
template <class Call>
Result copying_box(const BoxCopy* copy, Stream stream, bool blocking, Call call) noexcept {
  if (copy == nullptr || copy->from_array != nullptr || copy->to_array != nullptr) return call();
  const Extent& size = copy->extent;
  return copying({copy->to.pointer, copy->from.pointer, size.width * size.height * size.depth, copy->kind, stream,
                  blocking, false},
                 call);
}

// Copies between devices, which follow from the addresses.
template <class Call>
Result copying_box(const PeerBoxCopy* copy, Stream stream, Call call) noexcept {
  if (copy == nullptr || copy->from_array != nullptr || copy->to_array != nullptr) return call();
  const Extent& size = copy->extent;
  return copying(
      {copy->to.pointer, copy->from.pointer, size.width * size.height * size.depth, kDefaultKind, stream, false, false},
      call);
}

// The driver's descriptions of such copies.
inline std::size_t bytes_of(const DriverRectangleCopy& copy) noexcept { return copy.width_bytes * copy.height; }
inline std::size_t bytes_of(const DriverBoxCopy& copy) noexcept { return copy.width_bytes * copy.height * copy.depth; }

template <class Described, class Call>
Result copying_described(const Described* copy, Stream stream, bool blocking, Call call) noexcept {
  if (copy == nullptr) return call();
  const auto is_linear = [](unsigned memory) {
    return memory == kMemoryHost || memory == kMemoryDevice || memory == kMemoryUnified;
  };
  if (!is_linear(copy->from.memory) || !is_linear(copy->to.memory)) return call();
  const auto address = [](const auto& side) {
    return side.memory == kMemoryHost ? side.host : reinterpret_cast<const void*>(side.device);
  };
  int kind = kDefaultKind;
  if (copy->from.memory != kMemoryUnified && copy->to.memory != kMemoryUnified) {
    const bool from_device = copy->from.memory == kMemoryDevice, to_device = copy->to.memory == kMemoryDevice;
    kind = from_device ? (to_device ? kDeviceToDevice : kDeviceToHost) : (to_device ? kHostToDevice : kHostToHost);
  }
  return copying({address(copy->to), address(copy->from), bytes_of(*copy), kind, stream, blocking, false}, call);
}

template <class Call>
Result waiting_for(Stream stream, Event event, Call call) noexcept {
  if (!watching()) return call();
  device::Wait wait = device::wait_begin(stream, event);
  const std::uint64_t first_call_ticks = wait.begin.stream_unknown ? now_ticks() : 0;
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  if (first_call_ticks != 0 && result == kSuccess)
    wait = device::wait_begin(stream, event, device::bracket_flag::untimed);
  device::wait_end(wait, stream, result == kSuccess, first_call_ticks);
  return result;
}

template <class Call>
Result recording_event(Event event, Stream stream, unsigned flags, Call call) noexcept {
  if (!watching()) return call();
  const device::Inside inside;
  const bool noted = flags == kEventRecordExternal || device::note_event_record(event, stream);
  const Result result = call();
  if (!noted && result == kSuccess) device::note_event_record(event, stream, true);
  return result;
}

// A call that blocks, or takes or gives memory: a row with its host times.
template <class Call>
Result timed_call(std::uint16_t code, Stream stream, bool has_stream, std::size_t bytes, Call call) noexcept {
  if (!watching()) return call();
  const std::uint64_t begin = now_ticks();
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  write_call(code, begin, stream, has_stream, bytes, result);
  return result;
}

template <class Call>
Result allocating(Stream stream, bool has_stream, std::size_t bytes, Call call,
                  std::uint16_t code = call_code::allocate) noexcept {
  if (!watching()) return call();
  const std::uint64_t begin = now_ticks();
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  write_allocation(code, begin, stream, has_stream, bytes, result);
  return result;
}

// Kernels, and work other than copies that CUDA does by kernels or engines of the device: memset.
template <class Call>
Result launching(Stream stream, Call call) noexcept {
  if (!watching()) return call();
  const std::uint64_t begin = now_ticks();
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  const std::uint64_t end = now_ticks();
  if (result == kSuccess) device::note_work(stream, device::awaited_code::compute, 0);
  if (is_slow(end - begin)) write_slow_launch(begin, end, stream, result);
  return result;
}

// A call that puts one piece of work on a stream, of which only the device's time matters: between two events.
template <class Call>
Result bracketing(std::uint16_t code, std::uint16_t awaited, Stream stream, std::uint64_t correlation,
                  std::uint64_t begin, Call call) noexcept {
  device::Begin bracket = device::bracket_begin(code, stream, correlation, 0);
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  const bool first_call = bracket.stream_unknown && result == kSuccess;
  if (first_call) bracket = device::bracket_begin(code, stream, correlation, device::bracket_flag::untimed);
  if (result == kSuccess) {
    device::bracket_end(bracket, {.call_ticks = first_call ? begin : 0});
    device::note_work(stream, awaited, bracket.bracket_id);
  } else {
    device::bracket_cancel(bracket);
  }
  return result;
}

template <class Call>
Result launching_graph(GraphExec graph, Stream stream, Call call) noexcept {
  if (!watching()) return call();
  const std::uint64_t begin = now_ticks();
  const auto id = reinterpret_cast<std::uint64_t>(graph);
  const Result result = bracketing(device::bracket_code::graph, device::awaited_code::graph, stream, id, begin, call);
  write_call(call_code::graph_launch, begin, stream, true, 0, result);
  return result;
}

// The stream runs a function of the job and goes on when it has returned. The function and its argument are passed on
// unchanged: the events show how long it held the stream.
template <class Call>
Result enqueuing_host_function(Stream stream, Call call) noexcept {
  if (!watching()) return call();
  return bracketing(device::bracket_code::host_function, device::awaited_code::host_function, stream, 0, now_ticks(),
                    call);
}

// Also outside the recorded steps: a stream made before them is used in them.
template <class Call>
Result creating_stream(const void* caller, Stream* stream, Call call) {
  if (!cuda_is_on || device::Inside::already()) return call();
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  if (result == kSuccess && stream != nullptr) device::note_stream_created(*stream, caller);
  return result;
}

// A call that destroys contexts may return an error of earlier work and destroy them anyway; with these it did not.
inline bool was_refused(Result result) noexcept {
  return result == kInvalidValue || result == kNotInitialized || result == kInvalidDevice ||
         result == kInvalidContext || result == kNotPermitted;
}

// Also outside the recorded steps: brackets may be in flight.
template <class Hold, class End, class Call>
Result destroying(Hold hold, End end, Call call) noexcept {
  if (!cuda_is_on || device::Inside::already()) return call();
  const device::EndingContexts contexts = hold();
  Result result;
  {
    const device::Inside inside;
    result = call();
  }
  if (was_refused(result)) contexts.kept();
  else end(contexts);
  return result;
}

inline void all_end(const device::EndingContexts& contexts) noexcept { contexts.ended(); }
inline void unused_end(const device::EndingContexts& contexts) noexcept { contexts.ended_if_inactive(); }

template <class Call>
Result destroying_context(Context context, Call call) noexcept {
  return destroying([=] { return device::EndingContexts::with_handle(context); }, all_end, call);
}

template <class Call>
Result destroying_green_context(GreenContext green, Call call) noexcept {
  return destroying([=] { return device::EndingContexts::of_green_context(green); }, all_end, call);
}

template <class Call>
Result destroying_execution_context(ExecutionContext context, Call call) noexcept {
  return destroying([=] { return device::EndingContexts::of_execution_context(context); }, all_end, call);
}

template <class Call>
Result resetting_device(Device device, Call call) noexcept {
  return destroying([=] { return device::EndingContexts::of_device(device); }, all_end, call);
}

template <class Call>
Result resetting_current_device(Call call) noexcept {
  return destroying(device::EndingContexts::of_current_device, all_end, call);
}

// Destroyed when it has no holder left.
template <class Call>
Result releasing_device(Device device, Call call) noexcept {
  return destroying([=] { return device::EndingContexts::of_device(device); }, unused_end, call);
}

#pragma GCC visibility pop

}  // namespace stashtrace::cuda
