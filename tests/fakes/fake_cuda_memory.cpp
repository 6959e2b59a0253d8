// Memory and copies of the libcuda double. SPDX-License-Identifier: Apache-2.0
//
// Device memory is address space that is never touched unless somebody copies little: data moves up to kMovedBytes, the
// time of a copy follows from the script alone (rate.h2d.pinned, rate.h2d.pageable, ..., bytes per second).
#include <sys/mman.h>

#include <cstring>

#include "abi/cuda_abi.h"
#include "cuda_objects.h"

using namespace fake;

namespace {

constexpr std::size_t kMovedBytes = 1 << 20;
enum : int { kHost = 1, kDevice = 2 };

const Allocation* find(const void* pointer, std::uintptr_t* base = nullptr) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto after = state().allocations.upper_bound(address);
  if (after == state().allocations.begin()) return nullptr;
  --after;
  if (address >= after->first + after->second.bytes) return nullptr;
  if (base != nullptr) *base = after->first;
  return &after->second;
}

int allocate(void** pointer, std::size_t bytes, int type, bool managed) {
  if (const int error = context_error(); error != kSuccess) return error;
  if (bytes == 0) return kInvalidValue;
  const std::lock_guard lock(state().mutex);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  const int device = current_context()->device;
  if (type == kDevice) {
    std::size_t& used = state().used_bytes[device];
    if (static_cast<double>(used + bytes) > device_setting(device, "memory", 141e9)) return kOutOfMemory;
    used += bytes;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  state().allocations[reinterpret_cast<std::uintptr_t>(memory)] = {bytes, type, device, managed, false};
  *pointer = memory;
  return kSuccess;
}

int release(void* pointer, int type) {
  if (const int error = ready_error(); error != kSuccess) return error;
  if (pointer == nullptr) return kSuccess;
  const std::lock_guard lock(state().mutex);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  const auto found = state().allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == state().allocations.end() || found->second.type != type || found->second.registered) return kInvalidValue;
  if (type == kDevice) state().used_bytes[found->second.device] -= found->second.bytes;
  munmap(pointer, found->second.bytes);
  state().allocations.erase(found);
  return kSuccess;
}

// Rows of bytes in planes, as copies and memsets describe them; one row for those of plain memory.
struct Block {
  std::size_t width = 0, height = 1, depth = 1;
  std::size_t bytes() const { return width * height * depth; }
};

// From one row of a side to its next, and from one plane to its next.
struct Pitch {
  std::size_t row = 0, plane = 0;
};

template <class Each>
void for_each_row(const Block& block, Each each) {
  for (std::size_t plane = 0; plane < block.depth; ++plane)
    for (std::size_t row = 0; row < block.height; ++row) each(row, plane);
}

struct CopyWork : Work {
  std::int64_t run(std::int64_t begin_ns) override {
    state().clock.work_until(begin_ns + duration_ns);
    if (block.bytes() <= kMovedBytes) {
      // What was freed while the copy was on its way is not there any more.
      const std::lock_guard guard(state().mutex);
      const bool there = (!to_known || find(to) != nullptr) && (!from_known || find(from) != nullptr);
      if (there)
        for_each_row(block, [this](std::size_t row, std::size_t plane) {
          std::memmove(static_cast<char*>(to) + row * to_pitch.row + plane * to_pitch.plane,
                       static_cast<const char*>(from) + row * from_pitch.row + plane * from_pitch.plane, block.width);
        });
    }
    return begin_ns + duration_ns;
  }
  void* to = nullptr;
  const void* from = nullptr;
  Block block;
  Pitch to_pitch, from_pitch;
  std::int64_t duration_ns = 0;
  bool to_known = false, from_known = false;
};

