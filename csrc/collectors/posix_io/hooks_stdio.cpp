// Hooks of FILE streams. SPDX-License-Identifier: Apache-2.0
//
// libc reads and writes under a stream without passing the PLT, so nothing is recorded twice and the descriptor's
// position cannot be tracked: rows of streams have no offset. Streams without a descriptor (fmemopen, fopencookie)
// are not I/O and not recorded.
#include <cstdio>
#include <cstring>

#include "collectors/posix_io/finish_open.h"
#include "collectors/posix_io/staged.h"
#include "collectors/posix_io/traced.h"
#include "core/user_memory.h"
#include "hooks/interpose.h"

using namespace stashtrace::posix_io;
namespace real = stashtrace::real;

namespace {

int descriptor_of(const FILE* stream) noexcept { return stream == nullptr ? -1 : stream->_fileno; }

// libc answers a request for no bytes without looking at the stream, which may then be anything.
bool is_stream(const FILE* stream) noexcept { return stream != nullptr && stashtrace::is_readable(&stream->_fileno); }

// moved(result) returns the bytes of a result, or minus errno.
template <class Call, class Moved>
[[gnu::always_inline]] inline auto on_stream(std::uint16_t op_code, const FILE* stream, std::size_t bytes, Call call,
                                             Moved moved) {
  if (!on() || !stashtrace::recording()) return call();
  const int fd = descriptor_of(stream);
  if (fd < 0) return call();
  const std::uint64_t word = word_for_use(fd, fd_table.at(fd)) | flag_bits(flag::stdio);
  if ((word & kOurs) != 0) return call();
  const std::uint64_t begin = begin_call(bytes);
  const auto result = call();
  const std::uint64_t end = stashtrace::now_ticks();
  record(op_code, word, -1, begin, end, moved(result));
  return result;
}

template <class Call>
std::size_t on_items(std::uint16_t op_code, const FILE* stream, std::size_t size, std::size_t count, Call call) {
  if (size * count == 0 && !is_stream(stream)) [[unlikely]]
    return call();
  return on_stream(op_code, stream, size * count, call,
                   [&](std::size_t items) { return static_cast<std::int64_t>(items * size); });
}
template <class Call>
char* on_line(const FILE* stream, int room, Call call) {
  if (room <= 1 && !is_stream(stream)) [[unlikely]]
    return call();
  return on_stream(op::fread, stream, 0, call,
                   [](const char* line) { return line == nullptr ? 0 : static_cast<std::int64_t>(std::strlen(line)); });
}
template <class Call>
ssize_t on_delimited(const void* line, const void* room, const FILE* stream, Call call) {
  if ((line == nullptr || room == nullptr) && !is_stream(stream)) [[unlikely]]
    return call();
  return on_stream(op::fread, stream, 0, call, [](ssize_t bytes) { return bytes < 0 ? 0 : std::int64_t{bytes}; });
}
template <class Call>
int on_text(const char* text, const FILE* stream, Call call) {
  return on_stream(op::fwrite, stream, 0, call,
                   [&](int result) { return result < 0 ? -errno : static_cast<std::int64_t>(std::strlen(text)); });
}
template <class Call>
int on_status(std::uint16_t op_code, const FILE* stream, Call call) {
  return on_stream(op_code, stream, 0, call, [](int result) { return result == 0 ? std::int64_t{0} : -errno; });
}

// call(path) opens.
template <class Call>
FILE* opening(const char* path, Purpose purpose, Call call) {
  if (!on()) return call(path);
  const bool asleep = stashtrace::paused();
  const std::uint64_t begin = asleep ? 0 : begin_call(0);
  bool staged = false;
  FILE* stream = open_staged(
      AT_FDCWD, path, purpose, staged, [&](int, const char* to) { return call(to); }, descriptor_of,
      [](FILE* opened) { real::fclose(opened); });
  if (asleep) {
    if (stream != nullptr) fd_table.clear(descriptor_of(stream));
    return stream;
  }
  finish_fopen(stream == nullptr, descriptor_of(stream), path, staged, begin, stashtrace::now_ticks());
  return stream;
}

// The old descriptor is gone (or reopened under the same number, when path is NULL). No copy: if opening fails, the
// stream is gone.
template <class Call>
FILE* reopening(const char* path, const char* mode, FILE* stream, Call call) {
  if (!on()) return call();
  const int fd = descriptor_of(stream);
  if (path == nullptr) return on_stream(op::fopen, stream, 0, call, [](FILE*) { return std::int64_t{0}; });
  if (fd >= 0) fd_table.clear(fd);
  if (purpose_of(mode) == Purpose::writing) forget_if_staged(AT_FDCWD, path);
  return opening(path, Purpose::other, [&](const char*) { return call(); });
}

}  // namespace

