// C interface of the recorder: what libstashtrace.so offers to stashtrace._native and to nobody else.
// SPDX-License-Identifier: Apache-2.0
//
// Plain C types, so that the Python extension and the recorder may be built by different compilers. No function
// throws; all may be called from any thread, and all are harmless when the process is not traced.
#pragma once

#define STASHTRACE_API __attribute__((visibility("default")))

extern "C" {

// Version of the package that built the recorder.
STASHTRACE_API const char* stashtrace_version() noexcept;

}  // extern "C"
