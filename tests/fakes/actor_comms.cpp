// Statements of the actor that call NCCL. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "actor.h"

namespace fake {

namespace nccl = stashtrace::nccl;

constexpr int kFloat = 7;

// The id goes through a file of the job, as it goes through a store elsewhere. Rank 0 must come first.
nccl::Comm Actor::make_world(int number, bool blocking) {
  const char* folder = getenv("FAKE_SHARED");
  const std::string path = std::string(folder == nullptr ? "/dev/shm" : folder) + "/id-" + std::to_string(number);
  nccl::UniqueId id = {};
  if (rank_ == 0) {
    if (check("ncclGetUniqueId", nccl::ncclGetUniqueId(&id)) != 0) return nullptr;
    std::FILE* file = std::fopen((path + ".new").c_str(), "wb");
    if (file == nullptr) return nullptr;
    std::fwrite(id.bytes, 1, sizeof id.bytes, file);
    std::fclose(file);
    std::rename((path + ".new").c_str(), path.c_str());
  } else {
    std::FILE* file = nullptr;
    for (int tries = 0; tries < 20000 && (file = std::fopen(path.c_str(), "rb")) == nullptr; ++tries) pause_ns(1e6);
    if (file == nullptr) return nullptr;
    const std::size_t read = std::fread(id.bytes, 1, sizeof id.bytes, file);
    std::fclose(file);
    if (read != sizeof id.bytes) return nullptr;
  }
  nccl::Comm made = nullptr;
  if (blocking) {
    check("ncclCommInitRank", nccl::ncclCommInitRank(&made, size_, id, rank_));
  } else {
    nccl::Config config = {sizeof config, nccl::kConfigMagic, 22809, 0, nccl::kUndefinedInt, nccl::kUndefinedInt,
                           nccl::kUndefinedInt, nullptr, nccl::kUndefinedInt, nccl::kUndefinedInt, nullptr};
    const int result = nccl::ncclCommInitRankConfig(&made, size_, id, rank_, &config);
    if (result != nccl::kInProgress) check("ncclCommInitRankConfig", result);
    int state = nccl::kInProgress;
    while (made != nullptr && state == nccl::kInProgress) {
      pause_ns(1e5);
      check("ncclCommGetAsyncError", nccl::ncclCommGetAsyncError(made, &state));
    }
  }
  non_blocking_[number] = !blocking;
  return made;
}

nccl::Comm Actor::comm_number(int number) {
  nccl::Comm& made = comms_[number];
  if (made == nullptr && !stopped_) made = make_world(number, true);
  return made;
}

// allreduce 10MB [stream=N] [comm=N] [root=N] [peer=N]; the size is what moves, whatever the operation's count means
void Actor::collective(const Statement& one) {
  const std::string& name = one.name();
  const int number = one.number("comm", 0);
  const nccl::Comm comm = comm_number(number);
  if (comm == nullptr) return;
  int members = size_;
  nccl::ncclCommCount(comm, &members);
  const auto count = static_cast<std::size_t>(one.quantity() / 4), block = count / static_cast<std::size_t>(members);
  const int root = one.number("root", 0), peer = one.number("peer", 0);
  void *in = device_buffer_, *out = static_cast<char*>(device_buffer_) + kBufferBytes / 2, *stream = stream_of(one);
  int result = nccl::kInvalidArgument;
  using namespace nccl;
  if (name == "allreduce") result = ncclAllReduce(in, out, count, kFloat, 0, comm, stream);
  if (name == "reduce") result = ncclReduce(in, out, count, kFloat, 0, root, comm, stream);
  if (name == "broadcast") result = ncclBroadcast(in, out, count, kFloat, root, comm, stream);
  if (name == "bcast") result = ncclBcast(in, count, kFloat, root, comm, stream);
  if (name == "allgather") result = ncclAllGather(in, out, block, kFloat, comm, stream);
  if (name == "reducescatter") result = ncclReduceScatter(in, out, block, kFloat, 0, comm, stream);
  if (name == "alltoall") result = ncclAlltoAll(in, out, block, kFloat, comm, stream);
  if (name == "gather") result = ncclGather(in, out, block, kFloat, root, comm, stream);
  if (name == "scatter") result = ncclScatter(in, out, block, kFloat, root, comm, stream);
  if (name == "send") result = ncclSend(in, count, kFloat, peer, comm, stream);
  if (name == "recv") result = ncclRecv(out, count, kFloat, peer, comm, stream);
  if (result != kInProgress) {
    check(name.c_str(), result);
    return;
  }
  while (result == kInProgress) {
    pause_ns(5e4);
    check("ncclCommGetAsyncError", ncclCommGetAsyncError(comm, &result));
  }
}

void Actor::group(const Statement& one) {
  check("ncclGroupStart", nccl::ncclGroupStart());
  run(one.body);
  const int result = nccl::ncclGroupEnd();
  if (result != nccl::kInProgress) check("ncclGroupEnd", result);
}

// comm init new=N [nonblocking] | split new=N color=C key=K | shrink new=N without=R | finalize | destroy | abort
void Actor::comm(const Statement& one) {
  const std::string what = one.word(1);
  const int number = one.number("comm", 0), made = one.number("new", 0);
  if (what == "init") {
    comms_[made] = make_world(made, !one.has("nonblocking"));
    return;
  }
  const nccl::Comm comm = comm_number(number);
  if (what == "split") {
    check("ncclCommSplit", nccl::ncclCommSplit(comm, one.number("color", 0), one.number("key", rank_), &comms_[made], nullptr));
  } else if (what == "shrink") {
    int without = one.number("without", 0);
    check("ncclCommShrink", nccl::ncclCommShrink(comm, &without, 1, &comms_[made], nullptr, 0));
  } else if (what == "finalize") {
    check("ncclCommFinalize", nccl::ncclCommFinalize(comm));
  } else if (what == "destroy") {
    check("ncclCommDestroy", nccl::ncclCommDestroy(comm));
    comms_.erase(number);
  } else if (what == "abort") {
    check("ncclCommAbort", nccl::ncclCommAbort(comm));
    comms_.erase(number);
    stopped_ = true;
  }
}

}  // namespace fake
