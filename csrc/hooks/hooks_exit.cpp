// Hooks of the ends that run no destructors: _exit and _Exit. SPDX-License-Identifier: Apache-2.0
//
// Forked children of multiprocessing end here, by the thousands. quick_exit() ends inside libc; its handlers reach us
// (runtime/entry.cpp). Called in signal handlers and in vfork children, where Runtime::leave() does nothing.
#include "core/raw_syscall.h"
#include "hooks/interpose.h"
#include "hooks/sandbox.h"
#include "runtime/runtime.h"

namespace {

[[noreturn]] void end(int status) {
  if (stashtrace::leave_child_filter() == stashtrace::detail::kNoFilter) stashtrace::runtime().leave();
  stashtrace::real::_exit(status);
  for (;;) stashtrace::raw::call(SYS_exit_group, status);
}

}  // namespace

STASHTRACE_HOOK(void, _exit, int status) { end(status); }
STASHTRACE_HOOK(void, _Exit, int status) { end(status); }
