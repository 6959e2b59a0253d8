// C interface of the recorder: what libstashtrace.so offers. SPDX-License-Identifier: Apache-2.0
//
// Callers: csrc/python, the extension, and through ctypes the probes. Plain C types, so that the Python extension and the
// recorder may be built by different compilers. No function
// throws; all may be called from any thread, and all are harmless when the process is not traced.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define STASHTRACE_API __attribute__((visibility("default")))

extern "C" {

struct stashtrace_stats_t {
  uint64_t rows_count, written_rows_count, dropped_rows_count, rings_count, ring_bytes, written_bytes, segments_count;
  int64_t drainer_cpu_ns, self_drain_ns;
  int32_t incarnation;  // -1: no file yet
  int32_t drainer_running;
};

struct stashtrace_config_t {
  const char* dir;
  const char* run_id;
  const char* steps;
  const char* drainer;
  const char* log;
  uint32_t collectors;  // bit = code
  uint32_t sample_ms;
  int64_t wait_threshold_ns;
};

struct stashtrace_stamp_t {
  uint64_t ticks;
  int64_t cpu_ns;       // of the thread
  int64_t runqueue_ns;  // of the thread, -1 if the kernel does not report it
};

STASHTRACE_API const char* stashtrace_version() noexcept;
STASHTRACE_API int stashtrace_active() noexcept;     // STASHTRACE_DIR is set
STASHTRACE_API int stashtrace_recording() noexcept;  // and not switched off by set_recording(false)
STASHTRACE_API void stashtrace_set_recording(int on) noexcept;
STASHTRACE_API uint64_t stashtrace_now_ticks() noexcept;
STASHTRACE_API uint64_t stashtrace_tick_hz() noexcept;
STASHTRACE_API const char* stashtrace_clock_name() noexcept;
STASHTRACE_API void stashtrace_stamp(stashtrace_stamp_t* out) noexcept;
STASHTRACE_API void stashtrace_usage(int64_t* major_faults_count, int64_t* block_inputs_count) noexcept;
STASHTRACE_API uint32_t stashtrace_intern(const char* text, size_t bytes) noexcept;
// 1 recorded, 0 not (paused, dropped, not traced), -1 no such record or another size.
STASHTRACE_API int stashtrace_emit(uint32_t record_id, const void* row, size_t bytes) noexcept;
STASHTRACE_API void stashtrace_set_thread_role(uint32_t role, const char* name, size_t bytes) noexcept;
STASHTRACE_API void stashtrace_watch_waits(int on) noexcept;
// Sets where the code of the Python interpreter is: a condition variable or a mutex that it waits on is its GIL's.
STASHTRACE_API void stashtrace_interpreter_code(const void* begin, const void* end) noexcept;
STASHTRACE_API int stashtrace_start_drainer() noexcept;
STASHTRACE_API int stashtrace_flush() noexcept;
STASHTRACE_API void stashtrace_seal(const char* reason) noexcept;  // Runtime::seal
STASHTRACE_API void stashtrace_report_loss(uint32_t collector_code, const char* reason, uint64_t count,
                                           const char* detail, uint32_t severity) noexcept;
STASHTRACE_API void stashtrace_stats(stashtrace_stats_t* out) noexcept;
STASHTRACE_API void stashtrace_config(stashtrace_config_t* out) noexcept;
STASHTRACE_API const char* stashtrace_stash_path() noexcept;  // "" before the first record
// Timing events around what the probes see, on a stream of this thread's context. They do nothing without a device.
STASHTRACE_API int stashtrace_device_active() noexcept;
STASHTRACE_API uint64_t stashtrace_device_bracket_begin(uint32_t kind, uint64_t stream, uint64_t correlation) noexcept;
STASHTRACE_API void stashtrace_device_bracket_end(uint64_t token, uint64_t correlation) noexcept;
STASHTRACE_API void stashtrace_device_mark(uint32_t kind, uint64_t stream, uint64_t correlation) noexcept;

// Deep mode (collectors/cupti). The probes report the number of ended steps, at each step and before its first forward.
STASHTRACE_API void stashtrace_kernels_step(uint64_t step) noexcept;
// Steps [first, end) are to be recorded, in a job that is followed. 0: ask again at the next step, 1: they will be,
// 2: they cannot, and a loss says why if there is anything to say.
STASHTRACE_API uint32_t stashtrace_kernels_window(uint64_t first, uint64_t end) noexcept;
// Ends the window with the step before. 0: ask again at the next step.
STASHTRACE_API uint32_t stashtrace_kernels_end(uint64_t step) noexcept;
STASHTRACE_API void stashtrace_kernels_step_aside(const char* who) noexcept;  // another profiler is about to start

// The functions that Python calls, as a new dict of the CPython in this process (3.10 and later). The caller has the GIL.
// Null if there is no CPython or it lacks something, or with a Python exception set. csrc/python/functions.cpp.
STASHTRACE_API void* stashtrace_python_functions() noexcept;
// For a Python that is too old for the probes: reports that they are absent, with a sentence for the user.
STASHTRACE_API void stashtrace_report_no_probes(const char* detail) noexcept;

// Returns how many import-table slots of the process lead to the hooks of NCCL now and did not before; -1 if that
// collector is off. For a process without LD_PRELOAD. collectors/nccl/nccl_collector.cpp.
STASHTRACE_API int stashtrace_attach_nccl() noexcept;

// For libstashtrace_lookup.so: returns the function to give for a name of CUDA's driver, `real` itself unless
// STASHTRACE_LOOKUP_HOOK=1. collectors/cuda/hooks_driver.cpp.
STASHTRACE_API void* stashtrace_lookup(const char* name, void* real) noexcept;
// The same for a name of NCCL. collectors/nccl/got_patch.cpp.
STASHTRACE_API void* stashtrace_lookup_nccl(const char* name, void* real) noexcept;

}  // extern "C"
