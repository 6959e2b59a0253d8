// What the files of csrc/python offer to each other; the door for others is stashtrace_python_functions() of capi.h.
// SPDX-License-Identifier: Apache-2.0
//
// Rule of all files here: called by Python threads alone, with the GIL or an attached thread state, which is kept but in
// flush(), the only function that may wait. What they do at the ends of an interval takes neither lock nor allocation but
// for the objects that Python asks for.
#pragma once

#include "abi/cpython.h"

namespace stashtrace::python {

#define STASHTRACE_FUNCTION(name) \
  cpython::Object* name(cpython::Object* self, cpython::Object* const* given, cpython::Size count) noexcept

// intervals.cpp
STASHTRACE_FUNCTION(probe_begins);
STASHTRACE_FUNCTION(phase_ends);
STASHTRACE_FUNCTION(batch_ends);
STASHTRACE_FUNCTION(probe_account);
STASHTRACE_FUNCTION(forget_probe_account);

// outermost_calls.cpp
STASHTRACE_FUNCTION(watch_outermost_calls);
STASHTRACE_FUNCTION(in_outermost_call);
STASHTRACE_FUNCTION(forget_outermost_call);

// facts.cpp: what the recorder knows, as Python objects
STASHTRACE_FUNCTION(schema);
STASHTRACE_FUNCTION(config);
STASHTRACE_FUNCTION(stats);

// works.cpp
STASHTRACE_FUNCTION(learn_work);
STASHTRACE_FUNCTION(follow_work);
STASHTRACE_FUNCTION(work_address);
STASHTRACE_FUNCTION(works_in_flight);
STASHTRACE_FUNCTION(forget_works);

// sockets.cpp
STASHTRACE_FUNCTION(tcp_ends);

// stacks.cpp
STASHTRACE_FUNCTION(start_stacks);
STASHTRACE_FUNCTION(own_stack);
STASHTRACE_FUNCTION(enable_stacks);
STASHTRACE_FUNCTION(disable_stacks);
STASHTRACE_FUNCTION(watch_stack);
STASHTRACE_FUNCTION(note_call);
STASHTRACE_FUNCTION(note_awaited);

}  // namespace stashtrace::python
