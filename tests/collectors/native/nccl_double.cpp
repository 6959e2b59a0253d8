// The smallest libnccl.so.2 with which hooks and import tables can be tried: every call answers, nothing moves.
// SPDX-License-Identifier: Apache-2.0
//
// Like the real one it exports nccl names as weak aliases of pnccl names, and ncclBcast calls ncclBroadcast through its import table.
// A count of 666 is refused, 777 answers ncclInProgress.
#include <cstdlib>
#include <cstring>

#include "abi/nccl_abi.h"

using namespace stashtrace::nccl;

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {
struct Made {
  int size, rank;
};
Comm made(int size, int rank) { return reinterpret_cast<Comm>(new Made{size, rank}); }
Result answer(std::size_t count) { return count == 666 ? kInvalidArgument : count == 777 ? kInProgress : kSuccess; }
Made* of(Comm comm) { return reinterpret_cast<Made*>(comm); }
thread_local int depth = 0;
}  // namespace

#define DOUBLE(name, parameters, body)   \
  EXPORTED Result p##name parameters body \
  EXPORTED __attribute__((weak, alias("p" #name))) Result name parameters;

DOUBLE(ncclGetVersion, (int* out), { *out = 22809; return kSuccess; })
DOUBLE(ncclCommCount, (Comm comm, int* out), { *out = of(comm)->size; return kSuccess; })
DOUBLE(ncclCommUserRank, (Comm comm, int* out), { *out = of(comm)->rank; return kSuccess; })
DOUBLE(ncclCommCuDevice, (Comm, int* out), { *out = 0; return kSuccess; })
DOUBLE(ncclAllReduce, (const void*, void*, std::size_t count, DataType, RedOp, Comm, Stream), { return answer(count); })
DOUBLE(ncclReduce, (const void*, void*, std::size_t count, DataType, RedOp, int, Comm, Stream), { return answer(count); })
DOUBLE(ncclAllGather, (const void*, void*, std::size_t count, DataType, Comm, Stream), { return answer(count); })
DOUBLE(ncclReduceScatter, (const void*, void*, std::size_t count, DataType, RedOp, Comm, Stream), { return answer(count); })
DOUBLE(ncclBroadcast, (const void*, void*, std::size_t count, DataType, int, Comm, Stream), { return answer(count); })
DOUBLE(ncclBcast, (void* data, std::size_t count, DataType type, int root, Comm comm, Stream stream),
       { return ncclBroadcast(data, data, count, type, root, comm, stream); })
DOUBLE(ncclSend, (const void*, std::size_t count, DataType, int, Comm, Stream), { return answer(count); })
DOUBLE(ncclRecv, (void*, std::size_t count, DataType, int, Comm, Stream), { return answer(count); })
DOUBLE(ncclGroupStart, (), { ++depth; return kSuccess; })
DOUBLE(ncclGroupEnd, (), { return depth-- > 0 ? kSuccess : (depth = 0, kInvalidUsage); })
DOUBLE(ncclCommInitRank, (Comm* out, int size, UniqueId, int rank), { *out = made(size, rank); return kSuccess; })
DOUBLE(ncclCommSplit, (Comm parent, int color, int key, Comm* out, Config*),
       { *out = color == kNoColor ? nullptr : made(of(parent)->size / 2, key); return kSuccess; })
DOUBLE(ncclCommDestroy, (Comm comm), { delete of(comm); return kSuccess; })
DOUBLE(ncclCommAbort, (Comm comm), { delete of(comm); return kSuccess; })
DOUBLE(ncclAlltoAll, (const void*, void*, std::size_t count, DataType, Comm, Stream), { return answer(count); })
DOUBLE(ncclGroupSimulateEnd, (SimInfo*), { --depth; return kSuccess; })
DOUBLE(ncclCommShrink, (Comm parent, int*, int count, Comm* out, Config*, int),
       { *out = made(of(parent)->size - count, of(parent)->rank); return kSuccess; })
