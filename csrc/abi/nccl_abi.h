// The part of NCCL's interface that we call or stand in front of, 2.18 to 2.32. SPDX-License-Identifier: Apache-2.0
//
// Our own words for a foreign ABI: handles are opaque pointers, enumerations are int as in C, structures that we only pass
// on stay incomplete. NCCL_CALL(name, first, parameters) lists every function once, with the release (major * 10000 +
// minor * 100 + patch) that brought it; hooks, the import-table patcher and the NCCL double of the tests expand it.
// Nothing was ever removed from this interface, and no signature changed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::nccl {

using Result = int;    // ncclResult_t
using DataType = int;  // ncclDataType_t
using RedOp = int;     // ncclRedOp_t
using Stream = void*;  // cudaStream_t
struct CommOpaque;
using Comm = CommOpaque*;  // ncclComm_t
struct WindowOpaque;
using Window = WindowOpaque*;  // ncclWindow_t
struct CollConfig;             // ncclCollConfig_t, 2.31
struct SimInfo;                // ncclSimInfo_t, 2.22
struct WaitSignalDesc {        // ncclWaitSignalDesc_t, 2.29.2
  int count, peer, signal_index, context;
};

inline constexpr std::size_t kUniqueIdBytes = 128;
struct UniqueId {  // passed by value: x86-64 copies it onto the stack, aarch64 passes the address of a copy
  char bytes[kUniqueIdBytes];
};
static_assert(sizeof(UniqueId) == kUniqueIdBytes && sizeof(WaitSignalDesc) == 16);

// The head of ncclConfig_t, the same in all releases (each appends): what is unset is kUndefinedInt or null.
struct Config {
  std::size_t size;
  unsigned magic, version;
  int blocking;
  int cga_cluster_size, least_ctas, most_ctas;
  const char* net_name;
  int split_share;        // 2.18
  int traffic_class;      // 2.20
  const char* comm_name;  // 2.26: there if `size` says so
};
static_assert(offsetof(Config, blocking) == 16 && offsetof(Config, net_name) == 32 &&
              offsetof(Config, comm_name) == 48);
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kUndefinedInt = -2147483647 - 1;

inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

inline constexpr int kNoColor = -1;  // ncclCommSplit: this rank will not be part of any

// ncclDataType_t: 0 int8, 1 uint8, 2 int32, 3 uint32, 4 int64, 5 uint64, 6 float16, 7 float32, 8 float64, 9 bfloat16,
// 10 and 11 the two float8. 0 for a type that this version does not know.
constexpr std::int64_t bytes_of(DataType type) noexcept {
  constexpr std::int64_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < static_cast<int>(sizeof kBytes / sizeof kBytes[0]) ? kBytes[type] : 0;
}

