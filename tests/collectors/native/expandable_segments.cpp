// Memory as torch's expandable segments take it and give it back, linked against libcudart. SPDX-License-Identifier: Apache-2.0
//
// Plays c10/cuda/CUDACachingAllocator.cpp, mapHandles() and unmapHandles(): a piece is created, all of them are mapped and
// opened; to give them back, the stream is waited for. The first argument says how the driver's functions are found, as
// c10/cuda/driver_api.cpp has found them over the years. What must hold is printed. test_expandable_segments.py.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <string>

extern "C" {
int cudaMalloc(void**, std::size_t);
int cudaStreamSynchronize(void*);
int cudaMemset(void*, int, std::size_t);
int cudaGetDriverEntryPoint(const char*, void**, unsigned long long, int*);
int cudaGetDriverEntryPoint_ptsz(const char*, void**, unsigned long long, int*);
int cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long, int*);
int cudaGetDriverEntryPointByVersion_ptsz(const char*, void**, unsigned, unsigned long long, int*);
}

namespace {

constexpr std::size_t kPiece = 2 << 20, kPieces = 2, kReserved = 16 << 20;
std::string how;

void* find(const char* name) {
  void* found = nullptr;
  int missing = -1;
  if (how == "ByVersion") cudaGetDriverEntryPointByVersion(name, &found, 12000, 0, &missing);
  if (how == "ByVersion_ptsz") cudaGetDriverEntryPointByVersion_ptsz(name, &found, 12000, 0, &missing);
  if (how == "plain") cudaGetDriverEntryPoint(name, &found, 0, &missing);
  if (how == "plain_ptsz") cudaGetDriverEntryPoint_ptsz(name, &found, 0, &missing);
  if (how == "dlsym") found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
  if (found == nullptr || missing > 0) std::printf("no %s\n", name);
  return found;
}

struct Properties {
  int type = 1, handle_types = 0, location_type = 1, device = 0;
  void* metadata = nullptr;
  unsigned char rest[8] = {};
};
struct Access {
  int location_type = 1, device = 0, flags = 3;
};

int (*create)(unsigned long long*, std::size_t, const Properties*, unsigned long long);
int (*map)(unsigned long long, std::size_t, std::size_t, unsigned long long, unsigned long long);
int (*set_access)(unsigned long long, std::size_t, const Access*, std::size_t);
int (*unmap)(unsigned long long, std::size_t);
int (*release)(unsigned long long);
int (*reserve)(unsigned long long*, std::size_t, std::size_t, unsigned long long, unsigned long long);

}  // namespace

int main(int count, char** arguments) {
  how = count > 1 ? arguments[1] : "ByVersion";
  void* other = nullptr;
  cudaMalloc(&other, 1 << 20);  // a context
  create = reinterpret_cast<decltype(create)>(find("cuMemCreate"));
  map = reinterpret_cast<decltype(map)>(find("cuMemMap"));
  set_access = reinterpret_cast<decltype(set_access)>(find("cuMemSetAccess"));
  unmap = reinterpret_cast<decltype(unmap)>(find("cuMemUnmap"));
  release = reinterpret_cast<decltype(release)>(find("cuMemRelease"));
  reserve = reinterpret_cast<decltype(reserve)>(find("cuMemAddressReserve"));
  unsigned long long address = 0, handles[kPieces] = {};
  const Properties properties;
  const Access access;
  std::printf("reserve %d\n", reserve(&address, kReserved, 0, 0, 0));
  for (auto& handle : handles) {
    int result = create(&handle, kPiece, &properties, 0);
    if (result != 0) {
      std::printf("create %d\n", result);
      result = create(&handle, kPiece, &properties, 0);
    }
    std::printf("create %d\n", result);
  }
  for (std::size_t i = 0; i < kPieces; ++i) std::printf("map %d\n", map(address + i * kPiece, kPiece, 0, handles[i], 0));
  std::printf("access %d\n", set_access(address, kPieces * kPiece, &access, 1));
  std::printf("memset %d\n", cudaMemset(reinterpret_cast<void*>(address), 0, kPieces * kPiece));
  std::printf("synchronize %d\n", cudaStreamSynchronize(nullptr));  // the program's own, as by .item()
  std::printf("memset %d\n", cudaMemset(reinterpret_cast<void*>(address), 0, kPieces * kPiece));
  std::printf("synchronize %d\n", cudaStreamSynchronize(nullptr));  // the allocator's
  for (std::size_t i = 0; i < kPieces; ++i) {
    std::printf("unmap %d\n", unmap(address + i * kPiece, kPiece));
    std::printf("release %d\n", release(handles[i]));
  }
  std::printf("again %d\n", unmap(address, kPiece));
}