// `blocking`: the calling form. An asynchronous copy of pageable memory blocks as well, as with the real driver.
int copy(void* to, const void* from, const Block& block, void* handle, bool blocking, Pitch to_pitch = {}, Pitch from_pitch = {}) {
  if (const int error = context_error(); error != kSuccess) return error;
  const std::size_t bytes = block.bytes();
  std::unique_lock lock(state().mutex);
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return no_stream(handle);
  if (blocking) {
    if (const int error = unsafe_call(); error != kSuccess) return error;
  }
  const Allocation *target = find(to), *source = find(from);
  const bool to_device = target != nullptr && target->type == kDevice;
  const bool from_device = source != nullptr && source->type == kDevice;
  const bool pageable = (!to_device && target == nullptr) || (!from_device && source == nullptr);
  const int device = stream->context->device;
  Ran description{RanKind::copy};
  description.size_bytes = static_cast<std::int64_t>(bytes);
  description.pageable = pageable;
  description.correlation = state().next_correlation.fetch_add(1);
  std::string link = "h2h";
  description.copy_code = 5;
  if (to_device && from_device) {
    const bool peer = target->device != source->device;
    description.copy_code = peer ? 4 : 3;
    link = peer ? "peer" : "d2d";
  } else if (to_device || from_device) {
    description.copy_code = to_device ? 1 : 2;
    link = std::string(to_device ? "h2d" : "d2h") + (pageable ? ".pageable" : ".pinned");
  }
  description.name = "copy " + link;
  const double rate = device_setting(device, "rate." + link, link == "d2d" ? 2e12 : link == "peer" ? 2e11 : pageable ? 1e10 : 5e10);
  auto work = std::make_shared<CopyWork>();
  work->to = to;
  work->from = from;
  work->block = block;
  work->to_pitch = to_pitch;
  work->from_pitch = from_pitch;
  work->to_known = target != nullptr;
  work->from_known = source != nullptr;
  work->duration_ns = static_cast<std::int64_t>(static_cast<double>(bytes) / rate * 1e9) +
                      static_cast<std::int64_t>(device_setting(device, "copy.latency", 0));
  const bool waits = (blocking || (pageable && link != "h2h")) && stream->capture == nullptr;
  if (stream->capture != nullptr && (blocking || pageable)) return invalidate(stream->capture, kCaptureUnsupported);
  CompletionPtr done;
  if (const int error = submit(lock, stream, std::move(work), description, &done); error != kSuccess) return error;
  if (waits && done != nullptr) wait_for(lock, done);
  return kSuccess;
}

// Sides of a copy that a structure describes. CUDA arrays, of which the double has none, are refused.
int place_of(unsigned memory, const void* host, unsigned long long device, std::size_t offset, const void*& place) {
  constexpr unsigned kUnified = 4;
  if (memory == kHost) place = host;
  else if (memory == kDevice || memory == kUnified) place = reinterpret_cast<const void*>(device);
  else return kInvalidValue;
  place = static_cast<const char*>(place) + offset;
  return kSuccess;
}

bool is_context(const void* context) {
  const std::lock_guard lock(state().mutex);
  return state().contexts.contains(context);
}

int copy_rectangle(const stashtrace::cuda::DriverRectangleCopy* told, void* handle, bool blocking) {
  if (told == nullptr) return kInvalidValue;
  const auto& [from, to, width, height] = *told;
  const void *source = nullptr, *target = nullptr;
  int error = place_of(from.memory, from.host, from.device, from.y * from.pitch + from.x_bytes, source);
  if (error == kSuccess) error = place_of(to.memory, to.host, to.device, to.y * to.pitch + to.x_bytes, target);
  if (error != kSuccess) return error;
  // A pitch of 0 stands for rows without a gap.
  const std::size_t from_pitch = from.pitch == 0 ? width : from.pitch, to_pitch = to.pitch == 0 ? width : to.pitch;
  if (from_pitch < from.x_bytes + width || to_pitch < to.x_bytes + width) return kInvalidValue;
  return copy(const_cast<void*>(target), source, {width, height}, handle, blocking, {to_pitch}, {from_pitch});
}

int copy_box(const stashtrace::cuda::DriverBoxCopy* told, void* handle, bool blocking, bool contexts) {
  if (told == nullptr) return kInvalidValue;
  const auto& [from, to, width, height, depth] = *told;
  for (const auto* side : {&from, &to}) {
    if (!contexts && side->context != nullptr) return kInvalidValue;  // reserved, must be null
    if (contexts && !is_context(side->context)) return kInvalidContext;
    if (side->level != 0) return kInvalidValue;
    if (side->pitch < side->x_bytes + width || (side->height < side->y + height && depth > 1)) return kInvalidValue;
  }
  const void *source = nullptr, *target = nullptr;
  const auto offset = [](const auto& side) { return (side.z * side.height + side.y) * side.pitch + side.x_bytes; };
  int error = place_of(from.memory, from.host, from.device, offset(from), source);
  if (error == kSuccess) error = place_of(to.memory, to.host, to.device, offset(to), target);
  if (error != kSuccess) return error;
  return copy(const_cast<void*>(target), source, {width, height, depth}, handle, blocking, {to.pitch, to.pitch * to.height},
              {from.pitch, from.pitch * from.height});
}