// All of them return ncclResult_t.
#define STASHTRACE_NCCL_CALLS(NCCL_CALL)                                                                            \
  /* collectives */                                                                                                 \
  NCCL_CALL(ncclAllReduce, 20000, const void*, void*, std::size_t, DataType, RedOp, Comm, Stream)                   \
  NCCL_CALL(ncclReduce, 20000, const void*, void*, std::size_t, DataType, RedOp, int root, Comm, Stream)            \
  NCCL_CALL(ncclBroadcast, 20000, const void*, void*, std::size_t, DataType, int root, Comm, Stream)                \
  NCCL_CALL(ncclBcast, 20000, void*, std::size_t, DataType, int root, Comm, Stream)                                 \
  NCCL_CALL(ncclAllGather, 20000, const void*, void*, std::size_t, DataType, Comm, Stream)                          \
  NCCL_CALL(ncclReduceScatter, 20000, const void*, void*, std::size_t, DataType, RedOp, Comm, Stream)               \
  NCCL_CALL(ncclAlltoAll, 22803, const void*, void*, std::size_t, DataType, Comm, Stream)                           \
  NCCL_CALL(ncclGather, 22803, const void*, void*, std::size_t, DataType, int root, Comm, Stream)                   \
  NCCL_CALL(ncclScatter, 22803, const void*, void*, std::size_t, DataType, int root, Comm, Stream)                  \
  NCCL_CALL(ncclAllReduceConfig, 23100, const void*, void*, std::size_t, DataType, RedOp, Comm, Stream,             \
            const CollConfig*)                                                                                      \
  NCCL_CALL(ncclReduceConfig, 23100, const void*, void*, std::size_t, DataType, RedOp, int root, Comm, Stream,      \
            const CollConfig*)                                                                                      \
  NCCL_CALL(ncclBroadcastConfig, 23100, const void*, void*, std::size_t, DataType, int root, Comm, Stream,          \
            const CollConfig*)                                                                                      \
  NCCL_CALL(ncclAllGatherConfig, 23100, const void*, void*, std::size_t, DataType, Comm, Stream, const CollConfig*) \
  NCCL_CALL(ncclReduceScatterConfig, 23100, const void*, void*, std::size_t, DataType, RedOp, Comm, Stream,         \
            const CollConfig*)                                                                                      \
  NCCL_CALL(ncclAlltoAllConfig, 23100, const void*, void*, std::size_t, DataType, Comm, Stream, const CollConfig*)  \
  NCCL_CALL(ncclGatherConfig, 23100, const void*, void*, std::size_t, DataType, int root, Comm, Stream,             \
            const CollConfig*)                                                                                      \
  NCCL_CALL(ncclScatterConfig, 23100, const void*, void*, std::size_t, DataType, int root, Comm, Stream,            \
            const CollConfig*)                                                                                      \
  /* point to point */                                                                                              \
  NCCL_CALL(ncclSend, 20700, const void*, std::size_t, DataType, int peer, Comm, Stream)                            \
  NCCL_CALL(ncclRecv, 20700, void*, std::size_t, DataType, int peer, Comm, Stream)                                  \
  NCCL_CALL(ncclPutSignal, 22902, const void*, std::size_t, DataType, int peer, Window, std::size_t offset,         \
            int signal, int context, unsigned flags, Comm, Stream)                                                  \
  NCCL_CALL(ncclSignal, 22902, int peer, int signal, int context, unsigned flags, Comm, Stream)                     \
  NCCL_CALL(ncclWaitSignal, 22902, int count, WaitSignalDesc*, Comm, Stream)                                        \
  /* groups */                                                                                                      \
  NCCL_CALL(ncclGroupStart, 20000)                                                                                  \
  NCCL_CALL(ncclGroupEnd, 20000)                                                                                    \
  NCCL_CALL(ncclGroupSimulateEnd, 22200, SimInfo*)                                                                  \
  /* communicators */                                                                                               \
  NCCL_CALL(ncclCommInitRank, 20000, Comm*, int size, UniqueId, int rank)                                           \
  NCCL_CALL(ncclCommInitRankConfig, 21400, Comm*, int size, UniqueId, int rank, Config*)                            \
  NCCL_CALL(ncclCommInitRankScalable, 22300, Comm*, int size, int rank, int ids_count, UniqueId*, Config*)          \
  NCCL_CALL(ncclCommInitAll, 20000, Comm*, int devices_count, const int* devices)                                   \
  NCCL_CALL(ncclCommSplit, 21801, Comm, int color, int key, Comm*, Config*)                                         \
  NCCL_CALL(ncclCommShrink, 22700, Comm, int* excluded, int excluded_count, Comm*, Config*, int flags)              \
  NCCL_CALL(ncclCommGrow, 22902, Comm, int size, const UniqueId*, int rank, Comm*, Config*)                         \
  NCCL_CALL(ncclCommFinalize, 21400, Comm)                                                                          \
  NCCL_CALL(ncclCommDestroy, 20000, Comm)                                                                           \
  NCCL_CALL(ncclCommAbort, 20000, Comm)                                                                             \
  NCCL_CALL(ncclCommRevoke, 22807, Comm, int flags)                                                                 \
  NCCL_CALL(ncclCommGetAsyncError, 20400, Comm, Result*)

// Asked, never hooked.
#define STASHTRACE_NCCL_QUERIES(NCCL_CALL)       \
  NCCL_CALL(ncclGetVersion, 20000, int*)         \
  NCCL_CALL(ncclGetUniqueId, 20000, UniqueId*)   \
  NCCL_CALL(ncclCommCount, 20000, Comm, int*)    \
  NCCL_CALL(ncclCommUserRank, 20000, Comm, int*) \
  NCCL_CALL(ncclCommCuDevice, 20000, Comm, int*) \
  NCCL_CALL(ncclCommGetUniqueId, 22902, Comm, UniqueId*)

namespace function {  // function::ncclAllReduce is the type of that function
#define STASHTRACE_NCCL_TYPE(name, first, ...) using name = Result(__VA_ARGS__);
STASHTRACE_NCCL_CALLS(STASHTRACE_NCCL_TYPE)
STASHTRACE_NCCL_QUERIES(STASHTRACE_NCCL_TYPE)
#undef STASHTRACE_NCCL_TYPE
}  // namespace function

}  // namespace stashtrace::nccl
