// Implementation of ring_file.h. SPDX-License-Identifier: Apache-2.0
#include "core/ring_file.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/apart.h"
#include "core/pages.h"
#include "core/raw_syscall.h"
#include "core/ring.h"

namespace stashtrace {

using container::kPageBytes;
using container::RingFileHeader;
using container::RingHeader;

namespace {

// Whole pages: where a page has space in part, a store to it may need blocks that a full disk does not have.
std::uint64_t first_space_bytes() noexcept { return whole_pages(kPageBytes + RingFile::kFirstSpaceBytes); }

// Bytes of a ring's header and rows, from its start, that have space in the file.
std::uint64_t space_bytes(const RingHeader* ring) noexcept {
  return ring->space_end != 0 ? first_space_bytes() : ring->ring_bytes;
}

int allocate(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  const auto begin = static_cast<std::int64_t>(offset);
  int error = raw::fallocate(fd, 0, begin, static_cast<std::int64_t>(bytes));
  if (error == -EOPNOTSUPP || error == -ENOSYS) {  // some network file systems: write zeros
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

// Writes the memory at `start` to the file and maps the file's pages in its place.
int move_into(int fd, void* start, std::uint64_t space_bytes, std::uint64_t bytes, std::uint64_t offset) noexcept {
  const auto at = static_cast<std::int64_t>(offset);
  if (const int error = allocate(fd, offset, space_bytes); error < 0) return error;
  const long written = raw::pwrite(fd, start, space_bytes, at);
  if (written != static_cast<long>(space_bytes)) return written < 0 ? static_cast<int>(written) : -ENOSPC;
  return raw::mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, at) == nullptr ? -ENOMEM : 0;
}

}  // namespace

Status RingFile::create(std::uint32_t pid) noexcept {
  const int fd = file_.create();
  if (fd < 0) return Status::failed("ring_not_created", "", fd);
  const std::uint64_t bytes = page_bytes();
  const int error = allocate(fd, 0, bytes);
  void* page = error == 0 ? raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : nullptr;
  raw::close(fd);
  if (page == nullptr) {
    remove();
    return error == 0 ? Status::failed("ring_not_mapped", "", ENOMEM) : Status::failed("ring_not_created", "", error);
  }
  header_ = static_cast<RingFileHeader*>(page);
  header_->container_major = container::kContainerMajor;
  header_->container_minor = container::kContainerMinor;
  header_->pid = pid;
  header_->lost_rows = 0;
  used_bytes_.store(bytes, std::memory_order_relaxed);
  header_->used_bytes = bytes;
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, container::kRingFileMagic, sizeof header_->magic);
  return Status::ok();
}

void* RingFile::map(std::uint64_t offset, std::uint64_t space_bytes, std::uint64_t bytes) noexcept {
  if (without_file_) return raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* start = nullptr;
  apart([this, offset, space_bytes, bytes, &start]() noexcept {
    const int fd = file_.open();
    if (fd < 0) return;
    const int error = allocate(fd, offset, space_bytes);
    if (error == 0)
      start = raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<std::int64_t>(offset));
    note_growth(error);
    raw::close(fd);
  });
  return start;
}

RingHeader* RingFile::add_ring(std::uint16_t record_id, std::uint32_t row_bytes, std::uint32_t ring_bytes,
                               std::uint32_t ring_id, std::uint32_t tid) noexcept {
  const std::uint32_t capacity = ring::capacity_rows(ring_bytes, row_bytes);
  const std::uint64_t bytes = whole_pages(kPageBytes + std::uint64_t{capacity} * row_bytes);
  const std::uint64_t offset = used_bytes();
  if (!is_intact() || offset + bytes > kMostBytes) return nullptr;
  const bool all = bytes <= first_space_bytes();
  void* start = map(offset, all ? bytes : first_space_bytes(), bytes);
  if (start == nullptr) return nullptr;
  auto* ring = static_cast<RingHeader*>(start);
  ring->ring_magic = container::kRingMagic;
  ring->record_id = record_id;
  ring->row_bytes = static_cast<std::uint16_t>(row_bytes);
  ring->ring_id = ring_id;
  ring->capacity_rows = capacity;
  ring->ring_bytes = bytes;
  ring->tid = tid;
  ring->row_mask = capacity - 1;
  ring->mark = 0;  // the first row sets it
  ring->space_end = all ? 0 : kFirstSpaceBytes / row_bytes;
  ring->offset_bytes = offset;
  used_bytes_.store(offset + bytes, std::memory_order_relaxed);
  std::atomic_ref(header_->used_bytes).store(offset + bytes, std::memory_order_release);
  return ring;
}

