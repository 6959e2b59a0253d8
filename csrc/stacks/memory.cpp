// Implementation of memory.h. SPDX-License-Identifier: Apache-2.0
#include "stacks/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "core/raw_syscall.h"

namespace stashtrace::stacks {

namespace {

constexpr std::size_t kMostAtOnce = 128;  // pieces; the kernel takes 1,024
constexpr std::size_t kCopyBytes = 256 * 1024;

}  // namespace

// The kernel copies a signal mask before it finds that there is no such way to change one.
bool CheckedMemory::read(Address from, void* to, std::size_t bytes) noexcept {
  constexpr Address kPageBytes = 4096, kWordBytes = sizeof(raw::SignalMask);
  constexpr long kNoSuchWay = ~0L, kRefused = -EINVAL;
  if (from < kPageBytes || from + bytes < from) return false;
  for (Address at = from & ~(kWordBytes - 1); at < from + bytes; at = (at & ~(kPageBytes - 1)) + kPageBytes)
    if (raw::call(SYS_rt_sigprocmask, kNoSuchWay, static_cast<long>(at), 0, kWordBytes) != kRefused) return false;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return true;
}

bool GuardedMemory::works(Way way) noexcept {
  const std::uint64_t here = 0x5eed;
  std::uint64_t copy = 0;
  way_ = way;
  if (read(reinterpret_cast<Address>(&here), &copy, sizeof copy) && copy == here) return true;
  stop();
  return false;
}

bool GuardedMemory::make_copy() noexcept {
  constexpr unsigned kCloseOnExec = 1;  // MFD_CLOEXEC
  fd_ = static_cast<int>(raw::call(SYS_memfd_create, raw::address("stashtrace"), kCloseOnExec));
  if (fd_ < 0 || raw::ftruncate(fd_, kCopyBytes) != 0) return false;
  copy_ = static_cast<std::byte*>(raw::mmap(nullptr, kCopyBytes, PROT_READ, MAP_SHARED, fd_, 0));
  if (copy_ == nullptr) return false;
  raw::madvise(copy_, kCopyBytes, MADV_DONTFORK);
  return has_copy();
}

// The job may set a limit of the size of files at any time.
bool GuardedMemory::has_copy() noexcept {
  const std::byte last{};
  return raw::pwrite(fd_, &last, 1, kCopyBytes - 1) == 1;
}

bool GuardedMemory::start(bool may_open) noexcept {
  pid_ = raw::getpid();
  may_open_ = may_open;
  fd_ = -1;  // a forked child begins again: neither is in it
  copy_ = nullptr;
  if (may_open && make_copy() && works(Way::copy)) return true;
  return start_without_copy();
}

bool GuardedMemory::start_without_copy() noexcept {
  stop();
  if (works(Way::call)) return true;
  if (!may_open_) return false;
  // A filter of system calls may forbid that (Docker's default one, under kernels before 4.8).
  fd_ = raw::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  return fd_ >= 0 && works(Way::file);
}

void GuardedMemory::stop() noexcept {
  if (copy_ != nullptr) raw::munmap(copy_, kCopyBytes);
  if (fd_ >= 0) raw::close(fd_);
  copy_ = nullptr;
  fd_ = -1;
  way_ = Way::none;
}

bool GuardedMemory::read(Address from, void* to, std::size_t bytes) noexcept {
  const Piece piece{from, to, bytes};
  return read(&piece, 1) == 1;
}

std::size_t GuardedMemory::read(const Piece* pieces, std::size_t count) noexcept {
  std::size_t done = 0;
  while (done < count) {
    std::size_t here = 0;
    for (std::size_t bytes = 0; done + here < count && here < kMostAtOnce; ++here) {
      bytes += pieces[done + here].bytes;
      if (bytes > kCopyBytes) break;
    }
    if (here == 0) return done;
    const std::size_t whole = read_at_once(pieces + done, here);
    done += whole;
    if (whole < here && (way_ != Way::copy || has_copy() || !start_without_copy())) return done;
  }
  return done;
}

std::size_t GuardedMemory::read_at_once(const Piece* pieces, std::size_t count) noexcept {
  if (way_ == Way::file) {
    std::size_t done = 0;
    while (done < count &&
           raw::pread(fd_, pieces[done].to, pieces[done].bytes, static_cast<std::int64_t>(pieces[done].from)) ==
               static_cast<long>(pieces[done].bytes))
      ++done;
    return done;
  }
  iovec from[kMostAtOnce], to[kMostAtOnce];
  for (std::size_t i = 0; i < count; ++i) {
    from[i] = {reinterpret_cast<void*>(pieces[i].from), pieces[i].bytes};
    to[i] = {pieces[i].to, pieces[i].bytes};
  }
  long read = -1;
  if (way_ == Way::copy) read = raw::pwritev(fd_, from, static_cast<int>(count), 0);
  if (way_ == Way::call)
    read = raw::call(SYS_process_vm_readv, pid_, raw::address(to), static_cast<long>(count), raw::address(from),
                     static_cast<long>(count), 0);
  std::size_t whole = 0;
  std::size_t at = 0;
  for (; whole < count && read >= static_cast<long>(at + pieces[whole].bytes); at += pieces[whole++].bytes)
    if (way_ == Way::copy) std::memcpy(pieces[whole].to, copy_ + at, pieces[whole].bytes);
  return whole;
}

bool PrefetchedMemory::plan(Address from, std::size_t bytes) noexcept {
  const std::size_t room = (bytes + 7) & ~std::size_t{7};
  if (planned_ == kMostPieces || kRoomBytes - used_bytes_ < room) return false;
  pieces_[planned_++] = {from, room_ + used_bytes_, bytes};
  used_bytes_ += room;
  return true;
}

bool PrefetchedMemory::fetch() noexcept {
  // What cannot be read is left out, and the rest tried again: one object that is gone costs a call.
  bool all = true;
  while (count_ < planned_) {
    count_ += guarded_.read(pieces_ + count_, planned_ - count_);
    if (count_ == planned_) break;
    std::copy(pieces_ + count_ + 1, pieces_ + planned_, pieces_ + count_);
    --planned_;
    all = false;
  }
  return all;
}

std::uint64_t PrefetchedMemory::hash_of_pieces(std::size_t begin, std::size_t end, std::size_t skipped,
                                               std::uint64_t seed) const noexcept {
  // Multiplies 64 by 64 bits and folds the product, 16 bytes at a time, as wyhash does.
  constexpr std::uint64_t kFirst = 0xa0761d6478bd642f, kSecond = 0xe7037ed1a0b428db;
  const auto mixed = [](std::uint64_t a, std::uint64_t b) noexcept {
    const auto product = static_cast<unsigned __int128>(a ^ kFirst) * (b ^ kSecond);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  std::uint64_t hash = seed;
  for (std::size_t i = begin; i < end; ++i) {
    const Piece& piece = pieces_[i];
    hash = mixed(hash ^ piece.from, hash + piece.bytes);
    const auto* bytes = static_cast<const std::byte*>(piece.to);
    for (std::size_t at = skipped; at < piece.bytes; at += 16) {
      std::uint64_t words[2] = {};
      std::memcpy(words, bytes + at, std::min<std::size_t>(sizeof words, piece.bytes - at));
      hash = mixed(hash ^ words[0], hash + words[1]);
    }
  }
  return hash;
}

bool PrefetchedMemory::read(Address from, void* to, std::size_t bytes) noexcept {
  for (std::size_t looked = 0, at = cursor_; looked < count_; ++looked, ++at) {
    if (at >= count_) at = 0;
    const Piece& piece = pieces_[at];
    if (from < piece.from || from - piece.from > piece.bytes || bytes > piece.bytes - (from - piece.from)) continue;
    std::memcpy(to, static_cast<const std::byte*>(piece.to) + (from - piece.from), bytes);
    cursor_ = at;
    return true;
  }
  ++others_;
  return guarded_.read(from, to, bytes);
}

}  // namespace stashtrace::stacks
