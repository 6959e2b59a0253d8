// Memory that is created, mapped and opened piece by piece, of the libcuda double. SPDX-License-Identifier: Apache-2.0
//
// What torch's expandable segments call. A reservation is address space without access; memory is the device's from
// cuMemCreate until its handle is released and its last mapping gone. Lines are of cuda.h 13.5.
#include <sys/mman.h>

#include "cuda_objects.h"

namespace fake::mapping {

constexpr std::size_t kGranularity = 2 << 20;
constexpr int kPinnedMemory = 1, kLocationDevice = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE

struct Place {  // CUmemLocation, 4540
  int type, id;
};
struct Properties {  // CUmemAllocationProp, 4586
  int type, handle_types;
  Place location;
  void* metadata;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
struct Access {  // CUmemAccessDesc, 4668
  Place location;
  int flags;
};

struct Piece {
  std::size_t bytes = 0;
  int device = 0, mappings = 0;
  bool released = false;
};
struct Mapping {
  std::size_t bytes = 0;
  unsigned long long handle = 0;
};

// Guarded by State::mutex.
struct Mapped {
  std::map<std::uintptr_t, std::size_t> reserved;
  std::map<unsigned long long, Piece> pieces;
  std::map<std::uintptr_t, Mapping> mappings;
  unsigned long long next_handle = 1;
};
Mapped& mapped() {
  static Mapped& all = *new Mapped();
  return all;
}

bool is_whole(std::size_t value) { return value % kGranularity == 0; }

bool is_reserved(std::uintptr_t address, std::size_t bytes) {
  auto after = mapped().reserved.upper_bound(address);
  if (after == mapped().reserved.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second;
}

// The mappings that make up a range, whole and without a gap; empty if it is not made of such.
std::vector<std::uintptr_t> mappings_of(std::uintptr_t address, std::size_t bytes) {
  std::vector<std::uintptr_t> found;
  const std::uintptr_t end = address + bytes;
  while (address < end) {
    const auto one = mapped().mappings.find(address);
    if (one == mapped().mappings.end() || address + one->second.bytes > end) return {};
    found.push_back(address);
    address += one->second.bytes;
  }
  return found;
}

void free_if_unused(unsigned long long handle) {
  const auto found = mapped().pieces.find(handle);
  if (found->second.mappings != 0 || !found->second.released) return;
  state().used_bytes[found->second.device] -= found->second.bytes;
  mapped().pieces.erase(found);
}

// 13423: flags are for the future and must be zero; the size is one of whole granules.
int create(unsigned long long* handle, std::size_t bytes, const Properties* how, unsigned long long flags) {
  if (const int error = ready_error(); error != kSuccess) return error;
  if (handle == nullptr || how == nullptr || bytes == 0 || !is_whole(bytes) || flags != 0) return kInvalidValue;
  if (how->type != kPinnedMemory || how->location.type != kLocationDevice) return kInvalidValue;
  const int device = how->location.id;
  if (device < 0 || device >= device_count()) return kInvalidDevice;
  const std::lock_guard lock(state().mutex);
  std::size_t& used = state().used_bytes[device];
  if (static_cast<double>(used + bytes) > device_setting(device, "memory", 141e9)) return kOutOfMemory;
  used += bytes;
  *handle = mapped().next_handle++;
  mapped().pieces[*handle] = {bytes, device};
  return kSuccess;
}

// 13500 to 13509: the range is reserved and not mapped, the offset and the flags are zero, all are whole granules.
int map(std::uintptr_t address, std::size_t bytes, std::size_t offset, unsigned long long handle, unsigned long long flags) {
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  const auto piece = mapped().pieces.find(handle);
  if (piece == mapped().pieces.end() || bytes > piece->second.bytes || offset != 0 || flags != 0) return kInvalidValue;
  if (!is_whole(address) || !is_whole(bytes) || !is_reserved(address, bytes)) return kInvalidValue;
  const auto next = mapped().mappings.lower_bound(address);
  if (next != mapped().mappings.end() && next->first < address + bytes) return kInvalidValue;
  mapped().mappings[address] = {bytes, handle};
  ++piece->second.mappings;
  return kSuccess;
}

// 13664: whole mappings only. What was in them is gone, and so is the access to the range.
int unmap(std::uintptr_t address, std::size_t bytes) {
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  const std::vector<std::uintptr_t> found = mappings_of(address, bytes);
  if (found.empty()) return kInvalidValue;
  for (const std::uintptr_t one : found) {
    const Mapping gone = mapped().mappings[one];
    mapped().mappings.erase(one);
    state().allocations.erase(one);
    mmap(reinterpret_cast<void*>(one), gone.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    --mapped().pieces[gone.handle].mappings;
    free_if_unused(gone.handle);
  }
  return kSuccess;
}

// 13695: the range is fully mapped. Only now the memory can be used.
int open(std::uintptr_t address, std::size_t bytes, const Access* whose, std::size_t count) {
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  const std::vector<std::uintptr_t> found = mappings_of(address, bytes);
  if (found.empty() || whose == nullptr || count == 0 || whose->location.type != kLocationDevice) return kInvalidValue;
  for (const std::uintptr_t one : found) {
    const Mapping& mapping = mapped().mappings[one];
    mprotect(reinterpret_cast<void*>(one), mapping.bytes, PROT_READ | PROT_WRITE);
    state().allocations[one] = {mapping.bytes, 2, mapped().pieces[mapping.handle].device, false, false};
  }
  return kSuccess;
}

int reserve(unsigned long long* address, std::size_t bytes, std::size_t alignment, unsigned long long flags) {
  if (const int error = ready_error(); error != kSuccess) return error;
  if (address == nullptr || bytes == 0 || !is_whole(bytes) || alignment > kGranularity || flags != 0) return kInvalidValue;
  // One granule more than asked for, since mmap knows pages alone; the rest of it stays unused.
  void* found = mmap(nullptr, bytes + kGranularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return kOutOfMemory;
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(found) + kGranularity - 1) / kGranularity * kGranularity;
  const std::lock_guard lock(state().mutex);
  mapped().reserved[first] = bytes;
  *address = first;
  return kSuccess;
}

int give_back(std::uintptr_t address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  const auto found = mapped().reserved.find(address);
  if (found == mapped().reserved.end() || found->second != bytes) return kInvalidValue;
  const auto next = mapped().mappings.lower_bound(address);
  if (next != mapped().mappings.end() && next->first < address + bytes) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), bytes);
  mapped().reserved.erase(found);
  return kSuccess;
}

}  // namespace fake::mapping

using namespace fake;

FAKE_API int cuMemGetAllocationGranularity(std::size_t* bytes, const mapping::Properties* how, int) {
  FAKE_CALL(cuMemGetAllocationGranularity);
  if (bytes == nullptr || how == nullptr) return kInvalidValue;
  *bytes = mapping::kGranularity;
  return kSuccess;
}
FAKE_API int cuMemAddressReserve(unsigned long long* address, std::size_t bytes, std::size_t alignment, unsigned long long,
                                 unsigned long long flags) {
  FAKE_CALL(cuMemAddressReserve);
  return mapping::reserve(address, bytes, alignment, flags);
}
FAKE_API int cuMemAddressFree(unsigned long long address, std::size_t bytes) {
  FAKE_CALL(cuMemAddressFree);
  return mapping::give_back(address, bytes);
}
FAKE_API int cuMemCreate(unsigned long long* handle, std::size_t bytes, const mapping::Properties* how, unsigned long long flags) {
  FAKE_CALL(cuMemCreate);
  return mapping::create(handle, bytes, how, flags);
}
FAKE_API int cuMemRelease(unsigned long long handle) {
  FAKE_CALL(cuMemRelease);
  const std::lock_guard lock(state().mutex);
  const auto found = mapping::mapped().pieces.find(handle);
  if (found == mapping::mapped().pieces.end() || found->second.released) return kInvalidValue;
  found->second.released = true;  // 13446: it may still be mapped
  mapping::free_if_unused(handle);
  return kSuccess;
}
FAKE_API int cuMemMap(unsigned long long address, std::size_t bytes, std::size_t offset, unsigned long long handle,
                      unsigned long long flags) {
  FAKE_CALL(cuMemMap);
  return mapping::map(address, bytes, offset, handle, flags);
}
FAKE_API int cuMemUnmap(unsigned long long address, std::size_t bytes) {
  FAKE_CALL(cuMemUnmap);
  return mapping::unmap(address, bytes);
}
FAKE_API int cuMemSetAccess(unsigned long long address, std::size_t bytes, const mapping::Access* whose, std::size_t count) {
  FAKE_CALL(cuMemSetAccess);
  return mapping::open(address, bytes, whose, count);
}
