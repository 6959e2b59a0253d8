// Import tables that lead to our hooks: attaching without a restart, deep-bound libraries, names that preload must not
// show. SPDX-License-Identifier: Apache-2.0
//
// Callers: the first communicator, the drainer's tick, attach. The slot of a function in an object's global offset table is
// rewritten, whatever it was bound to, unless it leads to another tool's hook. libnccl's own slots (it calls itself
// through them) and ours stay as they are. A pass over 140 libraries takes about 4 ms; a second one changes nothing.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "collectors/nccl/functions.h"
#include "collectors/nccl/hooks.h"
#include "collectors/nccl/nccl_collector.h"
#include "core/futex_lock.h"
#include "core/raw_syscall.h"
#include "device/timeline.h"
#include "hooks/interpose.h"
#include "runtime/capi.h"

#define STASHTRACE_NCCL_HOOK_NAME(name) \
  extern "C" __attribute__((visibility("default"))) ::stashtrace::nccl::function::name hook_##name __asm__(#name);
namespace stashtrace::nccl {
STASHTRACE_NCCL_EXPORTED(STASHTRACE_NCCL_HOOK_NAME)
}
#undef STASHTRACE_NCCL_HOOK_NAME

namespace stashtrace::nccl {

namespace {

struct Hook {
  Name name;
  void* hook;
  bool exported;
};
const Hook kHooks[] = {
#define STASHTRACE_NCCL_ROW(name) {Name::name, reinterpret_cast<void*>(&hook_##name), true},
    STASHTRACE_NCCL_EXPORTED(STASHTRACE_NCCL_ROW)
#undef STASHTRACE_NCCL_ROW
#define STASHTRACE_NCCL_ROW(name) {Name::name, reinterpret_cast<void*>(&hooked::name), false},
        STASHTRACE_NCCL_HIDDEN(STASHTRACE_NCCL_ROW)
#undef STASHTRACE_NCCL_ROW
};
static_assert(sizeof kHooks / sizeof kHooks[0] == kHookedCount, "each hooked function is exported or hidden");

// Relocations that put the address of a function into a word.
#if defined(__x86_64__)
constexpr auto kJumpSlot = R_X86_64_JUMP_SLOT, kGlobalData = R_X86_64_GLOB_DAT, kPointer = R_X86_64_64;
#else
constexpr auto kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobalData = R_AARCH64_GLOB_DAT, kPointer = R_AARCH64_ABS64;
#endif

constinit FutexLock g_lock;
constinit std::atomic<unsigned long long> g_seen_loads{0};
constinit unsigned g_unfinished = 0;  // passes in a row, under g_lock
constexpr unsigned kMostUnfinished = 100;

struct Range {
  std::uintptr_t begin, end;
  bool holds(std::uintptr_t address) const noexcept { return address >= begin && address < end; }
};

struct Object {
  Range whole{};
  Range read_only_after_relocation{};
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * tables[2] = {};
  std::size_t counts[2] = {};
};

struct Pass {
  bool preloaded;
  Range own, nccl;  // objects; begin: an address in each, until they are found
  int changed;
  bool unfinished;              // an object is still being relocated
  void* real[kHookedCount];     // looked up before, null: this libnccl does not have it
  bool in_front[kHookedCount];  // exported ones: a look-up of the name finds our hook first
};

bool read_object(const dl_phdr_info& info, Object& object) noexcept {
  const ElfW(Dyn)* dynamic = nullptr;
  object.whole = {~std::uintptr_t{0}, 0};
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info.dlpi_phdr[i];
    const std::uintptr_t begin = info.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD) {
      if (begin < object.whole.begin) object.whole.begin = begin;
      if (begin + segment.p_memsz > object.whole.end) object.whole.end = begin + segment.p_memsz;
    } else if (segment.p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    } else if (segment.p_type == PT_GNU_RELRO) {
      object.read_only_after_relocation = {begin, begin + segment.p_memsz};
    }
  }
  if (dynamic == nullptr) return false;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    // glibc has relocated these addresses; where it could not (the vDSO) they lie outside the object.
    switch (dynamic->d_tag) {
      case DT_SYMTAB: object.symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic->d_un.d_ptr); break;
      case DT_STRTAB: object.names = reinterpret_cast<const char*>(dynamic->d_un.d_ptr); break;
      case DT_RELA: object.tables[0] = reinterpret_cast<const ElfW(Rela)*>(dynamic->d_un.d_ptr); break;
      case DT_RELASZ: object.counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_JMPREL: object.tables[1] = reinterpret_cast<const ElfW(Rela)*>(dynamic->d_un.d_ptr); break;
      case DT_PLTRELSZ: object.counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_PLTREL:
        if (dynamic->d_un.d_val != DT_RELA) return false;
        break;
      default: break;
    }
  }
  return object.symbols != nullptr && object.names != nullptr &&
         object.whole.holds(reinterpret_cast<std::uintptr_t>(object.symbols)) &&
         object.whole.holds(reinterpret_cast<std::uintptr_t>(object.names));
}