int copy_between(unsigned long long to, void* to_context, unsigned long long from, void* from_context, std::size_t bytes,
                 void* handle) {
  if (const int error = context_error(); error != kSuccess) return error;
  for (const void* context : {to_context, from_context})
    if (!is_context(context)) return kInvalidContext;
  return copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), {bytes}, handle, false);
}

struct SetWork : Work {
  std::int64_t run(std::int64_t begin_ns) override {
    state().clock.work_until(begin_ns + duration_ns);
    const std::lock_guard guard(state().mutex);
    if (block.bytes() <= kMovedBytes && find(to) != nullptr)
      for_each_row(block, [this](std::size_t row, std::size_t) {
        std::memset(static_cast<char*>(to) + row * pitch, value, block.width);
      });
    return begin_ns + duration_ns;
  }
  void* to = nullptr;
  int value = 0;
  Block block;
  std::size_t pitch = 0;
  std::int64_t duration_ns = 0;
};

int set(void* to, int value, const Block& block, void* handle, bool blocking, std::size_t pitch = 0) {
  if (const int error = context_error(); error != kSuccess) return error;
  if (block.height > 1 && pitch < block.width) return kInvalidValue;
  const std::size_t bytes = block.bytes();
  std::unique_lock lock(state().mutex);
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return no_stream(handle);
  auto work = std::make_shared<SetWork>();
  work->to = to;
  work->value = value;
  work->block = block;
  work->pitch = pitch;
  work->duration_ns = static_cast<std::int64_t>(static_cast<double>(bytes) / setting("rate.memset", 2e12) * 1e9);
  Ran description{RanKind::memset};
  description.name = "memset";
  description.size_bytes = static_cast<std::int64_t>(bytes);
  description.correlation = state().next_correlation.fetch_add(1);
  CompletionPtr done;
  if (const int error = submit(lock, stream, std::move(work), description, &done); error != kSuccess) return error;
  if (blocking && done != nullptr) wait_for(lock, done);
  return kSuccess;
}

}  // namespace

#define POINTER(value) reinterpret_cast<void*>(value)
using Address = unsigned long long;

FAKE_API int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  FAKE_CALL(cuMemGetInfo_v2);
  if (const int error = context_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  const int device = current_context()->device;
  *total_bytes = static_cast<std::size_t>(device_setting(device, "memory", 141e9));
  *free_bytes = *total_bytes - state().used_bytes[device];
  return kSuccess;
}

FAKE_API int cuMemAlloc_v2(Address* pointer, std::size_t bytes) {
  FAKE_CALL(cuMemAlloc_v2);
  return allocate(reinterpret_cast<void**>(pointer), bytes, kDevice, false);
}

FAKE_API int cuMemAllocManaged(Address* pointer, std::size_t bytes, unsigned) {
  FAKE_CALL(cuMemAllocManaged);
  return allocate(reinterpret_cast<void**>(pointer), bytes, kDevice, true);
}

// cuda.h 13.5, 9114: elements of 4, 8 or 16 bytes; the function decides how long a row is.
FAKE_API int cuMemAllocPitch_v2(Address* pointer, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element_bytes) {
  FAKE_CALL(cuMemAllocPitch_v2);
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return kInvalidValue;
  *pitch = (width + 511) / 512 * 512;
  return allocate(reinterpret_cast<void**>(pointer), *pitch * height, kDevice, false);
}

FAKE_API int cuMemFree_v2(Address pointer) {
  FAKE_CALL(cuMemFree_v2);
  if (pointer != 0) {  // the real call waits for the device
    if (const int error = context_error(); error != kSuccess) return error;
    std::unique_lock lock(state().mutex);
    if (const int error = unsafe_call(); error != kSuccess) return error;
    std::vector<CompletionPtr> pending;
    for (const Stream* stream : current_context()->streams) pending.push_back(stream->last);
    for (const CompletionPtr& done : pending) wait_for(lock, done);
  }
  return release(POINTER(pointer), kDevice);
}

