// Hooks of the calls that take a stream. SPDX-License-Identifier: Apache-2.0
//
// Calls that every NCCL since 2.18 has are exported, so that preload reaches them. Newer names are not: an exported
// name would make a program that asks by a weak symbol or dlsym(RTLD_DEFAULT) believe that an old NCCL has them. They
// are only reached through import tables (got_patch.cpp), and only where libnccl has them.
#include "collectors/nccl/calls.h"
#include "collectors/nccl/functions.h"
#include "collectors/nccl/hooks.h"
#include "hooks/interpose.h"

using namespace stashtrace::nccl;

namespace {

// A caller whose function does not exist cannot be helped: it could not have called it without us.
template <class F, class... Args>
Result pass(F* real, Args... args) {
  return real != nullptr ? real(args...) : kInternalError;
}

constexpr bool kPerRank = true, kWhole = false;

}  // namespace

// What each call means: CALL(name, code, count argument, type, elements are per rank, root or peer)
#define OPERATION(code, count, type, per_rank, peer) \
  Operation { op_code::code, count, type, per_rank, peer, comm, stream }
#define REAL_CALL(name, ...) [=] { return pass(STASHTRACE_NCCL_REAL(name), __VA_ARGS__); }

STASHTRACE_HOOK(Result, ncclAllReduce, const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm comm,
                Stream stream) {
  return traced(OPERATION(all_reduce, count, type, kWhole, -1),
                REAL_CALL(ncclAllReduce, in, out, count, type, op, comm, stream));
}
STASHTRACE_HOOK(Result, ncclReduce, const void* in, void* out, std::size_t count, DataType type, RedOp op, int root,
                Comm comm, Stream stream) {
  return traced(OPERATION(reduce, count, type, kWhole, root),
                REAL_CALL(ncclReduce, in, out, count, type, op, root, comm, stream));
}
STASHTRACE_HOOK(Result, ncclBroadcast, const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                Stream stream) {
  return traced(OPERATION(broadcast, count, type, kWhole, root),
                REAL_CALL(ncclBroadcast, in, out, count, type, root, comm, stream));
}
STASHTRACE_HOOK(Result, ncclBcast, void* data, std::size_t count, DataType type, int root, Comm comm, Stream stream) {
  return traced(OPERATION(broadcast, count, type, kWhole, root),
                REAL_CALL(ncclBcast, data, count, type, root, comm, stream));
}
STASHTRACE_HOOK(Result, ncclAllGather, const void* in, void* out, std::size_t count, DataType type, Comm comm,
                Stream stream) {
  return traced(OPERATION(all_gather, count, type, kWhole, -1),
                REAL_CALL(ncclAllGather, in, out, count, type, comm, stream));
}
STASHTRACE_HOOK(Result, ncclReduceScatter, const void* in, void* out, std::size_t count, DataType type, RedOp op,
                Comm comm, Stream stream) {
  return traced(OPERATION(reduce_scatter, count, type, kPerRank, -1),
                REAL_CALL(ncclReduceScatter, in, out, count, type, op, comm, stream));
}
STASHTRACE_HOOK(Result, ncclSend, const void* in, std::size_t count, DataType type, int peer, Comm comm,
                Stream stream) {
  return traced(OPERATION(send, count, type, kWhole, peer), REAL_CALL(ncclSend, in, count, type, peer, comm, stream));
}
STASHTRACE_HOOK(Result, ncclRecv, void* out, std::size_t count, DataType type, int peer, Comm comm, Stream stream) {
  return traced(OPERATION(receive, count, type, kWhole, peer),
                REAL_CALL(ncclRecv, out, count, type, peer, comm, stream));
}

