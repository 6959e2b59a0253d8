// Hooks of mapped files. SPDX-License-Identifier: Apache-2.0
//
// Only the calls are seen; the page faults that read the file are not (docs/collectors/posix_io.md, blind spots).
// Allocators come through here for anonymous memory, so that path is two compares and a jump.
#include <sys/mman.h>

#include "collectors/posix_io/mappings.h"
#include "collectors/posix_io/traced.h"
#include "hooks/interpose.h"

using namespace stashtrace::posix_io;
namespace real = stashtrace::real;

namespace stashtrace::posix_io {
constinit Mappings mappings;
}

namespace {

template <class Call>
void* mapping(std::size_t length, int flags, int fd, std::int64_t offset, Call call) {
  if ((flags & MAP_ANONYMOUS) != 0 || fd < 0 || stashtrace::paused() || !on()) return call();
  const std::uint64_t word = word_for_use(fd, fd_table.at(fd));
  if ((word & kOurs) != 0) return call();
  const std::uint64_t begin = begin_call(0);
  void* address = call();
  const std::uint64_t end = stashtrace::now_ticks();
  if (address != MAP_FAILED) mappings.add(reinterpret_cast<std::uintptr_t>(address), word | kKnown);
  if (stashtrace::recording())
    record(op::mmap, word, offset, begin, end, address != MAP_FAILED ? static_cast<std::int64_t>(length) : -errno);
  return address;
}

// 0 if the address is not a mapped file or nothing is recorded.
std::uint64_t mapped_file(const void* address) noexcept {
  return on() ? mappings.find(reinterpret_cast<std::uintptr_t>(address)) : 0;
}

template <class Call>
int on_mapping(std::uint16_t op_code, std::uint64_t word, Call call) {
  if (stashtrace::paused()) return call();
  const std::uint64_t begin = begin_call(0);
  const int result = call();
  const std::uint64_t end = stashtrace::now_ticks();
  if (stashtrace::recording()) record(op_code, word, -1, begin, end, or_errno(result));
  return result;
}

}  // namespace

STASHTRACE_HOOK(void*, mmap, void* address, std::size_t length, int protection, int flags, int fd,
                std::int64_t offset) {
  return mapping(length, flags, fd, offset, [&] { return real::mmap(address, length, protection, flags, fd, offset); });
}
STASHTRACE_HOOK(void*, mmap64, void* address, std::size_t length, int protection, int flags, int fd,
                std::int64_t offset) {
  return mapping(length, flags, fd, offset,
                 [&] { return real::mmap64(address, length, protection, flags, fd, offset); });
}
STASHTRACE_HOOK(int, munmap, void* address, std::size_t length) {
  const std::uint64_t word = mapped_file(address);
  if (word == 0) return real::munmap(address, length);
  mappings.remove(reinterpret_cast<std::uintptr_t>(address));
  return on_mapping(op::munmap, word, [&] { return real::munmap(address, length); });
}
STASHTRACE_HOOK(int, msync, void* address, std::size_t length, int flags) {
  const std::uint64_t word = mapped_file(address);
  if (word == 0) return real::msync(address, length, flags);
  return on_mapping(op::msync, word, [&] { return real::msync(address, length, flags); });
}
STASHTRACE_HOOK(int, madvise, void* address, std::size_t length, int advice) {
  const std::uint64_t word = mapped_file(address);
  if (word == 0) return real::madvise(address, length, advice);
  return on_mapping(op::fadvise, word, [&] { return real::madvise(address, length, advice); });
}