FAKE_API int cuMemAllocAsync(Address* pointer, std::size_t bytes, void*) {
  FAKE_CALL(cuMemAllocAsync);
  const int before = t_capture_mode;
  t_capture_mode = kCaptureRelaxed;  // allowed beside a capture
  const int error = allocate(reinterpret_cast<void**>(pointer), bytes, kDevice, false);
  t_capture_mode = before;
  return error;
}

FAKE_API int cuMemFreeAsync(Address pointer, void*) {
  FAKE_CALL(cuMemFreeAsync);
  const int before = t_capture_mode;
  t_capture_mode = kCaptureRelaxed;
  const int error = release(POINTER(pointer), kDevice);
  t_capture_mode = before;
  return error;
}

FAKE_API int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  FAKE_CALL(cuMemHostAlloc);
  return allocate(pointer, bytes, kHost, false);
}

FAKE_API int cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
  FAKE_CALL(cuMemAllocHost_v2);
  return allocate(pointer, bytes, kHost, false);
}

FAKE_API int cuMemFreeHost(void* pointer) {
  FAKE_CALL(cuMemFreeHost);
  return release(pointer, kHost);
}

FAKE_API int cuMemHostGetDevicePointer_v2(Address* device_pointer, void* pointer, unsigned) {
  FAKE_CALL(cuMemHostGetDevicePointer_v2);
  const std::lock_guard lock(state().mutex);
  if (find(pointer) == nullptr) return kInvalidValue;
  *device_pointer = reinterpret_cast<Address>(pointer);
  return kSuccess;
}

FAKE_API int cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned) {
  FAKE_CALL(cuMemHostRegister_v2);
  if (const int error = context_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  if (const int error = unsafe_call(); error != kSuccess) return error;
  if (find(pointer) != nullptr) return kAlreadyRegistered;
  state().allocations[reinterpret_cast<std::uintptr_t>(pointer)] = {bytes, kHost, current_context()->device, false, true};
  return kSuccess;
}

FAKE_API int cuMemHostUnregister(void* pointer) {
  FAKE_CALL(cuMemHostUnregister);
  const std::lock_guard lock(state().mutex);
  const auto found = state().allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == state().allocations.end() || !found->second.registered) return kNotRegistered;
  state().allocations.erase(found);
  return kSuccess;
}

static int attribute_of(void* out, int attribute, Address address) {
  const Allocation* found = find(POINTER(address));
  if (found == nullptr) return kInvalidValue;
  switch (attribute) {
    case 2: *static_cast<unsigned*>(out) = static_cast<unsigned>(found->type); return kSuccess;
    case 3:
    case 4: *static_cast<void**>(out) = POINTER(address); return kSuccess;
    case 8: *static_cast<unsigned*>(out) = found->managed; return kSuccess;
    case 9: *static_cast<int*>(out) = found->device; return kSuccess;
    default: return kNotSupported;
  }
}

FAKE_API int cuPointerGetAttribute(void* out, int attribute, Address pointer) {
  AS_READ(cuPointerGetAttribute, true);
  const std::lock_guard lock(state().mutex);
  return attribute_of(out, attribute, pointer);
}

// Unlike the single form it answers 0 for memory it does not know.
FAKE_API int cuPointerGetAttributes(unsigned count, const int* attributes, void** out, Address pointer) {
  AS_READ(cuPointerGetAttributes, true);
  const std::lock_guard lock(state().mutex);
  for (unsigned at = 0; at < count; ++at) {
    if (attribute_of(out[at], attributes[at], pointer) != kSuccess) {
      *static_cast<int*>(out[at]) = attributes[at] == 9 ? -2 : 0;
    }
  }
  return kSuccess;
}

FAKE_API int cuMemcpy(Address to, Address from, std::size_t bytes) {
  FAKE_CALL(cuMemcpy);
  return copy(POINTER(to), POINTER(from), {bytes}, nullptr, true);
}

FAKE_API int cuMemcpyAsync(Address to, Address from, std::size_t bytes, void* stream) {
  FAKE_CALL(cuMemcpyAsync);
  return copy(POINTER(to), POINTER(from), {bytes}, stream, false);
}

FAKE_API int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  FAKE_CALL(cuMemcpyHtoD_v2);
  return copy(POINTER(to), from, {bytes}, nullptr, true);
}

