// Implementation of segment_writer.h. SPDX-License-Identifier: Apache-2.0
#include "core/segment_writer.h"

#include <cerrno>
#include <cstring>

#include "core/apart.h"
#include "core/crc32.h"
#include "core/raw_syscall.h"

namespace stashtrace {

namespace {

// Writes everything or returns an error; signals are blocked, so there is no EINTR.
int write_all(int fd, iovec* parts, int count, std::uint64_t offset) noexcept {
  while (count > 0) {
    long written = raw::pwritev(fd, parts, count, static_cast<std::int64_t>(offset));
    if (written == -EFBIG) raw::consume_pending(SIGXFSZ);
    if (written < 0) return static_cast<int>(written);
    if (written == 0) return -ENOSPC;
    offset += static_cast<std::uint64_t>(written);
    for (; count > 0 && static_cast<std::size_t>(written) >= parts->iov_len; ++parts, --count)
      written -= static_cast<long>(parts->iov_len);
    if (count > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + written;
      parts->iov_len -= static_cast<std::size_t>(written);
    }
  }
  return 0;
}

iovec part(const void* data, std::size_t bytes) noexcept { return {const_cast<void*>(data), bytes}; }

}  // namespace

Status SegmentWriter::create(std::string_view field_table, std::string_view metadata) noexcept {
  const int fd = file_.create();
  if (fd < 0) return Status::failed("stash_not_created", "", fd);
  container::FileHeader header{};
  std::memcpy(header.magic, container::kFileMagic, sizeof header.magic);
  header.container_major = container::kContainerMajor;
  header.container_minor = container::kContainerMinor;
  header.header_bytes = sizeof header;
  header.field_table_bytes = static_cast<std::uint32_t>(field_table.size());
  header.metadata_bytes = static_cast<std::uint32_t>(metadata.size());
  const std::size_t text_end = sizeof header + field_table.size() + metadata.size();
  header.data_offset_bytes = (text_end + 7) / 8 * 8;
  header.header_crc32 = crc32(crc32(0, field_table.data(), field_table.size()), metadata.data(), metadata.size());
  static constexpr char kPadding[8] = {};
  iovec parts[] = {part(&header, sizeof header), part(field_table.data(), field_table.size()),
                   part(metadata.data(), metadata.size()), part(kPadding, header.data_offset_bytes - text_end)};
  const int error = write_all(fd, parts, 4, 0);
  raw::close(fd);
  if (error < 0) {
    file_.remove();
    return Status::failed("stash_not_written", "", error);
  }
  end_bytes_ = header.data_offset_bytes;
  segments_count_ = 0;
  return Status::ok();
}

int SegmentWriter::append_to(int fd, const Due& due) noexcept {
  const container::RingHeader& ring = *due.ring;
  const ring::Batch& batch = due.batch;
  container::SegmentHeader header{};
  header.sync_word = container::kSyncWord;
  header.record_id = ring.record_id;
  header.codec = container::kRaw;
  header.tid = ring.tid;
  header.ring_id = ring.ring_id;
  header.row_count = static_cast<std::uint32_t>(batch.count);
  header.first_sequence = batch.first;
  header.payload_bytes = static_cast<std::uint32_t>(batch.piece_bytes[0] + batch.piece_bytes[1]);
  header.payload_crc32 = crc32(crc32(0, batch.piece[0], batch.piece_bytes[0]), batch.piece[1], batch.piece_bytes[1]);
  header.header_crc32 = crc32(0, &header, offsetof(container::SegmentHeader, header_crc32));
  iovec parts[] = {part(&header, sizeof header), part(batch.piece[0], batch.piece_bytes[0]),
                   part(batch.piece[1], batch.piece_bytes[1])};
  const int error = write_all(fd, parts, 3, written_bytes());
  if (error < 0) {
    raw::ftruncate(fd, static_cast<std::int64_t>(written_bytes()));
    return error;
  }
  end_bytes_.fetch_add(sizeof header + header.payload_bytes, std::memory_order_relaxed);
  segments_count_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

Status SegmentWriter::append(const Due* due, std::size_t count, std::size_t& written) noexcept {
  int error = 0;
  written = 0;
  const int refused = apart([&]() noexcept {
    const int fd = file_.open();
    if (fd < 0) {
      error = fd;
      return;
    }
    while (written < count && (error = append_to(fd, due[written])) == 0) ++written;
    raw::close(fd);
  });
  if (refused < 0) return Status::failed("no_thread_to_write", "", refused);
  if (error < 0) return Status::failed("stash_not_written", "", error);
  return Status::ok();
}

void SegmentWriter::forget() noexcept {
  end_bytes_ = 0;
  segments_count_ = 0;
}

}  // namespace stashtrace