namespace stashtrace::nccl::hooked {

Result ncclAlltoAll(const void* in, void* out, std::size_t count, DataType type, Comm comm, Stream stream) {
  return traced(OPERATION(all_to_all, count, type, kPerRank, -1),
                REAL_CALL(ncclAlltoAll, in, out, count, type, comm, stream));
}
Result ncclGather(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm, Stream stream) {
  return traced(OPERATION(gather, count, type, kWhole, root),
                REAL_CALL(ncclGather, in, out, count, type, root, comm, stream));
}
Result ncclScatter(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm, Stream stream) {
  return traced(OPERATION(scatter, count, type, kPerRank, root),
                REAL_CALL(ncclScatter, in, out, count, type, root, comm, stream));
}

// 2.31: the same with a configuration per call.
Result ncclAllReduceConfig(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm comm,
                           Stream stream, const CollConfig* config) {
  return traced(OPERATION(all_reduce, count, type, kWhole, -1),
                REAL_CALL(ncclAllReduceConfig, in, out, count, type, op, comm, stream, config));
}
Result ncclReduceConfig(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm comm,
                        Stream stream, const CollConfig* config) {
  return traced(OPERATION(reduce, count, type, kWhole, root),
                REAL_CALL(ncclReduceConfig, in, out, count, type, op, root, comm, stream, config));
}
Result ncclBroadcastConfig(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                           Stream stream, const CollConfig* config) {
  return traced(OPERATION(broadcast, count, type, kWhole, root),
                REAL_CALL(ncclBroadcastConfig, in, out, count, type, root, comm, stream, config));
}
Result ncclAllGatherConfig(const void* in, void* out, std::size_t count, DataType type, Comm comm, Stream stream,
                           const CollConfig* config) {
  return traced(OPERATION(all_gather, count, type, kWhole, -1),
                REAL_CALL(ncclAllGatherConfig, in, out, count, type, comm, stream, config));
}
Result ncclReduceScatterConfig(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm comm,
                               Stream stream, const CollConfig* config) {
  return traced(OPERATION(reduce_scatter, count, type, kPerRank, -1),
                REAL_CALL(ncclReduceScatterConfig, in, out, count, type, op, comm, stream, config));
}
Result ncclAlltoAllConfig(const void* in, void* out, std::size_t count, DataType type, Comm comm, Stream stream,
                          const CollConfig* config) {
  return traced(OPERATION(all_to_all, count, type, kPerRank, -1),
                REAL_CALL(ncclAlltoAllConfig, in, out, count, type, comm, stream, config));
}
Result ncclGatherConfig(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm, Stream stream,
                        const CollConfig* config) {
  return traced(OPERATION(gather, count, type, kWhole, root),
                REAL_CALL(ncclGatherConfig, in, out, count, type, root, comm, stream, config));
}
Result ncclScatterConfig(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                         Stream stream, const CollConfig* config) {
  return traced(OPERATION(scatter, count, type, kPerRank, root),
                REAL_CALL(ncclScatterConfig, in, out, count, type, root, comm, stream, config));
}

// One-sided operations have no counterpart call to match with: op "other".
constexpr DataType kBytes = 0;

Result ncclPutSignal(const void* in, std::size_t count, DataType type, int peer, Window window, std::size_t offset,
                     int signal, int context, unsigned flags, Comm comm, Stream stream) {
  return traced(OPERATION(other, count, type, kWhole, peer),
                REAL_CALL(ncclPutSignal, in, count, type, peer, window, offset, signal, context, flags, comm, stream));
}
Result ncclSignal(int peer, int signal, int context, unsigned flags, Comm comm, Stream stream) {
  return traced(OPERATION(other, 0, kBytes, kWhole, peer),
                REAL_CALL(ncclSignal, peer, signal, context, flags, comm, stream));
}
Result ncclWaitSignal(int count, WaitSignalDesc* signals, Comm comm, Stream stream) {
  return traced(OPERATION(other, 0, kBytes, kWhole, -1), REAL_CALL(ncclWaitSignal, count, signals, comm, stream));
}

}  // namespace stashtrace::nccl::hooked
