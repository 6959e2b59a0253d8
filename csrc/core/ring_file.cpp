// Implementation of ring_file.h. SPDX-License-Identifier: Apache-2.0
#include "core/ring_file.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/apart.h"
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
  const int fd = file_.create();
  if (fd < 0) return Status::failed("ring_not_created", "", fd);
  const int error = allocate(fd, 0, kPageBytes);
  void* page = error == 0 ? raw::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : nullptr;
  raw::close(fd);
  if (page == nullptr) {
    remove();
    return error == 0 ? Status::failed("ring_not_mapped", "", ENOMEM) : Status::failed("ring_not_created", "", error);
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

void* RingFile::map(std::uint64_t offset, std::uint64_t bytes) noexcept {
  void* start = nullptr;
  apart([this, offset, bytes, &start]() noexcept {
    const int fd = file_.open();
    if (fd < 0) return;
    if (allocate(fd, offset, bytes) == 0)
      start = raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<std::int64_t>(offset));
    raw::close(fd);
  });
  return start;
}

LaneHeader* RingFile::add_lane(std::uint16_t record_id, std::uint32_t row_bytes, std::uint32_t lane_bytes,
                               std::uint32_t lane_id, std::uint32_t tid) noexcept {
  const std::uint32_t capacity = ring::capacity_rows(lane_bytes, row_bytes);
  const std::uint64_t row_space = (std::uint64_t{capacity} * row_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::uint64_t bytes = kPageBytes + row_space;
  const std::uint64_t offset = used_bytes();
  if (!is_intact() || offset + bytes > kMostBytes) return nullptr;
  void* start = map(offset, bytes);
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

// False as well if the program has mapped something of its own over our page.
bool RingFile::is_intact() const noexcept {
  return header_ != nullptr && std::memcmp(header_->magic, container::kRingMagic, sizeof header_->magic) == 0;
}

void RingFile::count_lost_row() noexcept {
  if (is_intact()) std::atomic_ref(header_->lost_lanes).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t RingFile::lost_rows() const noexcept {
  return is_intact() ? ring::relaxed(header_->lost_lanes) : 0;
}

void RingFile::forget_lost_rows(std::uint64_t told) noexcept {
  if (is_intact()) std::atomic_ref(header_->lost_lanes).fetch_sub(told, std::memory_order_relaxed);
}

void RingFile::remove() noexcept { file_.remove(); }

void RingFile::forget() noexcept {
  if (is_intact()) replace_mapping(header_, kPageBytes);
  header_ = nullptr;
  used_bytes_.store(0, std::memory_order_relaxed);
}

void replace_mapping(void* start, std::size_t bytes) noexcept {
  raw::mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace stashtrace
