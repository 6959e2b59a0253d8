// Implementation of ring_file.h. SPDX-License-Identifier: Apache-2.0
#include "core/ring_file.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/raw_syscall.h"
#include "core/ring.h"

namespace stashtrace {

using container::kPageBytes;
using container::LaneHeader;
using container::RingHeader;

int RingFile::allocate(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  const auto begin = static_cast<std::int64_t>(offset);
  int error = raw::fallocate(fd, 0, begin, static_cast<std::int64_t>(bytes));
  if (error == -EOPNOTSUPP || error == -ENOSYS) {  // some network file systems: write it
    static constexpr char kZeros[kPageBytes] = {};
    error = 0;
    for (std::uint64_t at = 0; at < bytes && error == 0; at += kPageBytes) {
      const long written = raw::pwrite(fd, kZeros, kPageBytes, begin + static_cast<std::int64_t>(at));
      if (written != static_cast<long>(kPageBytes)) error = written < 0 ? static_cast<int>(written) : -ENOSPC;
    }
  }
  if (error == -EFBIG) raw::consume_pending(SIGXFSZ);  // a limit for the user's files must not end the user's process
  return error;
}

Status RingFile::create(std::uint32_t pid) noexcept {
  int error = file_.create(O_RDWR);
  if (error < 0) return Status::failed("ring_not_created", "", error);
  error = allocate(file_.fd(), 0, kPageBytes);
  if (error < 0) {
    remove();
    return Status::failed("ring_not_created", "", error);
  }
  void* page = raw::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
  if (page == nullptr) {
    remove();
    return Status::failed("ring_not_mapped", "", ENOMEM);
  }
  header_ = static_cast<RingHeader*>(page);
  header_->container_major = container::kContainerMajor;
  header_->container_minor = container::kContainerMinor;
  header_->pid = pid;
  header_->lost_lanes = 0;
  used_bytes_.store(kPageBytes, std::memory_order_relaxed);
  header_->used_bytes = kPageBytes;
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, container::kRingMagic, sizeof header_->magic);
  return Status::ok();
}

LaneHeader* RingFile::add_lane(std::uint16_t record_id, std::uint32_t row_bytes, std::uint32_t lane_bytes,
                               std::uint32_t lane_id, std::uint32_t tid) noexcept {
  const std::uint32_t capacity = ring::capacity_rows(lane_bytes, row_bytes);
  const std::uint64_t row_space = (std::uint64_t{capacity} * row_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::uint64_t bytes = kPageBytes + row_space;
  const std::uint64_t offset = used_bytes();
  if (header_ == nullptr || offset + bytes > kMostBytes) return nullptr;
  const int fd = file_.fd();
  if (fd < 0 || allocate(fd, offset, bytes) < 0) return nullptr;
  void* start = raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<std::int64_t>(offset));
  if (start == nullptr) return nullptr;
  auto* lane = static_cast<LaneHeader*>(start);
  lane->lane_magic = container::kLaneMagic;
  lane->record_id = record_id;
  lane->row_bytes = static_cast<std::uint16_t>(row_bytes);
  lane->lane_id = lane_id;
  lane->capacity_rows = capacity;
  lane->lane_bytes = bytes;
  lane->tid = tid;
  lane->row_mask = capacity - 1;
  lane->mark = capacity / 4;
  used_bytes_.store(offset + bytes, std::memory_order_relaxed);
  std::atomic_ref(header_->used_bytes).store(offset + bytes, std::memory_order_release);
  return lane;
}

void RingFile::count_lost_row() noexcept {
  if (header_ != nullptr) std::atomic_ref(header_->lost_lanes).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t RingFile::lost_rows() const noexcept {
  return header_ != nullptr ? ring::relaxed(header_->lost_lanes) : 0;
}

void RingFile::forget_lost_rows(std::uint64_t told) noexcept {
  std::atomic_ref(header_->lost_lanes).fetch_sub(told, std::memory_order_relaxed);
}

void RingFile::remove() noexcept {
  raw::unlink(file_.path());
  file_.close();
}

void RingFile::forget() noexcept {
  file_.close();
  if (header_ != nullptr) replace_mapping(header_, kPageBytes);
  header_ = nullptr;
  used_bytes_.store(0, std::memory_order_relaxed);
}

void replace_mapping(void* start, std::size_t bytes) noexcept {
  raw::mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace stashtrace