FAKE_API int cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  FAKE_CALL(cuMemcpyDtoH_v2);
  return copy(to, POINTER(from), {bytes}, nullptr, true);
}

FAKE_API int cuMemcpyDtoD_v2(Address to, Address from, std::size_t bytes) {
  FAKE_CALL(cuMemcpyDtoD_v2);
  return copy(POINTER(to), POINTER(from), {bytes}, nullptr, true);
}

FAKE_API int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* stream) {
  FAKE_CALL(cuMemcpyHtoDAsync_v2);
  return copy(POINTER(to), from, {bytes}, stream, false);
}

FAKE_API int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* stream) {
  FAKE_CALL(cuMemcpyDtoHAsync_v2);
  return copy(to, POINTER(from), {bytes}, stream, false);
}

FAKE_API int cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, void* stream) {
  FAKE_CALL(cuMemcpyDtoDAsync_v2);
  return copy(POINTER(to), POINTER(from), {bytes}, stream, false);
}

FAKE_API int cuMemcpyPeer(Address to, void* to_context, Address from, void* from_context, std::size_t bytes) {
  FAKE_CALL(cuMemcpyPeer);
  return copy_between(to, to_context, from, from_context, bytes, nullptr);
}

FAKE_API int cuMemcpyPeerAsync(Address to, void* to_context, Address from, void* from_context, std::size_t bytes,
                               void* stream) {
  FAKE_CALL(cuMemcpyPeerAsync);
  return copy_between(to, to_context, from, from_context, bytes, stream);
}

#define RECTANGLE_COPY(NAME, PARAMETERS, STREAM, BLOCKING)   \
  FAKE_API int NAME PARAMETERS {                             \
    FAKE_CALL(NAME);                                         \
    return copy_rectangle(told, STREAM, BLOCKING);           \
  }
#define BOX_COPY(NAME, PARAMETERS, STREAM, BLOCKING, CONTEXTS) \
  FAKE_API int NAME PARAMETERS {                               \
    FAKE_CALL(NAME);                                           \
    return copy_box(told, STREAM, BLOCKING, CONTEXTS);         \
  }
using Rectangle = stashtrace::cuda::DriverRectangleCopy;
using Box = stashtrace::cuda::DriverBoxCopy;

RECTANGLE_COPY(cuMemcpy2D_v2, (const Rectangle* told), nullptr, true)
RECTANGLE_COPY(cuMemcpy2DUnaligned_v2, (const Rectangle* told), nullptr, true)
RECTANGLE_COPY(cuMemcpy2DAsync_v2, (const Rectangle* told, void* stream), stream, false)
BOX_COPY(cuMemcpy3D_v2, (const Box* told), nullptr, true, false)
BOX_COPY(cuMemcpy3DAsync_v2, (const Box* told, void* stream), stream, false, false)
// Between devices it does not wait, as the header says of it.
BOX_COPY(cuMemcpy3DPeer, (const Box* told), nullptr, false, true)
BOX_COPY(cuMemcpy3DPeerAsync, (const Box* told, void* stream), stream, false, true)

FAKE_API int cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes) {
  FAKE_CALL(cuMemsetD8_v2);
  return set(POINTER(to), value, {bytes}, nullptr, true);
}

FAKE_API int cuMemsetD32_v2(Address to, unsigned value, std::size_t count) {
  FAKE_CALL(cuMemsetD32_v2);
  return set(POINTER(to), static_cast<int>(value), {4 * count}, nullptr, true);
}

FAKE_API int cuMemsetD2D8_v2(Address to, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height) {
  FAKE_CALL(cuMemsetD2D8_v2);
  return set(POINTER(to), value, {width, height}, nullptr, true, pitch);
}

FAKE_API int cuMemsetD2D8Async(Address to, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height,
                               void* stream) {
  FAKE_CALL(cuMemsetD2D8Async);
  return set(POINTER(to), value, {width, height}, stream, false, pitch);
}

FAKE_API int cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void* stream) {
  FAKE_CALL(cuMemsetD8Async);
  return set(POINTER(to), value, {bytes}, stream, false);
}

FAKE_API int cuMemsetD32Async(Address to, unsigned value, std::size_t count, void* stream) {
  FAKE_CALL(cuMemsetD32Async);
  return set(POINTER(to), static_cast<int>(value), {4 * count}, stream, false);
}
