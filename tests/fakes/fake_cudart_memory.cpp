// Memory and copies of the libcudart double. SPDX-License-Identifier: Apache-2.0
//
// Calls of the other half, fake_cudart.cpp, by the symbols that programs use would be seen by a hook twice; so these go to
// the driver directly as well.
#include "cudart_driver.h"
#include "script.h"

namespace {

const fake::DriverTable& driver() {
  static const fake::DriverTable* const table = new fake::DriverTable();
  return *table;
}

fake::Address address(const void* pointer) { return reinterpret_cast<fake::Address>(pointer); }

}  // namespace

int fake_runtime_ready();           // of fake_cudart.cpp
int fake_runtime_kept(int error);

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
RUNTIME_CALL(cudaMemcpyPeerAsync, (void* to, int, const void* from, int, std::size_t bytes, void* stream),
             driver().cuMemcpyAsync(address(to), address(from), bytes, stream))
RUNTIME_CALL(cudaMemcpy2DAsync, (void* to, std::size_t, const void* from, std::size_t, std::size_t width,
                                 std::size_t height, int, void* stream),
             driver().cuMemcpyAsync(address(to), address(from), width * height, stream))
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
