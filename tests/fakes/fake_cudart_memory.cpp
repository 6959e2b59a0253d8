// Memory and copies of the libcudart double. SPDX-License-Identifier: Apache-2.0
//
// Calls of the other half, fake_cudart.cpp, by the symbols that programs use would be seen by a hook twice; so these go to
// the driver directly as well.
#include "cudart_driver.h"
#include "script.h"

using fake::driver;

namespace {

fake::Address address(const void* pointer) { return reinterpret_cast<fake::Address>(pointer); }

}  // namespace

int fake_runtime_ready();           // of fake_cudart.cpp
int fake_runtime_kept(int error);
int fake_runtime_context(int device, void** context);

#define RUNTIME_CALL(NAME, PARAMETERS, ...)                                                \
  FAKE_API int NAME PARAMETERS {                                                           \
    FAKE_CALL(NAME);                                                                       \
    if (const int error = fake_runtime_ready(); error != 0) return fake_runtime_kept(error); \
    return fake_runtime_kept(__VA_ARGS__);                                                 \
  }

RUNTIME_CALL(cudaMalloc, (void** pointer, std::size_t bytes),
             driver().cuMemAlloc(reinterpret_cast<fake::Address*>(pointer), bytes))
RUNTIME_CALL(cudaMallocManaged, (void** pointer, std::size_t bytes, unsigned flags),
             driver().cuMemAllocManaged(reinterpret_cast<fake::Address*>(pointer), bytes, flags))
RUNTIME_CALL(cudaMallocPitch, (void** pointer, std::size_t* pitch, std::size_t width, std::size_t height),
             driver().cuMemAllocPitch(reinterpret_cast<fake::Address*>(pointer), pitch, width, height, 4))
RUNTIME_CALL(cudaMallocAsync, (void** pointer, std::size_t bytes, void* stream),
             driver().cuMemAllocAsync(reinterpret_cast<fake::Address*>(pointer), bytes, stream))
RUNTIME_CALL(cudaFree, (void* pointer), driver().cuMemFree(address(pointer)))
RUNTIME_CALL(cudaFreeAsync, (void* pointer, void* stream), driver().cuMemFreeAsync(address(pointer), stream))
RUNTIME_CALL(cudaMallocHost, (void** pointer, std::size_t bytes), driver().cuMemHostAlloc(pointer, bytes, 0))
RUNTIME_CALL(cudaHostAlloc, (void** pointer, std::size_t bytes, unsigned flags),
             driver().cuMemHostAlloc(pointer, bytes, flags))
RUNTIME_CALL(cudaFreeHost, (void* pointer), driver().cuMemFreeHost(pointer))
RUNTIME_CALL(cudaHostRegister, (void* pointer, std::size_t bytes, unsigned flags),
             driver().cuMemHostRegister(pointer, bytes, flags))
RUNTIME_CALL(cudaHostUnregister, (void* pointer), driver().cuMemHostUnregister(pointer))

RUNTIME_CALL(cudaMemcpy, (void* to, const void* from, std::size_t bytes, int),
             driver().cuMemcpy(address(to), address(from), bytes))
RUNTIME_CALL(cudaMemcpyAsync, (void* to, const void* from, std::size_t bytes, int, void* stream),
             driver().cuMemcpyAsync(address(to), address(from), bytes, stream))

namespace {

using namespace stashtrace::cuda;

// Where memory lies the driver finds out itself.
fake::Rectangle rectangle(const void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                          std::size_t height) {
  fake::Rectangle told{};
  told.from.memory = told.to.memory = kMemoryUnified;
  told.from.device = address(from);
  told.from.pitch = from_pitch;
  told.to.device = address(to);
  told.to.pitch = to_pitch;
  told.width_bytes = width;
  told.height = height;
  return told;
}

fake::Box::Side side(const Position& at, const PitchedPointer& memory, void* context) {
  return {at.x, at.y, at.z, 0, kMemoryUnified, nullptr, address(memory.pointer), nullptr, context, memory.pitch, memory.y_size};
}

// Calls copy(box), unless what the program says makes no sense.
template <class Copy>
int of_box(const BoxCopy* told, Copy copy) {
  if (told == nullptr || told->from_array != nullptr || told->to_array != nullptr) return kInvalidValue;
  const auto& [width, height, depth] = told->extent;
  const fake::Box box{side(told->from_position, told->from, nullptr), side(told->to_position, told->to, nullptr), width, height,
                      depth};
  return copy(&box);
}

template <class Copy>
int of_peers(const PeerBoxCopy* told, Copy copy) {
  if (told == nullptr || told->from_array != nullptr || told->to_array != nullptr) return kInvalidValue;
  void *from = nullptr, *to = nullptr;
  if (const int error = fake_runtime_context(told->from_device, &from); error != 0) return error;
  if (const int error = fake_runtime_context(told->to_device, &to); error != 0) return error;
  const auto& [width, height, depth] = told->extent;
  const fake::Box box{side(told->from_position, told->from, from), side(told->to_position, told->to, to), width, height, depth};
  return copy(&box);
}

// Calls copy(context of one device, that of the other).
template <class Copy>
int between(int to_device, int from_device, Copy copy) {
  void *from = nullptr, *to = nullptr;
  if (const int error = fake_runtime_context(from_device, &from); error != 0) return error;
  if (const int error = fake_runtime_context(to_device, &to); error != 0) return error;
  return copy(to, from);
}

// Plane by plane, as far as the extent goes.
template <class Set>
int each_plane(const PitchedPointer& to, const Extent& extent, Set set) {
  for (std::size_t plane = 0; plane < extent.depth; ++plane)
    if (const int error = set(address(to.pointer) + plane * to.pitch * to.y_size); error != 0) return error;
  return 0;
}

}  // namespace

