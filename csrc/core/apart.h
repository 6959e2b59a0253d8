// Runs a piece of work where no other thread can touch its descriptors. SPDX-License-Identifier: Apache-2.0
//
// A descriptor of ours in the process's table can be redirected at any moment: another thread, a signal handler or a
// vfork child calls dup2() onto its number between our check and our use of it, and our bytes land in the user's
// file. So files are opened, written, mapped and closed on a kernel thread that lives for this one piece of work and has
// a separate descriptor table. Memory is shared, so what the thread maps stays mapped after its end.
//
// Callers: RingFile, SegmentWriter, Runtime, on slow paths with signals blocked. No lock, no allocation by the C library,
// safe in signal handlers and in vfork children. What it costs: docs/internals/native-runtime.md.
#pragma once

namespace stashtrace {

// Calls work(argument) on such a thread and waits until the kernel has released that thread. Returns 0, or minus errno
// if no thread could be started (a limit on processes, a filter of system calls). The work may use the caller's
// thread-local data, since the caller waits. It has about 48 KiB of stack and must not log. Of the process's descriptors
// it has a copy of those below `kept`: what the process does to these numbers meanwhile does not reach it.
int run_apart(void (*work)(void*), void* argument, unsigned kept = 0) noexcept;

// True if the process has left its namespace of process ids (unshare(CLONE_NEWPID)). It may start no more threads, so
// run_apart() fails. It only starts programs that record for themselves, so the user need not be warned.
bool has_left_namespace() noexcept;

// Gives the calling thread an empty descriptor table; the process's table stays as it is, and nothing is
// flushed. False before Linux 5.9, or where a filter refuses: the thread then keeps the process's table, since a copy
// would hold the program's files and pipes open. Only for our threads.
bool leave_descriptor_table() noexcept;

template <class Work>
int apart(Work work, unsigned kept = 0) noexcept {
  return run_apart([](void* self) { (*static_cast<Work*>(self))(); }, &work, kept);
}

}  // namespace stashtrace