const Hook* hook_named(const char* name) noexcept {
  if (std::strncmp(name, "nccl", 4) != 0) return nullptr;
  for (const Hook& hook : kHooks)
    if (std::strcmp(describe(hook.name).name, name) == 0) return &hook;
  return nullptr;
}

// Finds the ranges of both objects. Below dl_iterate_phdr no loader call may be made, not even dladdr: it holds one
// lock of the loader, and a dlopen on another thread holds the other one while it waits for this one.
int find_objects(dl_phdr_info* info, std::size_t, void* argument) noexcept {
  auto& pass = *static_cast<Pass*>(argument);
  Object object;
  if (!read_object(*info, object)) return 0;
  if (pass.own.end == 0 && object.whole.holds(pass.own.begin)) pass.own = object.whole;
  if (pass.nccl.end == 0 && object.whole.holds(pass.nccl.begin)) pass.nccl = object.whole;
  return 0;
}

bool may_write(const Object& object, const Hook& hook, void* now, const Pass& pass) noexcept {
  if (now == hook.hook || now == nullptr) return false;  // null: a weak symbol that this NCCL does not have
  void* const real = pass.real[&hook - kHooks];
  if (real == nullptr) return false;
  const auto at = reinterpret_cast<std::uintptr_t>(now);
  if (now == real || pass.nccl.holds(at)) return true;
  // Lazily bound and not called yet: it points into its own object. It may come to us by itself, or past us if it was
  // loaded with RTLD_DEEPBIND; if another tool's hook stands before ours it is left.
  return object.whole.holds(at) && !(pass.preloaded && hook.exported && !pass.in_front[&hook - kHooks]);
}

// Adds 0 to a word, in the kernel, which answers EFAULT in place of a signal where the page is read-only.
bool writable(void** slot) noexcept {
  constexpr long kAddNothing = FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_LT, 0);
  int nobody = 0;
  return raw::call(SYS_futex, raw::address(&nobody), FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0, raw::address(slot),
                   kAddNothing) >= 0;
}

// A page that is to become read-only and is not yet belongs to an object that another thread is loading: its protection
// is up to the loader, which would crash on a page that we lock; it may also still overwrite the slot.
bool write_slot(const Object& object, void** slot, void* value, Pass& pass) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(slot);
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const Range& relro = object.read_only_after_relocation;  // glibc protects whole pages, both ends rounded down
  bool locked = at >= (relro.begin & ~(page_bytes - 1)) && at < (relro.end & ~(page_bytes - 1));
  if (locked && writable(slot)) {
    locked = false;
    pass.unfinished = true;
  }
  const std::uintptr_t page = at & ~(page_bytes - 1);
  constexpr long kReadWrite = PROT_READ | PROT_WRITE;
  const auto length = static_cast<long>(page_bytes);
  if (locked && raw::call(SYS_mprotect, static_cast<long>(page), length, kReadWrite) != 0) return false;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (locked) raw::call(SYS_mprotect, static_cast<long>(page), length, PROT_READ);
  return true;
}