STASHTRACE_HOOK(FILE*, fopen, const char* path, const char* mode) {
  return opening(path, purpose_of(mode), [&](const char* to) { return real::fopen(to, mode); });
}
STASHTRACE_HOOK(FILE*, fopen64, const char* path, const char* mode) {
  return opening(path, purpose_of(mode), [&](const char* to) { return real::fopen64(to, mode); });
}
STASHTRACE_HOOK(FILE*, freopen, const char* path, const char* mode, FILE* stream) {
  return reopening(path, mode, stream, [&] { return real::freopen(path, mode, stream); });
}
STASHTRACE_HOOK(FILE*, freopen64, const char* path, const char* mode, FILE* stream) {
  return reopening(path, mode, stream, [&] { return real::freopen64(path, mode, stream); });
}
STASHTRACE_HOOK(FILE*, fdopen, int fd, const char* mode) {
  if (stashtrace::paused() || !on()) return real::fdopen(fd, mode);
  FdEntry& entry = fd_table.at(fd);
  const std::uint64_t word = word_for_use(fd, entry) | flag_bits(flag::stdio);
  const std::uint64_t begin = begin_call(0);
  FILE* stream = real::fdopen(fd, mode);
  const std::uint64_t end = stashtrace::now_ticks();
  entry.position.store(kUnknownPosition, std::memory_order_relaxed);
  if ((word & kOurs) == 0 && stashtrace::recording())
    record(op::fopen, word, -1, begin, end, stream != nullptr ? 0 : -errno);
  return stream;
}
STASHTRACE_HOOK(int, fclose, FILE* stream) {
  const int fd = descriptor_of(stream);
  if (!on() || fd < 0) return real::fclose(stream);
  const std::uint64_t word = fd_table.clear(fd) | flag_bits(flag::stdio);
  if (stashtrace::paused()) return real::fclose(stream);
  const std::uint64_t begin = begin_call(0);
  const int result = real::fclose(stream);
  const std::uint64_t end = stashtrace::now_ticks();
  if ((word & kOurs) == 0 && stashtrace::recording())
    record(op::fclose, word, -1, begin, end, result == 0 ? 0 : -errno);
  return result;
}

