// Growth of the table, and identifying descriptors. SPDX-License-Identifier: Apache-2.0
//
// Only raw system calls: this code runs inside hooks, in signal handlers, and must leave errno alone.
#include "collectors/posix_io/fd_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "collectors/posix_io/paths.h"
#include "core/raw_syscall.h"

namespace stashtrace::posix_io {

constinit FdTable fd_table;

namespace {

namespace flag = schema::codes::IoFlag;

// Devices seen so far: (device << 2) | (is network << 1) | 1. A full cache costs one fstatfs per descriptor.
constinit std::atomic<std::uint64_t> device_cache[64] = {};

bool is_network_magic(std::uint64_t magic) noexcept {
  constexpr std::uint64_t kNetwork[] = {
      NFS_SUPER_MAGIC,       0x65735546 /* FUSE */,   0x0bd00bd0 /* Lustre */, 0xff534d42 /* CIFS */,
      0xfe534d42 /* SMB2 */, SMB_SUPER_MAGIC,         0x00c36400 /* Ceph */,   0x01021997 /* 9p */,
      0x47504653 /* GPFS */, 0x19830326 /* BeeGFS */, AFS_SUPER_MAGIC,         0x5346414f /* kAFS */,
      CODA_SUPER_MAGIC,      0x7461636f /* OCFS2 */,  0x01161970 /* GFS2 */,   0x013111a8 /* IBRIX */,
  };
  return std::find(std::begin(kNetwork), std::end(kNetwork), magic) != std::end(kNetwork);
}

// The functions that ask the kernel are not inlined: their answers would all lie on the stack at once.
[[gnu::noinline]] long magic_of_file_system(int fd) noexcept {
  struct statfs fs = {};
  return raw::call(SYS_fstatfs, fd, raw::address(&fs)) == 0 ? static_cast<long>(fs.f_type) : -1;
}
[[gnu::noinline]] bool kind_of(int fd, std::uint32_t& mode, std::uint64_t& device) noexcept {
  struct stat status = {};
  if (raw::call(SYS_fstat, fd, raw::address(&status)) != 0) return false;
  mode = status.st_mode;
  device = status.st_dev;
  return true;
}
[[gnu::noinline]] std::uint32_t peer_of(int fd) noexcept {
  sockaddr_storage address = {};
  unsigned length = sizeof address;
  if (raw::call(SYS_getpeername, fd, raw::address(&address), raw::address(&length)) != 0) return 0;
  return address_id(reinterpret_cast<const sockaddr*>(&address), length);
}

bool on_network(int fd, std::uint64_t device) noexcept {
  const std::uint64_t key = (device << 2) | 1;
  std::atomic<std::uint64_t>* slot = nullptr;
  for (std::atomic<std::uint64_t>& cached : device_cache) {
    const std::uint64_t value = cached.load(std::memory_order_relaxed);
    if ((value & ~2ULL) == key) return (value & 2) != 0;
    if (value == 0) {
      slot = &cached;
      break;
    }
  }
  const long magic = magic_of_file_system(fd);
  if (magic < 0) return false;
  const bool network = is_network_magic(static_cast<std::uint32_t>(magic));
  std::uint64_t empty = 0;
  if (slot != nullptr) slot->compare_exchange_strong(empty, key | (network ? 2 : 0), std::memory_order_relaxed);
  return network;
}

std::uint16_t kind_flags(int fd, std::uint32_t mode, std::uint64_t device) noexcept {
  if (S_ISREG(mode) || S_ISDIR(mode) || S_ISBLK(mode)) return on_network(fd, device) ? flag::network_fs : 0;
  if (S_ISSOCK(mode)) return flag::socket;
  return flag::pipe;  // fifo, character device, and the files without type of eventfd, epoll, ...
}

std::uint64_t name_of_open_descriptor(int fd, std::uint32_t mode) noexcept {
  if (S_ISSOCK(mode)) return kNamed | peer_of(fd);
  const PathName name = descriptor_name(fd);
  return kNamed | (name.ours ? kOurs : 0) | (name.staged ? flag_bits(flag::staged) : 0) | name.id;
}

}  // namespace

std::uint64_t identify_from(int fd, FdEntry& entry, std::uint64_t word, std::uint32_t mode,
                            std::uint64_t device) noexcept {
  std::uint64_t bits = word | kKnown | flag_bits(kind_flags(fd, mode, device));
  if ((word & kNamed) == 0) {
    bits |= name_of_open_descriptor(fd, mode);
    const long open_flags = raw::call(SYS_fcntl, fd, F_GETFL, 0);
    if (open_flags >= 0 && (open_flags & O_DIRECT) != 0) bits |= flag_bits(flag::direct);
    if (open_flags >= 0 && (open_flags & O_APPEND) != 0) bits |= kAppend;
  }
  // Lost to a close or another thread: our result is still right for this call.
  if (fd_table.holds(entry)) entry.word.compare_exchange_strong(word, bits, std::memory_order_relaxed);
  return bits;
}

std::uint64_t identify(int fd, FdEntry& entry, std::uint64_t word) noexcept {
  std::uint32_t mode = 0;
  std::uint64_t device = 0;
  return kind_of(fd, mode, device) ? identify_from(fd, entry, word, mode, device) : word;
}

FdEntry& FdTable::beyond(unsigned index) noexcept {
  const unsigned number = index / kChunkEntries;
  if (number >= kChunks) return unreachable_;
  FdEntry* chunk = chunks_[number].load(std::memory_order_acquire);
  if (chunk == nullptr) {
    constexpr std::size_t kBytes = sizeof(FdEntry) * kChunkEntries;
    const long address = raw::call(SYS_mmap, 0, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address < 0 && address >= -4095) return unreachable_;
    FdEntry* fresh = reinterpret_cast<FdEntry*>(address);
    for (int i = 0; i < kChunkEntries; ++i) new (fresh + i) FdEntry;
    if (chunks_[number].compare_exchange_strong(chunk, fresh, std::memory_order_acq_rel)) chunk = fresh;
    else raw::call(SYS_munmap, address, kBytes);
  }
  return chunk[index % kChunkEntries];
}

void FdTable::note(int fd) noexcept {
  int highest = highest_.load(std::memory_order_relaxed);
  while (fd > highest && !highest_.compare_exchange_weak(highest, fd, std::memory_order_relaxed)) {
  }
}

void FdTable::set(int fd, std::uint64_t bits, std::int64_t position) noexcept {
  FdEntry& entry = at(fd);
  if (!holds(entry)) return;
  note(fd);
  const std::uint64_t generation = entry.word.load(std::memory_order_relaxed) & kGenerationMask;
  entry.position.store(position, std::memory_order_relaxed);
  entry.word.store((generation + kGenerationUnit) | bits, std::memory_order_relaxed);
}

std::uint64_t FdTable::clear(int fd) noexcept {
  FdEntry& entry = at(fd);
  const std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  if ((word & ~kGenerationMask) != 0)
    entry.word.store((word & kGenerationMask) + kGenerationUnit, std::memory_order_relaxed);
  entry.position.store(kUnknownPosition, std::memory_order_relaxed);
  return word;
}

void FdTable::clear_range(unsigned first, unsigned last) noexcept {
  const int highest = highest_.load(std::memory_order_relaxed);
  // Descriptors that were only identified, never set, are not counted in highest_: those of the first chunk are
  // cleared all the same, higher ones keep their entry until they are made again.
  const unsigned end = std::min<unsigned>(last, std::max(highest, kChunkEntries - 1));
  for (unsigned fd = first; fd <= end && fd < static_cast<unsigned>(kChunks * kChunkEntries); ++fd)
    clear(static_cast<int>(fd));
}

void FdTable::copy(int from, int to) noexcept {
  FdEntry& source = at(from);
  source.position.store(kUnknownPosition, std::memory_order_relaxed);
  set(to, source.word.load(std::memory_order_relaxed) & ~kGenerationMask, kUnknownPosition);
}

void FdTable::forget_positions() noexcept {
  const int highest = std::max(highest_.load(std::memory_order_relaxed), kChunkEntries - 1);
  for (int fd = 0; fd <= highest; ++fd) {
    FdEntry& entry = at(fd);
    if (entry.position.load(std::memory_order_relaxed) >= 0)
      entry.position.store(kUnknownPosition, std::memory_order_relaxed);
  }
}

}  // namespace stashtrace::posix_io
