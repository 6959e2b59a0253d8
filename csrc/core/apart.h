// Runs a piece of work where no other thread can touch its descriptors. SPDX-License-Identifier: Apache-2.0
//
// A descriptor of ours in the process's own table can be redirected at any moment: another thread, a signal handler or a
// vfork child calls dup2() onto its number between our look at it and our use of it, and our bytes land in the user's
// file. So files are opened, written, mapped and closed on a kernel thread that lives for this one piece of work and has
// a descriptor table of its own. Memory is shared, so that what it maps stays when it is gone.
//
// Callers: RingFile, SegmentWriter, Runtime, on slow paths with signals blocked. No lock, no allocation by the C library,
// safe in signal handlers and in vfork children. What it costs: docs/internals/native-runtime.md.
#pragma once

namespace stashtrace {

// Calls work(argument) on such a thread and returns when the kernel has let the thread go: 0, or minus errno if none
// could be had (a limit on processes, a filter of system calls). The work may use thread-local data, which is the
// caller's, since the caller stands still. It has about 48 KiB of stack, no standard streams, and must not log.
int run_apart(void (*work)(void*), void* argument) noexcept;

// Whether the process has left its namespace of process ids (unshare(CLONE_NEWPID)). It may have no more threads, so run_apart() fails, and
// it only starts what records for itself: nothing to tell the user.
bool has_left_namespace() noexcept;

// The calling thread gets a descriptor table of its own, empty; the process's stays as it is, and nothing is flushed. False
// before Linux 5.9, or where a filter refuses: it then keeps the process's, since a copy would hold the program's
// files and pipes open. For threads of ours alone.
bool leave_descriptor_table() noexcept;

template <class Work>
int apart(Work work) noexcept {
  return run_apart([](void* self) { (*static_cast<Work*>(self))(); }, &work);
}

}  // namespace stashtrace