RUNTIME_CALL(cudaMemcpy2D, (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                            std::size_t height, int),
             [&, told = rectangle(to, to_pitch, from, from_pitch, width, height)] {
               return driver().cuMemcpy2DUnaligned(&told);
             }())
RUNTIME_CALL(cudaMemcpy2DAsync, (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                                 std::size_t height, int, void* stream),
             [&, told = rectangle(to, to_pitch, from, from_pitch, width, height)] {
               return driver().cuMemcpy2DAsync(&told, stream);
             }())
RUNTIME_CALL(cudaMemcpy3D, (const BoxCopy* told), of_box(told, [](auto* box) { return driver().cuMemcpy3D(box); }))
RUNTIME_CALL(cudaMemcpy3DAsync, (const BoxCopy* told, void* stream),
             of_box(told, [=](auto* box) { return driver().cuMemcpy3DAsync(box, stream); }))
RUNTIME_CALL(cudaMemcpy3DPeer, (const PeerBoxCopy* told), of_peers(told, [](auto* box) { return driver().cuMemcpy3DPeer(box); }))
RUNTIME_CALL(cudaMemcpy3DPeerAsync, (const PeerBoxCopy* told, void* stream),
             of_peers(told, [=](auto* box) { return driver().cuMemcpy3DPeerAsync(box, stream); }))
RUNTIME_CALL(cudaMemcpyPeer, (void* to, int to_device, const void* from, int from_device, std::size_t bytes),
             between(to_device, from_device, [=](void* there, void* here) {
               return driver().cuMemcpyPeer(address(to), there, address(from), here, bytes);
             }))
RUNTIME_CALL(cudaMemcpyPeerAsync,
             (void* to, int to_device, const void* from, int from_device, std::size_t bytes, void* stream),
             between(to_device, from_device, [=](void* there, void* here) {
               return driver().cuMemcpyPeerAsync(address(to), there, address(from), here, bytes, stream);
             }))
RUNTIME_CALL(cudaMemset2D, (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height),
             driver().cuMemsetD2D8(address(to), pitch, static_cast<unsigned char>(value), width, height))
RUNTIME_CALL(cudaMemset2DAsync, (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height, void* stream),
             driver().cuMemsetD2D8Async(address(to), pitch, static_cast<unsigned char>(value), width, height, stream))
RUNTIME_CALL(cudaMemset3D, (PitchedPointer to, int value, Extent extent), each_plane(to, extent, [&](fake::Address plane) {
               return driver().cuMemsetD2D8(plane, to.pitch, static_cast<unsigned char>(value), extent.width, extent.height);
             }))
RUNTIME_CALL(cudaMemset3DAsync, (PitchedPointer to, int value, Extent extent, void* stream),
             each_plane(to, extent, [&](fake::Address plane) {
               return driver().cuMemsetD2D8Async(plane, to.pitch, static_cast<unsigned char>(value), extent.width, extent.height,
                                                 stream);
             }))
// Symbols of the doubles are pointers to device memory.
RUNTIME_CALL(cudaMemcpyToSymbol, (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, int),
             driver().cuMemcpy(address(symbol) + offset, address(from), bytes))
RUNTIME_CALL(cudaMemcpyToSymbolAsync,
             (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, int, void* stream),
             driver().cuMemcpyAsync(address(symbol) + offset, address(from), bytes, stream))
RUNTIME_CALL(cudaMemcpyFromSymbol, (void* to, const void* symbol, std::size_t bytes, std::size_t offset, int),
             driver().cuMemcpy(address(to), address(symbol) + offset, bytes))
RUNTIME_CALL(cudaMemset, (void* to, int value, std::size_t bytes),
             driver().cuMemsetD8(address(to), static_cast<unsigned char>(value), bytes))
RUNTIME_CALL(cudaMemsetAsync, (void* to, int value, std::size_t bytes, void* stream),
             driver().cuMemsetD8Async(address(to), static_cast<unsigned char>(value), bytes, stream))

namespace {

struct PointerAttributes {  // cudaPointerAttributes; CUDA 13 appends eight words
  int type;                 // 0 unregistered, 1 host, 2 device, 3 managed
  int device;
  void* device_pointer;
  void* host_pointer;
};

int attributes_of(PointerAttributes* out, const void* pointer) {
  unsigned type = 0, managed = 0;
  int device = -2;
  const int wanted[] = {2, 8, 9};
  void* into[] = {&type, &managed, &device};
  if (const int error = driver().cuPointerGetAttributes(3, wanted, into, address(pointer)); error != 0) return error;
  auto* bare = const_cast<void*>(pointer);
  *out = {managed != 0 ? 3 : static_cast<int>(type), type == 0 ? -1 : device, type != 0 ? bare : nullptr,
          type != 2 ? bare : nullptr};
  return 0;
}

}  // namespace

RUNTIME_CALL(cudaPointerGetAttributes, (PointerAttributes* out, const void* pointer), attributes_of(out, pointer))