STASHTRACE_HOOK(std::size_t, fread, void* buffer, std::size_t size, std::size_t count, FILE* stream) {
  return on_items(op::fread, stream, size, count, [&] { return real::fread(buffer, size, count, stream); });
}
STASHTRACE_HOOK(std::size_t, fread_unlocked, void* buffer, std::size_t size, std::size_t count, FILE* stream) {
  return on_items(op::fread, stream, size, count, [&] { return real::fread_unlocked(buffer, size, count, stream); });
}
STASHTRACE_HOOK(std::size_t, __fread_chk, void* buffer, std::size_t room, std::size_t size, std::size_t count,
                FILE* stream) {
  return on_items(op::fread, stream, size, count, [&] { return real::__fread_chk(buffer, room, size, count, stream); });
}
STASHTRACE_HOOK(std::size_t, __fread_unlocked_chk, void* buffer, std::size_t room, std::size_t size, std::size_t count,
                FILE* stream) {
  return on_items(op::fread, stream, size, count,
                  [&] { return real::__fread_unlocked_chk(buffer, room, size, count, stream); });
}
STASHTRACE_HOOK(char*, fgets, char* buffer, int room, FILE* stream) {
  return on_line(stream, room, [&] { return real::fgets(buffer, room, stream); });
}
STASHTRACE_HOOK(char*, fgets_unlocked, char* buffer, int room, FILE* stream) {
  return on_line(stream, room, [&] { return real::fgets_unlocked(buffer, room, stream); });
}
STASHTRACE_HOOK(char*, __fgets_chk, char* buffer, std::size_t size, int room, FILE* stream) {
  return on_line(stream, room, [&] { return real::__fgets_chk(buffer, size, room, stream); });
}
STASHTRACE_HOOK(char*, __fgets_unlocked_chk, char* buffer, std::size_t size, int room, FILE* stream) {
  return on_line(stream, room, [&] { return real::__fgets_unlocked_chk(buffer, size, room, stream); });
}
STASHTRACE_HOOK(ssize_t, getline, char** line, std::size_t* room, FILE* stream) {
  return on_delimited(line, room, stream, [&] { return real::getline(line, room, stream); });
}
STASHTRACE_HOOK(ssize_t, getdelim, char** line, std::size_t* room, int delimiter, FILE* stream) {
  return on_delimited(line, room, stream, [&] { return real::getdelim(line, room, delimiter, stream); });
}
// What <stdio.h> turns getline into when optimising.
STASHTRACE_HOOK(ssize_t, __getdelim, char** line, std::size_t* room, int delimiter, FILE* stream) {
  return on_delimited(line, room, stream, [&] { return real::__getdelim(line, room, delimiter, stream); });
}

STASHTRACE_HOOK(std::size_t, fwrite, const void* buffer, std::size_t size, std::size_t count, FILE* stream) {
  return on_items(op::fwrite, stream, size, count, [&] { return real::fwrite(buffer, size, count, stream); });
}
STASHTRACE_HOOK(std::size_t, fwrite_unlocked, const void* buffer, std::size_t size, std::size_t count, FILE* stream) {
  return on_items(op::fwrite, stream, size, count, [&] { return real::fwrite_unlocked(buffer, size, count, stream); });
}
STASHTRACE_HOOK(int, fputs, const char* text, FILE* stream) {
  return on_text(text, stream, [&] { return real::fputs(text, stream); });
}
STASHTRACE_HOOK(int, fputs_unlocked, const char* text, FILE* stream) {
  return on_text(text, stream, [&] { return real::fputs_unlocked(text, stream); });
}

STASHTRACE_HOOK(int, fseek, FILE* stream, long offset, int whence) {
  return on_status(op::fseek, stream, [&] { return real::fseek(stream, offset, whence); });
}
STASHTRACE_HOOK(int, fseeko, FILE* stream, std::int64_t offset, int whence) {
  return on_status(op::fseek, stream, [&] { return real::fseeko(stream, offset, whence); });
}
STASHTRACE_HOOK(int, fseeko64, FILE* stream, std::int64_t offset, int whence) {
  return on_status(op::fseek, stream, [&] { return real::fseeko64(stream, offset, whence); });
}
STASHTRACE_HOOK(void, rewind, FILE* stream) {
  on_stream(
      op::fseek, stream, 0,
      [&] {
        real::rewind(stream);
        return 0;
      },
      [](int) { return std::int64_t{0}; });
}
// fflush(NULL), all streams at once, belongs to no file and is not recorded.
STASHTRACE_HOOK(int, fflush, FILE* stream) {
  return on_status(op::fflush, stream, [&] { return real::fflush(stream); });
}
STASHTRACE_HOOK(int, fflush_unlocked, FILE* stream) {
  return on_status(op::fflush, stream, [&] { return real::fflush_unlocked(stream); });
}
