// Implementation of calls.h: writes device_call rows. SPDX-License-Identifier: Apache-2.0
#include "collectors/cuda/calls.h"

#include "device/driver.h"

namespace stashtrace::cuda {

constinit bool cuda_is_on = false;

namespace {

constinit thread_local std::size_t t_failed_bytes = 0;  // of the allocation that failed last on this thread

// Memory type and device of a pointer; type 0 is memory that CUDA does not know: pageable.
struct Place {
  unsigned type = 0;
  int device = -1;
  bool known = false;    // the driver was asked and answered
  bool refused = false;  // it was asked and wants a current context
};

Place place_of(const void* pointer) noexcept {
  Place place;
  if (!device::ready() || device::driver.pointer_attributes == nullptr) return place;
  int which[] = {kPointerMemoryType, kPointerDeviceOrdinal};
  void* to[] = {&place.type, &place.device};
  const device::RelaxedCapture relaxed;
  if (!relaxed) return {.refused = true};
  const Result result = device::driver.pointer_attributes(2, which, to, reinterpret_cast<DevicePointer>(pointer));
  if (result != kSuccess) return {.refused = result == kInvalidContext};
  place.known = true;
  return place;
}

// No flag if the kind of memory is unknown.
std::uint16_t host_flag(const Place& place) noexcept {
  if (!place.known) return 0;
  return place.type == 0 ? device::bracket_flag::pageable : device::bracket_flag::pinned;
}

std::uint16_t between_devices(const Place& to, const Place& from) noexcept {
  return to.device >= 0 && from.device >= 0 && to.device != from.device ? direction::peer : direction::device_to_device;
}

}  // namespace

CopyFacts look_at(const Copy& copy) noexcept {
  if (copy.peer) return {direction::peer, 0, false};
  if (copy.kind == kHostToHost) return {direction::host_to_host, 0, false};
  const Place to = copy.kind == kHostToDevice ? Place{} : place_of(copy.to);
  const Place from = copy.kind == kDeviceToHost ? Place{} : place_of(copy.from);
  const bool refused = to.refused || from.refused;
  if (copy.kind == kHostToDevice) return {direction::host_to_device, host_flag(from), refused};
  if (copy.kind == kDeviceToHost) return {direction::device_to_host, host_flag(to), refused};
  if (copy.kind == kDeviceToDevice) return {between_devices(to, from), 0, refused};
  if (!to.known || !from.known) return {direction::unknown, 0, refused};
  const bool to_device = to.type == kMemoryDevice, from_device = from.type == kMemoryDevice;
  if (to_device && from_device) return {between_devices(to, from), 0, false};
  if (to_device) return {direction::host_to_device, host_flag(from), false};
  if (from_device) return {direction::device_to_host, host_flag(to), false};
  return {direction::host_to_host, 0, false};
}

void write_call(std::uint16_t code, std::uint64_t begin, Stream stream, bool has_stream, std::size_t bytes,
                Result result) noexcept {
  const std::uint64_t end = now_ticks();
  emit(schema::DeviceCallRow{.begin_ticks = begin,
                             .end_ticks = end,
                             .stream_key = has_stream ? device::stream_key(stream) : 0,
                             .size_bytes = static_cast<std::int64_t>(bytes),
                             .device_index = has_stream ? device::device_index(stream) : device::current_device(),
                             .call_code = code,
                             .status_code = static_cast<std::uint16_t>(result)});
}

// A caching allocator asks for the same size again when it has given memory back; a job that continues with a smaller
// batch does not. The row is only of this call: the failed one, synchronisations and frees in between have their own.
void write_allocation(std::uint16_t code, std::uint64_t begin, Stream stream, bool has_stream, std::size_t bytes,
                      Result result) noexcept {
  const bool again = result == kSuccess && bytes != 0 && bytes == t_failed_bytes;
  write_call(again ? call_code::allocate_retry : code, begin, stream, has_stream, bytes, result);
  t_failed_bytes = result == kSuccess ? 0 : bytes;
}

void write_slow_launch(std::uint64_t begin, std::uint64_t end, Stream stream, Result result) noexcept {
  emit(schema::DeviceCallRow{.begin_ticks = begin,
                             .end_ticks = end,
                             .stream_key = device::stream_key(stream),
                             .size_bytes = 0,
                             .device_index = device::device_index(stream),
                             .call_code = call_code::launch,
                             .status_code = static_cast<std::uint16_t>(result)});
}

}  // namespace stashtrace::cuda
