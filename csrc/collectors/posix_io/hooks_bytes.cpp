// Hooks of calls that move bytes through a descriptor. SPDX-License-Identifier: Apache-2.0

#include "collectors/posix_io/traced.h"
#include "core/user_memory.h"
#include "hooks/interpose.h"

using namespace stashtrace::posix_io;
namespace real = stashtrace::real;

// The fortified variants themselves abort the process when the buffer is too small; we leave that to them.
STASHTRACE_HOOK(ssize_t, read, int fd, void* buffer, std::size_t bytes) {
  return at_position<op::read, op::recv, real::read>(bytes, fd, buffer, bytes);
}
STASHTRACE_HOOK(ssize_t, __read_chk, int fd, void* buffer, std::size_t bytes, std::size_t room) {
  return at_position<op::read, op::recv, real::__read_chk>(bytes, fd, buffer, bytes, room);
}
STASHTRACE_HOOK(ssize_t, pread, int fd, void* buffer, std::size_t bytes, std::int64_t offset) {
  return on_descriptor<op::pread, real::pread>(offset, bytes, fd, buffer, bytes, offset);
}
STASHTRACE_HOOK(ssize_t, pread64, int fd, void* buffer, std::size_t bytes, std::int64_t offset) {
  return on_descriptor<op::pread, real::pread64>(offset, bytes, fd, buffer, bytes, offset);
}
STASHTRACE_HOOK(ssize_t, __pread_chk, int fd, void* buffer, std::size_t bytes, std::int64_t offset, std::size_t room) {
  return on_descriptor<op::pread, real::__pread_chk>(offset, bytes, fd, buffer, bytes, offset, room);
}
STASHTRACE_HOOK(ssize_t, __pread64_chk, int fd, void* buffer, std::size_t bytes, std::int64_t offset,
                std::size_t room) {
  return on_descriptor<op::pread, real::__pread64_chk>(offset, bytes, fd, buffer, bytes, offset, room);
}

// Lengths of vectors are not summed before the call: the array may be unreadable, and the answer is then EFAULT.
STASHTRACE_HOOK(ssize_t, readv, int fd, const iovec* parts, int count) {
  return at_position<op::readv, op::recv, real::readv>(0, fd, parts, count);
}
STASHTRACE_HOOK(ssize_t, preadv, int fd, const iovec* parts, int count, std::int64_t offset) {
  return on_descriptor<op::preadv, real::preadv>(offset, 0, fd, parts, count, offset);
}
STASHTRACE_HOOK(ssize_t, preadv64, int fd, const iovec* parts, int count, std::int64_t offset) {
  return on_descriptor<op::preadv, real::preadv64>(offset, 0, fd, parts, count, offset);
}
// Offset -1 of the second versions means: at the descriptor's position.
STASHTRACE_HOOK(ssize_t, preadv2, int fd, const iovec* parts, int count, std::int64_t offset, int flags) {
  if (offset == -1) return at_position<op::preadv, op::recv, real::preadv2>(0, fd, parts, count, offset, flags);
  return on_descriptor<op::preadv, real::preadv2>(offset, 0, fd, parts, count, offset, flags);
}
STASHTRACE_HOOK(ssize_t, preadv64v2, int fd, const iovec* parts, int count, std::int64_t offset, int flags) {
  if (offset == -1) return at_position<op::preadv, op::recv, real::preadv64v2>(0, fd, parts, count, offset, flags);
  return on_descriptor<op::preadv, real::preadv64v2>(offset, 0, fd, parts, count, offset, flags);
}