int patch_object(dl_phdr_info* info, std::size_t, void* argument) noexcept {
  auto& pass = *static_cast<Pass*>(argument);
  Object object;
  if (!read_object(*info, object)) return 0;
  if (object.whole.holds(pass.own.begin) || object.whole.holds(pass.nccl.begin)) return 0;
  for (int t = 0; t < 2; ++t)
    for (std::size_t i = 0; object.tables[t] != nullptr && i < object.counts[t]; ++i) {
      const ElfW(Rela) & entry = object.tables[t][i];
      const auto type = ELF64_R_TYPE(entry.r_info);
      if (type != kJumpSlot && type != kGlobalData && type != kPointer) continue;
      const auto symbol = ELF64_R_SYM(entry.r_info);
      if (symbol == 0 || object.symbols[symbol].st_shndx != SHN_UNDEF) continue;
      const Hook* hook = hook_named(object.names + object.symbols[symbol].st_name);
      if (hook == nullptr) continue;
      auto** slot = reinterpret_cast<void**>(info->dlpi_addr + entry.r_offset);
      // A function pointer in data: with an addend it is not a plain address.
      if (entry.r_addend != 0 && type == kPointer) continue;
      if (may_write(object, *hook, __atomic_load_n(slot, __ATOMIC_ACQUIRE), pass) &&
          write_slot(object, slot, hook->hook, pass))
        ++pass.changed;
    }
  return 0;
}

int read_loads(dl_phdr_info* info, std::size_t bytes, void* out) noexcept {
  if (bytes >= offsetof(dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds)
    *static_cast<unsigned long long*>(out) = info->dlpi_adds;
  return 1;  // the first object has it
}

unsigned long long loads_now() noexcept {
  unsigned long long loads = 0;
  dl_iterate_phdr(&read_loads, &loads);
  return loads;
}

}  // namespace

void forget_imports() noexcept { g_lock.reset(); }

bool imports_may_have_changed() noexcept { return loads_now() != g_seen_loads.load(std::memory_order_relaxed); }

int patch_imports(bool preloaded) noexcept {
  void* const real = find_function(Name::ncclGroupStart);
  if (real == nullptr) return 0;  // no libnccl yet
  if (!g_lock.try_lock()) return 0;
  const unsigned long long loads = loads_now();
  Pass pass{preloaded,
            {reinterpret_cast<std::uintptr_t>(&g_lock), 0},
            {reinterpret_cast<std::uintptr_t>(real), 0},
            0,
            false,
            {},
            {}};
  // Before dl_iterate_phdr, below which nothing may be looked up.
  for (std::size_t i = 0; i < kHookedCount; ++i) pass.real[i] = find_function(kHooks[i].name);
  for (std::size_t i = 0; i < kHookedCount; ++i)
    if (kHooks[i].exported) pass.in_front[i] = dlsym(RTLD_DEFAULT, describe(kHooks[i].name).name) == kHooks[i].hook;
  dl_iterate_phdr(&find_objects, &pass);
  dl_iterate_phdr(&patch_object, &pass);
  // A tool may keep such a page writable for good: then not every tick should pay for a pass.
  g_unfinished = pass.unfinished ? g_unfinished + 1 : 0;
  if (!pass.unfinished || g_unfinished > kMostUnfinished) g_seen_loads.store(loads, std::memory_order_relaxed);
  g_lock.unlock();
  return pass.changed;
}

}  // namespace stashtrace::nccl

// A call that reached the hooks through a handle needs no import table. Calls of the library's own stay what they are.
void* stashtrace_lookup_nccl(const char* name, void* real) noexcept {
  using namespace stashtrace::nccl;
  if (!is_on() || !settings.lookup_hook || stashtrace::device::Inside::already()) return real;
  const Hook* hook = hook_named(name);
  return hook != nullptr && real != hook->hook && is_of_this_nccl(hook->name, real) ? hook->hook : real;
}
