// The files that are mapped into this process, as the kernel lists them. SPDX-License-Identifier: Apache-2.0
//
// Not as the loader lists them: dl_iterate_phdr() takes a lock which a forked child never gets if another thread held it
// at the fork, and dladdr() waits for a dlopen() that runs constructors.
//
// Callers: the end of a process and the hook of io_uring_setup, any thread. No lock, no allocation, errno untouched. Costs a
// kernel thread (core/apart.h) and about 1 us a mapping.
#pragma once

#include <cstdint>
#include <string_view>

namespace stashtrace {

// What the kernel calls the mapped part of a ring of io_uring, in place of a path.
inline constexpr std::string_view kUringMapping = "anon_inode:[io_uring]";

struct MappedFile {
  std::uintptr_t begin, end;
  bool readable, executable;
  std::string_view path;
};

// Calls visit(mapping) in the order of addresses until it returns false. False if the list could not be read, or is so long
// that its reading would hold up the process.
bool visit_mapped_files(bool (*visit)(void* self, const MappedFile& mapping), void* self) noexcept;

template <class Visit>
bool visit_mapped_files(Visit visit) noexcept {
  return visit_mapped_files([](void* self, const MappedFile& mapping) { return (*static_cast<Visit*>(self))(mapping); },
                            &visit);
}

}  // namespace stashtrace