STASHTRACE_HOOK(ssize_t, write, int fd, const void* buffer, std::size_t bytes) {
  return at_position<op::write, op::send, real::write>(bytes, fd, buffer, bytes);
}
STASHTRACE_HOOK(ssize_t, pwrite, int fd, const void* buffer, std::size_t bytes, std::int64_t offset) {
  return on_descriptor<op::pwrite, real::pwrite>(offset, bytes, fd, buffer, bytes, offset);
}
STASHTRACE_HOOK(ssize_t, pwrite64, int fd, const void* buffer, std::size_t bytes, std::int64_t offset) {
  return on_descriptor<op::pwrite, real::pwrite64>(offset, bytes, fd, buffer, bytes, offset);
}
STASHTRACE_HOOK(ssize_t, writev, int fd, const iovec* parts, int count) {
  return at_position<op::writev, op::send, real::writev>(0, fd, parts, count);
}
STASHTRACE_HOOK(ssize_t, pwritev, int fd, const iovec* parts, int count, std::int64_t offset) {
  return on_descriptor<op::pwritev, real::pwritev>(offset, 0, fd, parts, count, offset);
}
STASHTRACE_HOOK(ssize_t, pwritev64, int fd, const iovec* parts, int count, std::int64_t offset) {
  return on_descriptor<op::pwritev, real::pwritev64>(offset, 0, fd, parts, count, offset);
}
STASHTRACE_HOOK(ssize_t, pwritev2, int fd, const iovec* parts, int count, std::int64_t offset, int flags) {
  if (offset == -1) return at_position<op::pwritev, op::send, real::pwritev2>(0, fd, parts, count, offset, flags);
  return on_descriptor<op::pwritev, real::pwritev2>(offset, 0, fd, parts, count, offset, flags);
}
STASHTRACE_HOOK(ssize_t, pwritev64v2, int fd, const iovec* parts, int count, std::int64_t offset, int flags) {
  if (offset == -1) return at_position<op::pwritev, op::send, real::pwritev64v2>(0, fd, parts, count, offset, flags);
  return on_descriptor<op::pwritev, real::pwritev64v2>(offset, 0, fd, parts, count, offset, flags);
}

namespace {

// lseek returns the new position, which is stored as offset_bytes of its row; no bytes move.
template <class Call>
std::int64_t seeking(int fd, Call call) {
  if (stashtrace::paused() || !on()) return call();
  FdEntry& entry = fd_table.at(fd);
  const std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  const std::uint64_t begin = begin_call(0);
  const std::int64_t position = call();
  const std::uint64_t end = stashtrace::now_ticks();
  if (position >= 0 && (word & (kAppend | kNamed)) == kNamed) entry.position.store(position, std::memory_order_relaxed);
  if (stashtrace::recording() && (word & kOurs) == 0)
    record(op::lseek, word, position, begin, end, position >= 0 ? 0 : -errno);
  return position;
}

// sendfile, copy_file_range, splice: the row has the path and place of the file that is read from.
template <class Call>
ssize_t between(int in, std::int64_t* in_offset, int out, std::int64_t* out_offset, std::size_t bytes, Call call) {
  if (stashtrace::paused() || !on()) return call();
  FdEntry& source = fd_table.at(in);
  FdEntry& target = fd_table.at(out);
  const std::uint64_t source_word = word_for_use(in, source);
  const std::uint64_t target_word = word_for_use(out, target);
  const std::uint64_t begin = begin_call(bytes);
  const ssize_t result = call();
  const std::uint64_t end = stashtrace::now_ticks();
  std::int64_t offset = -1;
  if (in_offset == nullptr) offset = source.advance(result);
  // The pointer is only known to be good if bytes were moved: splice of none does not look at it.
  else if (result > 0 || (result == 0 && stashtrace::all_readable(in_offset, sizeof *in_offset)))
    offset = *in_offset - result;
  if (out_offset == nullptr) target.advance(result);
  if (!stashtrace::recording() || ((source_word | target_word) & kOurs) != 0) return result;
  // From a pipe into a file (splice), the row describes the file.
  const bool from_pipe = (flags_of(source_word) & flag::pipe) != 0 && (flags_of(target_word) & flag::pipe) == 0;
  const std::uint64_t flags = flag_bits(flags_of(source_word) | flags_of(target_word));
  record(op::sendfile, path_of(from_pipe ? target_word : source_word) | flags, offset, begin, end, or_errno(result));
  return result;
}

// posix_f* functions return the error instead of setting errno.
template <class Call>
int returning_error(std::uint16_t op_code, int fd, std::int64_t offset, Call call) {
  if (!on() || !stashtrace::recording()) return call();
  const std::uint64_t word = word_for_use(fd, fd_table.at(fd));
  if ((word & kOurs) != 0) return call();
  const std::uint64_t begin = begin_call(0);
  const int error = call();
  record(op_code, word, offset, begin, stashtrace::now_ticks(), -static_cast<std::int64_t>(error));
  return error;
}

}  // namespace

