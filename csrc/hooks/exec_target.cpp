// Implementation of exec_target.h: ELF headers by pread. SPDX-License-Identifier: Apache-2.0
#include "hooks/exec_target.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/raw_syscall.h"

namespace stashtrace {

namespace {

constexpr int kMostScripts = 4;  // as many as the kernel follows
constexpr unsigned kMostHeaders = 64;
constexpr unsigned kMostNeeded = 256;

// Libraries that end the process when another library was loaded before them.
bool wants_to_be_first(std::string_view name) noexcept {
  for (const std::string_view prefix : {"libasan.so", "libhwasan.so", "libclang_rt.asan", "libclang_rt.hwasan"})
    if (name.starts_with(prefix)) return true;
  return false;
}

// The loader of glibc under its names; ours is built against glibc only.
bool is_own_loader(std::string_view path) noexcept {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("ld-linux") || name.starts_with("ld-lsb") || name.starts_with("ld-2.");
}

class File {
 public:
  explicit File(const char* path) noexcept : fd_(raw::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) raw::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool open() const noexcept { return fd_ >= 0; }
  template <class T>
  bool read(T& out, std::uint64_t offset) const noexcept {
    return raw::pread(fd_, &out, sizeof out, static_cast<std::int64_t>(offset)) == static_cast<long>(sizeof out);
  }
  // Ends in zero; cut at the end of the buffer.
  template <std::size_t N>
  std::string_view text(char (&buffer)[N], std::uint64_t offset) const noexcept {
    const long got = raw::pread(fd_, buffer, N - 1, static_cast<std::int64_t>(offset));
    buffer[got > 0 ? got : 0] = '\0';
    return {buffer, ::strnlen(buffer, N)};
  }

 private:
  int fd_;
};

// Puts the program that a `#!` line names into `buffer`; false if it names none.
bool interpreter_of(const char* line, std::size_t bytes, char (&buffer)[256]) noexcept {
  std::size_t at = 2;
  while (at < bytes && (line[at] == ' ' || line[at] == '\t')) ++at;
  std::size_t length = 0;
  while (at < bytes && length + 1 < sizeof buffer && line[at] != '\0' && std::strchr(" \t\n\r", line[at]) == nullptr)
    buffer[length++] = line[at++];
  buffer[length] = '\0';
  return length > 0;
}

bool needs_to_be_first(const File& file, const Elf64_Phdr* headers, unsigned count,
                       const Elf64_Phdr& dynamic) noexcept {
  const auto offset_of = [&](std::uint64_t address) -> std::uint64_t {
    for (unsigned i = 0; i < count; ++i)
      if (headers[i].p_type == PT_LOAD && address >= headers[i].p_vaddr &&
          address - headers[i].p_vaddr < headers[i].p_filesz)
        return address - headers[i].p_vaddr + headers[i].p_offset;
    return 0;
  };
  std::uint64_t texts = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const std::uint64_t most = std::min<std::uint64_t>(dynamic.p_filesz / sizeof(Elf64_Dyn), kMostNeeded);
    for (std::uint64_t i = 0; i < most; ++i) {
      Elf64_Dyn entry;
      if (!file.read(entry, dynamic.p_offset + i * sizeof entry) || entry.d_tag == DT_NULL) break;
      if (pass == 0 && entry.d_tag == DT_STRTAB) texts = offset_of(entry.d_un.d_ptr);
      if (pass == 0 || entry.d_tag != DT_NEEDED) continue;
      char buffer[64];
      if (wants_to_be_first(file.text(buffer, texts + entry.d_un.d_val))) return true;
    }
    if (texts == 0) return false;
  }
  return false;
}

const char* why_not(const char* path, int scripts_left) noexcept {
  const File file(path);
  if (!file.open()) return nullptr;
  char head[256];
  const std::string_view begin = file.text(head, 0);
  if (begin.starts_with("#!")) {
    char interpreter[256];
    const bool named = interpreter_of(head, sizeof head - 1, interpreter);
    return named && scripts_left > 0 ? why_not(interpreter, scripts_left - 1) : nullptr;
  }
  Elf64_Ehdr elf;
  if (!file.read(elf, 0) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0) return nullptr;
#if defined(__x86_64__)
  constexpr unsigned kMachine = EM_X86_64;
#else
  constexpr unsigned kMachine = EM_AARCH64;
#endif
  if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_machine != kMachine) return "built for another processor or 32 bits";
  Elf64_Phdr headers[kMostHeaders];
  const unsigned count = std::min<unsigned>(elf.e_phnum, kMostHeaders);
  const Elf64_Phdr* dynamic = nullptr;
  const Elf64_Phdr* loader = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (!file.read(headers[i], elf.e_phoff + i * sizeof headers[i])) return nullptr;
    if (headers[i].p_type == PT_DYNAMIC) dynamic = &headers[i];
    if (headers[i].p_type == PT_INTERP) loader = &headers[i];
  }
  if (loader == nullptr) return nullptr;
  char buffer[256];
  if (!is_own_loader(file.text(buffer, loader->p_offset))) return "not built for glibc";
  if (dynamic != nullptr && needs_to_be_first(file, headers, count, *dynamic)) return "built with AddressSanitizer";
  return nullptr;
}

}  // namespace

const char* why_not_preloaded(const char* path) noexcept { return why_not(path, kMostScripts); }

}  // namespace stashtrace

// For the launcher, which calls it before it starts the first program.
extern "C" __attribute__((visibility("default"))) const char* stashtrace_why_not_preloaded(const char* path) noexcept {
  return stashtrace::why_not_preloaded(path);
}
