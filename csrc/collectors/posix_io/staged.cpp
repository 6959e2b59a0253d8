// SPDX-License-Identifier: Apache-2.0
#include "collectors/posix_io/staged.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "collectors/posix_io/paths.h"
#include "core/raw_syscall.h"
#include "core/user_memory.h"

namespace stashtrace::posix_io {

// As packed by record/staged_files.py, little-endian: head, slots, texts that end in zero.
struct StagedList {
  struct Slot {
    std::uint64_t hash;       // 0: empty
    std::uint32_t key, copy;  // positions in the texts
    std::int64_t size_bytes;  // of the file as it was copied; kForgotten when it was changed since
    std::int64_t mtime_ns;    // used by the launcher only
  };
  std::uint64_t magic, slots_count, texts_bytes, reserved;

  const Slot* slots() const noexcept { return reinterpret_cast<const Slot*>(this + 1); }
  const char* texts() const noexcept { return reinterpret_cast<const char*>(slots() + slots_count); }
  // Empty for an invalid position.
  std::string_view text(std::uint32_t at) const noexcept {
    return at < texts_bytes ? texts() + at : std::string_view{};
  }
};

namespace {

constexpr std::uint64_t kMagic = 0x3230474154534853;  // "SHSTAG02"
constexpr std::uint64_t kMostSlots = 1ULL << 28;
constexpr std::int64_t kForgotten = -1;
constinit const char* g_path = nullptr;  // of the list; lives as long as the configuration
constexpr char kBack = '>';              // begins the key of an entry that leads from a copy to its file

// FNV-1a.
std::uint64_t hash_of(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325) noexcept {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash != 0 ? hash : 1;
}

// Constant time, since it runs in the constructor of every process; the slots are checked when they are used.
bool is_whole(const StagedList& list, std::size_t bytes) noexcept {
  if (bytes < sizeof list || list.magic != kMagic) return false;
  const std::uint64_t count = list.slots_count;
  if (count == 0 || count > kMostSlots || (count & (count - 1)) != 0 || list.texts_bytes == 0) return false;
  const std::size_t rest = bytes - sizeof list;
  if (rest < count * sizeof(StagedList::Slot) || rest - count * sizeof(StagedList::Slot) != list.texts_bytes)
    return false;
  return list.texts()[list.texts_bytes - 1] == '\0';
}

// The slot of a path, or of kBack and a path; null if there is none.
const StagedList::Slot* find(const StagedList& list, bool back, std::string_view path) noexcept {
  const std::uint64_t hash = back ? hash_of(path, hash_of({&kBack, 1})) : hash_of(path);
  const std::uint64_t mask = list.slots_count - 1;
  for (std::uint64_t n = 0; n <= mask; ++n) {
    const StagedList::Slot& slot = list.slots()[(hash + n) & mask];
    if (slot.hash == 0) return nullptr;
    if (slot.hash != hash) continue;
    std::string_view key = list.text(slot.key);
    if (back && key.starts_with(kBack)) key.remove_prefix(1);
    else if (back) continue;
    if (key == path) return &slot;
  }
  return nullptr;
}

// Separate, so that an absolute path needs no buffer.
__attribute__((noinline)) const StagedList::Slot* find_relative(const StagedList& list, int dirfd,
                                                                std::string_view path) noexcept {
  AbsolutePath whole;
  return make_absolute(dirfd, path, whole) ? find(list, false, whole.view()) : nullptr;
}

// The kernel has not looked at the pointer yet; a bad one must give the job EFAULT, not end it.
const StagedList::Slot* find_file(const StagedList& list, int dirfd, const char* path) noexcept {
  const std::size_t length = readable_length(path, kMaxPathBytes, false);
  if (length == kUnreadable || length == 0) return nullptr;
  return path[0] == '/' ? find(list, false, {path, length}) : find_relative(list, dirfd, {path, length});
}

}  // namespace

constinit std::atomic<const StagedList*> staged_list{nullptr};

bool open_staged_list(const char* path) noexcept {
  const int fd = raw::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat status{};
  void* mapped = nullptr;
  std::size_t bytes = 0;
  if (raw::fstat(fd, &status) == 0 && status.st_size > 0) {
    bytes = static_cast<std::size_t>(status.st_size);
    mapped = raw::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  }
  raw::close(fd);
  if (mapped == nullptr) return false;
  const auto* list = static_cast<const StagedList*>(mapped);
  if (!is_whole(*list, bytes)) {
    raw::munmap(mapped, bytes);
    return false;
  }
  g_path = path;
  staged_list.store(list, std::memory_order_release);
  return true;
}

StagedFile staged_file(const StagedList& list, int dirfd, const char* path) noexcept {
  const StagedList::Slot* slot = find_file(list, dirfd, path);
  if (slot == nullptr) return {};
  const std::int64_t size = __atomic_load_n(&slot->size_bytes, __ATOMIC_RELAXED);
  const std::string_view copy = list.text(slot->copy);
  return size == kForgotten || copy.empty() ? StagedFile{} : StagedFile{copy.data(), size};
}

std::string_view staged_original(std::string_view copy) noexcept {
  const StagedList* list = staged_list.load(std::memory_order_acquire);
  if (list == nullptr) return {};
  const StagedList::Slot* slot = find(*list, true, copy);
  return slot != nullptr ? list->text(slot->copy) : std::string_view{};
}

bool has_size(int fd, std::int64_t size_bytes) noexcept {
  struct stat status{};
  return raw::fstat(fd, &status) == 0 && status.st_size == size_bytes;
}

// Writes to the file, which all processes have mapped: a write to the mapping would be a SIGBUS where the disk is full.
// If that fails this process uses no copy any more.
void forget_staged(const StagedList& list, int dirfd, const char* path) noexcept {
  const StagedList::Slot* slot = find_file(list, dirfd, path);
  if (slot == nullptr) return;
  const std::int64_t offset = reinterpret_cast<const char*>(&slot->size_bytes) - reinterpret_cast<const char*>(&list);
  const int fd = raw::open(g_path, O_WRONLY | O_CLOEXEC);
  const bool written = fd >= 0 && raw::pwrite(fd, &kForgotten, sizeof kForgotten, offset) == sizeof kForgotten;
  if (fd >= 0) raw::close(fd);
  if (!written) staged_list.store(nullptr, std::memory_order_release);
}

}  // namespace stashtrace::posix_io