STASHTRACE_HOOK(std::int64_t, lseek, int fd, std::int64_t offset, int whence) {
  return seeking(fd, [=] { return real::lseek(fd, offset, whence); });
}
STASHTRACE_HOOK(std::int64_t, lseek64, int fd, std::int64_t offset, int whence) {
  return seeking(fd, [&] { return real::lseek64(fd, offset, whence); });
}
STASHTRACE_HOOK(ssize_t, sendfile, int out, int in, std::int64_t* offset, std::size_t bytes) {
  return between(in, offset, out, nullptr, bytes, [&] { return real::sendfile(out, in, offset, bytes); });
}
STASHTRACE_HOOK(ssize_t, sendfile64, int out, int in, std::int64_t* offset, std::size_t bytes) {
  return between(in, offset, out, nullptr, bytes, [&] { return real::sendfile64(out, in, offset, bytes); });
}
STASHTRACE_HOOK(ssize_t, copy_file_range, int in, std::int64_t* in_offset, int out, std::int64_t* out_offset,
                std::size_t bytes, unsigned int flags) {
  return between(in, in_offset, out, out_offset, bytes,
                 [&] { return real::copy_file_range(in, in_offset, out, out_offset, bytes, flags); });
}
STASHTRACE_HOOK(ssize_t, splice, int in, std::int64_t* in_offset, int out, std::int64_t* out_offset, std::size_t bytes,
                unsigned int flags) {
  return between(in, in_offset, out, out_offset, bytes,
                 [&] { return real::splice(in, in_offset, out, out_offset, bytes, flags); });
}

STASHTRACE_HOOK(int, fsync, int fd) { return on_descriptor<op::fsync, real::fsync>(-1, 0, fd); }
STASHTRACE_HOOK(int, fdatasync, int fd) { return on_descriptor<op::fsync, real::fdatasync>(-1, 0, fd); }
STASHTRACE_HOOK(int, sync_file_range, int fd, std::int64_t offset, std::int64_t bytes, unsigned int flags) {
  return on_descriptor<op::fsync, real::sync_file_range>(offset, 0, fd, offset, bytes, flags);
}
STASHTRACE_HOOK(int, ftruncate, int fd, std::int64_t length) {
  return on_descriptor<op::truncate, real::ftruncate>(length, 0, fd, length);
}
STASHTRACE_HOOK(int, ftruncate64, int fd, std::int64_t length) {
  return on_descriptor<op::truncate, real::ftruncate64>(length, 0, fd, length);
}
STASHTRACE_HOOK(int, fallocate, int fd, int mode, std::int64_t offset, std::int64_t bytes) {
  return on_descriptor<op::truncate, real::fallocate>(offset, 0, fd, mode, offset, bytes);
}
STASHTRACE_HOOK(int, fallocate64, int fd, int mode, std::int64_t offset, std::int64_t bytes) {
  return on_descriptor<op::truncate, real::fallocate64>(offset, 0, fd, mode, offset, bytes);
}
STASHTRACE_HOOK(int, posix_fallocate, int fd, std::int64_t offset, std::int64_t bytes) {
  return returning_error(op::truncate, fd, offset, [&] { return real::posix_fallocate(fd, offset, bytes); });
}
STASHTRACE_HOOK(int, posix_fallocate64, int fd, std::int64_t offset, std::int64_t bytes) {
  return returning_error(op::truncate, fd, offset, [&] { return real::posix_fallocate64(fd, offset, bytes); });
}
STASHTRACE_HOOK(int, posix_fadvise, int fd, std::int64_t offset, std::int64_t bytes, int advice) {
  return returning_error(op::fadvise, fd, offset, [&] { return real::posix_fadvise(fd, offset, bytes, advice); });
}
STASHTRACE_HOOK(int, posix_fadvise64, int fd, std::int64_t offset, std::int64_t bytes, int advice) {
  return returning_error(op::fadvise, fd, offset, [&] { return real::posix_fadvise64(fd, offset, bytes, advice); });
}
STASHTRACE_HOOK(ssize_t, readahead, int fd, std::int64_t offset, std::size_t bytes) {
  return on_descriptor<op::fadvise, real::readahead>(offset, 0, fd, offset, bytes);
}
