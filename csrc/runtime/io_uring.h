// Notes that the process uses io_uring, whose reads and writes no hook sees. SPDX-License-Identifier: Apache-2.0
//
// Any thread; the fact is recorded at the first ring of a process, and at the first of each library that is known by name:
// libraries that wait for sockets by io_uring, as torch's store of rendezvous does, read no files by it.
#pragma once

namespace stashtrace {

// From the hook of syscall() (hooks/hooks_uring.cpp): the ring, and the code that asked for it.
void note_ring(int fd, const void* code) noexcept;

// From the sampler of /proc, which also finds rings that liburing makes by inlined system calls: a descriptor that is one,
// perhaps inherited.
void note_ring_seen(int fd) noexcept;

// From the end of a process, which lists the mappings: one of them belongs to a ring. Most processes have no sampler.
void note_ring_mapped() noexcept;

}  // namespace stashtrace
