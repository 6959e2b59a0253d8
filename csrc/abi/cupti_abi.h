// The part of CUPTI that the recorder calls, in our own words. SPDX-License-Identifier: Apache-2.0
//
// Included by collectors/cupti and by the double of libcupti. Activity records grow at their end: from CUDA 12.0 to 13.5
// the kernel record went through five versions (9 to 13) without moving a field that we read. So each struct here is the
// part that all of them share, and records are walked by CUPTI's own iterator, which knows their sizes.
// tests/collectors/test_cupti_abi.py compares sizes, offsets and numbers with NVIDIA's headers where it finds some.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::abi::cupti {

// cuptiGetVersion: 18 ... 28 are CUDA 11.8 (and the first of 12.0) to 12.9, from 13.0 on it is 10000 * major + 100 * minor
// + update. Other versions were not read and are refused: their records may differ.
inline constexpr std::uint32_t kOldestVersion = 18, kNewestOfTwelve = 28;
inline constexpr std::uint32_t kOldestOfThirteen = 130000, kNewestVersion = 130599;

constexpr bool known_version(std::uint32_t version) noexcept {
  return (version >= kOldestVersion && version <= kNewestOfTwelve) ||
         (version >= kOldestOfThirteen && version <= kNewestVersion);
}

enum Result : int {
  kSuccess = 0,
  kMaxLimitReached = 12,  // the iterator is at the end
  kNotCompatible = 14,    // the other family of calls (..._v2) is in use
  kNotInitialized = 15,   // no driver
  kInsufficientPrivileges = 35,
  kMultipleSubscribers = 39,
  kUnknown = 999,
};

enum class ActivityKind : std::uint32_t {
  memcpy = 1,
  memset = 2,
  kernel = 3,
  driver = 4,
  runtime = 5,
  concurrent_kernel = 10,  // never `kernel`, which runs kernels one after another
  memcpy_peer = 22,
  synchronization = 38,
  graph_trace = 51,
};

enum class CopyKind : std::uint8_t {
  unknown,
  host_to_device,
  device_to_host,
  host_to_array,
  array_to_host,
  array_to_array,
  array_to_device,
  device_to_array,
  device_to_device,
  host_to_host,
  peer,
};

enum class SynchronizationType : std::uint32_t { unknown, event, stream_wait_event, stream, context };

inline constexpr std::uint32_t kFlushForced = 1;
inline constexpr int kThreadIdDefault = 0, kThreadIdSystem = 1;

struct Activity {
  ActivityKind kind;
};

struct ActivityKernel {  // CUpti_ActivityKernel5 ... 13
  ActivityKind kind;
  std::uint8_t launch_shape[12];
  std::uint64_t start_ns, end_ns, completed_ns;
  std::uint32_t device_id, context_id, stream_id;
  std::uint8_t grid_and_memory[40];
  std::uint32_t correlation_id;
  std::int64_t grid_id;
  const char* name;  // mangled; valid while its module is loaded
  void* reserved;
  std::uint64_t queued_ns, submitted_ns;
  std::uint8_t launch_type[8];
  std::uint64_t graph_node_id;
};
static_assert(offsetof(ActivityKernel, start_ns) == 16 && offsetof(ActivityKernel, device_id) == 40 &&
              offsetof(ActivityKernel, correlation_id) == 92 && offsetof(ActivityKernel, name) == 104 &&
              offsetof(ActivityKernel, graph_node_id) == 144);

struct ActivityMemcpy {  // CUpti_ActivityMemcpy4 ... 7
  ActivityKind kind;
  CopyKind copy_kind;
  std::uint8_t source_kind, target_kind;  // MemoryKind
  std::uint8_t flags;
  std::uint64_t bytes, start_ns, end_ns;
  std::uint32_t device_id, context_id, stream_id, correlation_id, runtime_correlation_id, pad;
  void* reserved;
  std::uint64_t graph_node_id;
};
static_assert(offsetof(ActivityMemcpy, bytes) == 8 && offsetof(ActivityMemcpy, correlation_id) == 44 &&
              offsetof(ActivityMemcpy, graph_node_id) == 64);

