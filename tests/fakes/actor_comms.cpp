// Statements of the actor that call NCCL. SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "actor.h"

namespace fake {

namespace nccl = stashtrace::nccl;

constexpr int kFloat = 7;

namespace {

nccl::Config config_of(bool blocking, const char* name = nullptr) {
  constexpr int kUnset = nccl::kUndefinedInt;
  return {sizeof(nccl::Config), nccl::kConfigMagic, 22809, blocking ? 1 : 0, kUnset, kUnset, kUnset, nullptr, kUnset, kUnset, name};
}

}  // namespace

// The id goes through a file of the job, as it goes through a store elsewhere. Rank 0 must come first.
nccl::Comm Actor::make_world(int number, const Statement* how) {
  const bool blocking = how == nullptr || !how->has("nonblocking");
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
  nccl::Config config = config_of(blocking, how != nullptr && how->has("named") ? "job" : nullptr);
  if (how != nullptr && how->has("scalable")) {
    check("ncclCommInitRankScalable", nccl::ncclCommInitRankScalable(&made, size_, rank_, 1, &id, &config));
  } else if (how != nullptr && how->has("config")) {
    check("ncclCommInitRankConfig", nccl::ncclCommInitRankConfig(&made, size_, id, rank_, &config));
  } else if (blocking) {
    check("ncclCommInitRank", nccl::ncclCommInitRank(&made, size_, id, rank_));
  } else {
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
  if (made == nullptr && !stopped_) made = make_world(number, nullptr);
  return made;
}

// allreduce 10MB [stream=N] [comm=N] [root=N] [peer=N] [unasked: a non-blocking communicator's state is not asked for]; the size is what moves, whatever the operation's count means
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
  if (one.has("config")) {  // 2.31
    if (name == "allreduce") result = ncclAllReduceConfig(in, out, count, kFloat, 0, comm, stream, nullptr);
    if (name == "reduce") result = ncclReduceConfig(in, out, count, kFloat, 0, root, comm, stream, nullptr);
    if (name == "broadcast") result = ncclBroadcastConfig(in, out, count, kFloat, root, comm, stream, nullptr);
    if (name == "allgather") result = ncclAllGatherConfig(in, out, block, kFloat, comm, stream, nullptr);
    if (name == "reducescatter") result = ncclReduceScatterConfig(in, out, block, kFloat, 0, comm, stream, nullptr);
    if (name == "alltoall") result = ncclAlltoAllConfig(in, out, block, kFloat, comm, stream, nullptr);
    if (name == "gather") result = ncclGatherConfig(in, out, block, kFloat, root, comm, stream, nullptr);
    if (name == "scatter") result = ncclScatterConfig(in, out, block, kFloat, root, comm, stream, nullptr);
  } else {
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
  }
  if (result != kInProgress) {
    check(name.c_str(), result);
    return;
  }
  while (result == kInProgress && !one.has("unasked")) {
    pause_ns(5e4);
    check("ncclCommGetAsyncError", ncclCommGetAsyncError(comm, &result));
  }
}

void Actor::group(const Statement& one) {
  check("ncclGroupStart", nccl::ncclGroupStart());
  run(one.body);
  const int result = nccl::ncclGroupEnd();
  if (result != nccl::kInProgress) check("ncclGroupEnd", result);
  else if (!one.has("unasked"))
    for (const auto& [number, non_blocking] : non_blocking_)
      if (non_blocking && comms_[number] != nullptr) await_comm(number);
}

// Nothing of it runs.
void Actor::simulate(const Statement& one) {
  check("ncclGroupStart", nccl::ncclGroupStart());
  run(one.body);
  check("ncclGroupSimulateEnd", nccl::ncclGroupSimulateEnd(nullptr));
}

// put 4KB peer=1 | signal peer=1 | wait_signal peer=1
void Actor::one_sided(const Statement& one) {
  const nccl::Comm comm = comm_number(one.number("comm", 0));
  const int peer = one.number("peer", 0);
  nccl::WaitSignalDesc awaited = {1, peer, 0, 0};
  const auto count = static_cast<std::size_t>(one.quantity() / 4);
  if (one.name() == "put") {
    check("put", nccl::ncclPutSignal(device_buffer_, count, kFloat, peer, nullptr, 0, 0, 0, 0, comm, stream_of(one)));
  } else if (one.name() == "signal") {
    check("signal", nccl::ncclSignal(peer, 0, 0, 0, comm, stream_of(one)));
  } else {
    check("wait_signal", nccl::ncclWaitSignal(1, &awaited, comm, stream_of(one)));
  }
}

// storm 8 calls=50: so many threads, each on a stream and a communicator of its own, in groups of two and alone
void Actor::storm(const Statement& one) {
  const int threads = static_cast<int>(one.quantity()), calls = one.number("calls", 50);
  std::vector<std::thread> all;
  std::atomic<std::uint64_t> failed{0};
  for (int at = 0; at < threads; ++at) {
    const nccl::Comm comm = comm_number(100 + at);
    void* stream = stream_number(100 + at);
    all.emplace_back([&, comm, stream] {
      cudaSetDevice(0);
      void *in = device_buffer_, *out = static_cast<char*>(device_buffer_) + kBufferBytes / 2;
      const auto reduce = [&] { failed += nccl::ncclAllReduce(in, out, 1000, kFloat, 0, comm, stream) != 0; };
      for (int call = 0; call < calls; ++call) {
        reduce();
        nccl::ncclGroupStart();
        reduce();
        reduce();
        failed += nccl::ncclGroupEnd() != 0;
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  if (failed != 0) check("storm", static_cast<int>(failed.load()));
}

// A forked process does it and ends; its exit code is checked.
void Actor::child(const Statement& one) {
  const int pid = fork();
  if (pid == 0) {
    run(one.body);
    std::exit(errors_.empty() ? 0 : 3);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  check("child", status);
}

// Until a non-blocking communicator is there.
void Actor::await_comm(int number) {
  int state = nccl::kInProgress;
  for (int tries = 0; tries < 50000 && state == nccl::kInProgress; ++tries) {
    pause_ns(1e5);
    const nccl::Comm comm = __atomic_load_n(&comms_[number], __ATOMIC_ACQUIRE);
    if (comm != nullptr) check("ncclCommGetAsyncError", nccl::ncclCommGetAsyncError(comm, &state));
  }
  check("await", state);
}

// comm init new=N [nonblocking] [config] [scalable] [named] | all new=N (in this process: N, N+1, ... of WORLD_SIZE devices)
// comm split new=N color=C key=K [nonblocking] | shrink new=N without=R | grow new=N size=S [rank=R, a newcomer]
// comm await | finalize | destroy | abort | revoke
void Actor::comm(const Statement& one) {
  const std::string what = one.word(1);
  const int number = one.number("comm", 0), made = one.number("new", 0);
  if (what == "init") {
    comms_[made] = make_world(made, &one);
    return;
  }
  if (what == "await") return await_comm(number);
  if (what == "all") {
    int devices = 0;
    check("cudaGetDeviceCount", cudaGetDeviceCount(&devices));
    std::vector<nccl::Comm> all(static_cast<std::size_t>(devices));
    check("ncclCommInitAll", nccl::ncclCommInitAll(all.data(), devices, nullptr));
    for (int at = 0; at < devices; ++at) comms_[made + at] = all[static_cast<std::size_t>(at)];
    return;
  }
  nccl::Config config = config_of(!one.has("nonblocking"));
  if (what == "grow") {
    // Rank 0 of the parent tells the newcomers the id.
    const std::string path = std::string(getenv("FAKE_SHARED")) + "/grow-" + std::to_string(made);
    const bool newcomer = !one.text("rank", "").empty();
    nccl::UniqueId id = {};
    const nccl::Comm parent = newcomer ? nullptr : comm_number(number);
    if (rank_ == 0) {
      check("ncclCommGetUniqueId", nccl::ncclCommGetUniqueId(parent, &id));
      std::ofstream(path + ".new", std::ios::binary).write(id.bytes, sizeof id.bytes);
      std::rename((path + ".new").c_str(), path.c_str());
    }
    for (int tries = 0; newcomer && tries < 20000 && !std::ifstream(path, std::ios::binary).read(id.bytes, sizeof id.bytes);
         ++tries) {
      pause_ns(1e6);
    }
    const int result = nccl::ncclCommGrow(parent, one.number("size", size_), newcomer ? &id : nullptr, one.number("rank", -1),
                                          &comms_[made], &config);
    if (result != nccl::kInProgress) check("ncclCommGrow", result);
    return;
  }
  const nccl::Comm comm = comm_number(number);
  if (what == "split") {
    non_blocking_[made] = one.has("nonblocking");
    const int result =
        nccl::ncclCommSplit(comm, one.number("color", 0), one.number("key", rank_), &comms_[made], &config);
    if (result != nccl::kInProgress) check("ncclCommSplit", result);
  } else if (what == "shrink") {
    int without = one.number("without", 0);
    check("ncclCommShrink", nccl::ncclCommShrink(comm, &without, 1, &comms_[made], nullptr, 0));
  } else if (what == "finalize") {
    check("ncclCommFinalize", nccl::ncclCommFinalize(comm));
  } else if (what == "revoke") {
    check("ncclCommRevoke", nccl::ncclCommRevoke(comm, 0));
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
