// Implementation of dynlib.h. SPDX-License-Identifier: Apache-2.0
#include "abi/dynlib.h"

#include <dlfcn.h>
#include <link.h>

#include <cerrno>
#include <cstring>

namespace stashtrace {

namespace {

// Address of our own object: a symbol inside it is a hook of ours, not what we look for.
const char g_own_object = 0;

void* own_base() noexcept {
  Dl_info info{};
  return dladdr(&g_own_object, &info) != 0 ? info.dli_fbase : nullptr;
}

void* foreign(void* found, void* own) noexcept {
  Dl_info info{};
  if (found == nullptr || own == nullptr) return found;
  return dladdr(found, &info) != 0 && info.dli_fbase == own ? nullptr : found;
}

class KeepErrno {
 public:
  KeepErrno() noexcept : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

// Names of some loaded objects. No loader function may be called below dl_iterate_phdr: it holds one lock, and a dlopen
// on another thread holds the other one while it waits for this one.
struct Names {
  static constexpr std::size_t kMost = 16, kLength = 512;
  std::size_t skip, count;
  char text[kMost][kLength];
};

int read_names(dl_phdr_info* object, std::size_t, void* argument) noexcept {
  auto& names = *static_cast<Names*>(argument);
  if (object->dlpi_name == nullptr || object->dlpi_name[0] != '/') return 0;
  if (names.skip > 0) {
    --names.skip;
    return 0;
  }
  const std::size_t length = std::strlen(object->dlpi_name);
  if (length >= Names::kLength) names.text[names.count][0] = '\0';
  else std::memcpy(names.text[names.count], object->dlpi_name, length + 1);
  return ++names.count == Names::kMost;
}

void* look_in(void* handle, const char* name, const char* version) noexcept {
  return version != nullptr ? dlvsym(handle, name, version) : dlsym(handle, name);
}

// dlsym through a handle of each object: an object's own symbols come before those of what it needs.
void* look_everywhere(const char* name, const char* version, void* own) noexcept {
  Names names;
  std::size_t seen = 0;
  do {
    names.skip = seen;
    names.count = 0;
    dl_iterate_phdr(&read_names, &names);
    seen += names.count;
    for (std::size_t i = 0; i < names.count; ++i) {
      void* handle = names.text[i][0] != '\0' ? dlopen(names.text[i], RTLD_LAZY | RTLD_NOLOAD) : nullptr;
      if (handle == nullptr) continue;
      void* found = foreign(look_in(handle, name, version), own);
      dlclose(handle);
      if (found != nullptr) return found;
    }
  } while (names.count == Names::kMost);
  return nullptr;
}

void* open_first(const char* const* names, std::size_t count, int flags, const char*& name) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    void* handle = dlopen(names[i], RTLD_LAZY | flags);
    if (handle == nullptr) continue;
    name = names[i];
    return handle;
  }
  return nullptr;
}

}  // namespace

Dynlib Dynlib::loaded(const char* const* names, std::size_t count) noexcept {
  const KeepErrno quiet;
  Dynlib out;
  out.handle_ = open_first(names, count, RTLD_NOLOAD, out.name_);
  dlerror();  // an application may ask for the text of its own last failure
  return out;
}

Dynlib Dynlib::load(const char* const* names, std::size_t count) noexcept {
  Dynlib out = loaded(names, count);
  if (out) return out;
  const KeepErrno quiet;
  out.handle_ = open_first(names, count, RTLD_LOCAL, out.name_);
  dlerror();
  return out;
}

void* Dynlib::symbol(const char* name) const noexcept {
  if (handle_ == nullptr) return nullptr;
  const KeepErrno quiet;
  void* found = foreign(dlsym(handle_, name), own_base());
  dlerror();
  return found;
}

unsigned long long libraries_added() noexcept {
  unsigned long long added = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* to) noexcept {
        *static_cast<unsigned long long*>(to) = object->dlpi_adds;
        return 1;  // every object gives the same
      },
      &added);
  return added;
}

void* find_behind_hook(const char* const* libraries, std::size_t count, const char* name,
                       const char* preferred) noexcept {
  const Dynlib library = Dynlib::loaded(libraries, count);
  if (preferred != nullptr)
    if (void* found = library.symbol(preferred)) return found;
  if (void* found = library.symbol(name)) return found;
  const KeepErrno quiet;
  // A library loaded in a local scope is not behind RTLD_NEXT, which only walks the main program's scope.
  void* next = dlsym(RTLD_NEXT, name);
  asm volatile("" : "+r"(next));  // no tail call: RTLD_NEXT looks at the return address
  void* found = foreign(next, own_base());
  if (found == nullptr) found = look_everywhere(name, nullptr, own_base());
  dlerror();
  return found;
}

void* find_versioned_behind_hook(const char* version, const char* name) noexcept {
  const KeepErrno quiet;
  // The global scope comes first for the loader too: also another library that stands in front of CUDA.
  void* next = dlvsym(RTLD_NEXT, name, version);
  asm volatile("" : "+r"(next));  // no tail call: RTLD_NEXT looks at the return address
  void* found = foreign(next, own_base());
  if (found == nullptr) {
    const char* which = "";
    if (void* library = open_first(&version, 1, RTLD_NOLOAD, which)) {
      found = foreign(dlvsym(library, name, version), own_base());
      dlclose(library);
    }
  }
  if (found == nullptr) found = look_everywhere(name, version, own_base());  // under another name given by a packager
  dlerror();
  return found;
}

const void* object_of(const void* address) noexcept {
  Dl_info info{};
  return address != nullptr && dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

const void* object_of_unversioned(const void* caller, const char* name) noexcept {
  const KeepErrno quiet;
  void* next = dlsym(RTLD_NEXT, name);
  asm volatile("" : "+r"(next));
  void* found = foreign(next, own_base());
  Dl_info info{};
  if (found == nullptr && dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
    if (void* handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
      found = foreign(dlsym(handle, name), own_base());
      dlclose(handle);
    }
  }
  dlerror();
  return object_of(found);
}

}  // namespace stashtrace