bool RingFile::give_space(RingHeader* ring) noexcept {
  const std::uint64_t offset = ring->offset_bytes, bytes = ring->ring_bytes;
  if (!is_intact() || !ring::is_intact(ring) || offset + bytes > used_bytes()) return false;
  const std::uint64_t has = space_bytes(ring);
  bool given = false;
  apart([&]() noexcept {
    const int fd = file_.open();
    if (fd < 0) return;
    const int error = allocate(fd, offset + has, bytes - has);
    given = error == 0;
    note_growth(error);
    raw::close(fd);
  });
  if (given) std::atomic_ref(ring->space_end).store(0, std::memory_order_relaxed);
  return given;
}

// Also false if the program has mapped something else over our page.
bool RingFile::is_intact() const noexcept {
  return header_ != nullptr && std::memcmp(header_->magic, container::kRingFileMagic, sizeof header_->magic) == 0;
}

void RingFile::count_lost_row() noexcept {
  if (is_intact()) std::atomic_ref(header_->lost_rows).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t RingFile::lost_rows() const noexcept { return is_intact() ? ring::relaxed(header_->lost_rows) : 0; }

void RingFile::forget_lost_rows(std::uint64_t reported) noexcept {
  if (is_intact()) std::atomic_ref(header_->lost_rows).fetch_sub(reported, std::memory_order_relaxed);
}

void RingFile::note_write_error(int error_number) noexcept {
  if (is_intact())
    std::atomic_ref(header_->write_error).store(static_cast<std::uint32_t>(error_number), std::memory_order_relaxed);
}

void RingFile::note_growth(int error) noexcept {
  if (error < 0 && is_intact())
    std::atomic_ref(header_->grow_error).store(static_cast<std::uint32_t>(-error), std::memory_order_relaxed);
}

int RingFile::grow_error() const noexcept {
  return is_intact() ? static_cast<int>(ring::relaxed(header_->grow_error)) : 0;
}

int RingFile::write_error() const noexcept {
  return is_intact() ? static_cast<int>(ring::relaxed(header_->write_error)) : 0;
}

void RingFile::forget_errors() noexcept {
  if (grow_error() != 0) std::atomic_ref(header_->grow_error).store(0, std::memory_order_relaxed);
  if (write_error() != 0) std::atomic_ref(header_->write_error).store(0, std::memory_order_relaxed);
}

void RingFile::remove() noexcept { file_.remove(); }

Status RingFile::put_back(RingHeader* const* rings, std::size_t count) noexcept {
  if (!is_intact()) return Status::failed("ring_gone", "", ESTALE);
  int error = 0;
  const int refused = apart([&]() noexcept {
    const int fd = file_.create();
    error = fd < 0 ? fd : move_into(fd, header_, page_bytes(), page_bytes(), 0);
    for (std::size_t i = 0; i < count && error == 0; ++i) {
      RingHeader* ring = rings[i];
      const std::uint64_t offset = ring->offset_bytes, bytes = ring->ring_bytes;
      const bool sane = ring::is_intact(ring) && offset + bytes <= used_bytes();
      error = sane ? move_into(fd, ring, space_bytes(ring), bytes, offset) : -ESTALE;
    }
    if (fd >= 0) raw::close(fd);
    if (fd >= 0 && error < 0) remove();
  });
  if (refused < 0) error = refused;
  without_file_ = error < 0;
  return error < 0 ? Status::failed("ring_not_created", "", error) : Status::ok();
}

void RingFile::forget() noexcept {
  if (is_intact()) replace_mapping(header_, page_bytes());
  header_ = nullptr;
  without_file_ = false;
  used_bytes_.store(0, std::memory_order_relaxed);
}

void replace_mapping(void* start, std::size_t bytes) noexcept {
  raw::mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace stashtrace