struct ActivityMemcpyPeer {  // CUpti_ActivityMemcpyPtoP3, 4
  ActivityKind kind;
  CopyKind copy_kind;
  std::uint8_t source_kind, target_kind;
  std::uint8_t flags;
  std::uint64_t bytes, start_ns, end_ns;
  std::uint32_t device_id, context_id, stream_id;
  std::uint32_t source_device_id, source_context_id, target_device_id, target_context_id, correlation_id;
  void* reserved;
  std::uint64_t graph_node_id;
};
static_assert(offsetof(ActivityMemcpyPeer, correlation_id) == 60 && offsetof(ActivityMemcpyPeer, graph_node_id) == 72);

struct ActivityMemset {  // CUpti_ActivityMemset3 ... 5
  ActivityKind kind;
  std::uint32_t value;
  std::uint64_t bytes, start_ns, end_ns;
  std::uint32_t device_id, context_id, stream_id, correlation_id;
  std::uint16_t flags, memory_kind;
  std::uint32_t pad;
  void* reserved;
  std::uint64_t graph_node_id;
};
static_assert(offsetof(ActivityMemset, correlation_id) == 44 && offsetof(ActivityMemset, graph_node_id) == 64);

struct ActivitySynchronization {  // CUpti_ActivitySynchronization, 2
  ActivityKind kind;
  SynchronizationType type;
  std::uint64_t start_ns, end_ns;
  std::uint32_t correlation_id, context_id, stream_id, event_id;
};
static_assert(sizeof(ActivitySynchronization) == 40);

struct ActivityGraphTrace {  // CUpti_ActivityGraphTrace, 2
  ActivityKind kind;
  std::uint32_t correlation_id;
  std::uint64_t start_ns, end_ns;
  std::uint32_t device_id, graph_id, context_id, stream_id;
};
static_assert(sizeof(ActivityGraphTrace) == 40);

struct ActivityApi {  // CUpti_ActivityAPI: kinds driver and runtime
  ActivityKind kind;
  std::uint32_t callback_id;
  std::uint64_t start_ns, end_ns;
  std::uint32_t process_id, thread_id, correlation_id, return_value;
};
static_assert(sizeof(ActivityApi) == 40);

using Subscriber = void*;
using Callback = void (*)(void* user, std::uint32_t domain, std::uint32_t id, const void* data);
using BufferRequested = void (*)(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records);
using BufferCompleted = void (*)(void* context, std::uint32_t stream_id, std::uint8_t* buffer, std::size_t bytes,
                                 std::size_t valid_bytes);

// CUPTI_CALL(name, required, parameters...): the calls of the old family, which every version has.
#define STASHTRACE_CUPTI_CALLS(CUPTI_CALL)                                                                           \
  CUPTI_CALL(cuptiGetVersion, true, std::uint32_t*)                                                                  \
  CUPTI_CALL(cuptiGetTimestamp, true, std::uint64_t*)                                                                \
  CUPTI_CALL(cuptiSubscribe, true, ::stashtrace::abi::cupti::Subscriber*, ::stashtrace::abi::cupti::Callback, void*) \
  CUPTI_CALL(cuptiUnsubscribe, true, ::stashtrace::abi::cupti::Subscriber)                                           \
  CUPTI_CALL(cuptiActivityRegisterCallbacks, true, ::stashtrace::abi::cupti::BufferRequested,                        \
             ::stashtrace::abi::cupti::BufferCompleted)                                                              \
  CUPTI_CALL(cuptiActivityEnable, true, ::stashtrace::abi::cupti::ActivityKind)                                      \
  CUPTI_CALL(cuptiActivityDisable, true, ::stashtrace::abi::cupti::ActivityKind)                                     \
  CUPTI_CALL(cuptiActivityGetNextRecord, true, std::uint8_t*, std::size_t, ::stashtrace::abi::cupti::Activity**)     \
  CUPTI_CALL(cuptiActivityFlushAll, true, std::uint32_t)                                                             \
  CUPTI_CALL(cuptiActivityGetNumDroppedRecords, false, void*, std::uint32_t, std::size_t*)                           \
  CUPTI_CALL(cuptiSetThreadIdType, false, int)

}  // namespace stashtrace::abi::cupti
