// Implementation of kernel_clock.h. SPDX-License-Identifier: Apache-2.0
#include "core/kernel_clock.h"

#include <elf.h>
#include <sys/auxv.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stashtrace {

namespace {

#if defined(__x86_64__)
constexpr std::string_view kName = "__vdso_clock_gettime";
#else
constexpr std::string_view kName = "__kernel_clock_gettime";
#endif

// Kernels from 6.11 on give their vDSO only the GNU table of symbols, older ones only the other, or both.
struct Tables {
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hash = nullptr;
  const std::uint32_t* gnu_hash = nullptr;
};

// The GNU table does not say how many symbols there are: the last chain ends behind the last of them.
std::size_t count_symbols(const Tables& tables) noexcept {
  if (tables.hash != nullptr) return tables.hash[1];
  if (tables.gnu_hash == nullptr) return 0;
  const std::uint32_t buckets_count = tables.gnu_hash[0], first = tables.gnu_hash[1], words = tables.gnu_hash[2];
  const std::uint32_t* const buckets = tables.gnu_hash + 4 + std::size_t{2} * words;  // words of 64 bits
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < buckets_count; ++i)
    if (buckets[i] > last) last = buckets[i];
  if (last < first) return 0;
  const std::uint32_t* const chains = buckets + buckets_count;
  while ((chains[last - first] & 1) == 0) ++last;
  return last + 1;
}

}  // namespace

KernelClock find_kernel_clock() noexcept {
  const char* const image = reinterpret_cast<const char*>(getauxval(AT_SYSINFO_EHDR));
  if (image == nullptr) return nullptr;
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* const segments = reinterpret_cast<const Elf64_Phdr*>(image + header->e_phoff);
  const char* base = nullptr;  // addresses in the image count from here
  const Elf64_Dyn* entry = nullptr;
  for (unsigned i = 0; i < header->e_phnum; ++i) {
    if (segments[i].p_type == PT_LOAD && base == nullptr) base = image + segments[i].p_offset - segments[i].p_vaddr;
    if (segments[i].p_type == PT_DYNAMIC) entry = reinterpret_cast<const Elf64_Dyn*>(image + segments[i].p_offset);
  }
  if (base == nullptr || entry == nullptr) return nullptr;
  Tables tables;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const char* const at = base + entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) tables.symbols = reinterpret_cast<const Elf64_Sym*>(at);
    if (entry->d_tag == DT_STRTAB) tables.names = at;
    if (entry->d_tag == DT_HASH) tables.hash = reinterpret_cast<const std::uint32_t*>(at);
    if (entry->d_tag == DT_GNU_HASH) tables.gnu_hash = reinterpret_cast<const std::uint32_t*>(at);
  }
  if (tables.symbols == nullptr || tables.names == nullptr) return nullptr;
  const std::size_t count = count_symbols(tables);
  for (std::size_t i = 0; i < count; ++i) {
    const Elf64_Sym& symbol = tables.symbols[i];
    if (symbol.st_shndx == SHN_UNDEF || tables.names + symbol.st_name != kName) continue;
    return reinterpret_cast<KernelClock>(reinterpret_cast<std::uintptr_t>(base + symbol.st_value));
  }
  return nullptr;
}

}  // namespace stashtrace
