// libnccl.so.2 as a double: communicators across processes. SPDX-License-Identifier: Apache-2.0
//
// Settings: nccl.version 22809, nccl.bandwidth, nccl.latency, nccl.nodes and nccl.network.* (fake_nccl_work.cpp),
// nccl.destroy.waits 1 (ncclCommDestroy waits for the device), nccl.nonblocking.delay, nccl.children.late 1 (a non-blocking
// split fills in its communicator when that is ready, as NCCL does). Its CUDA calls go to the driver double directly, as the real library has its own runtime inside.
#include <dlfcn.h>
#include <sys/random.h>

#include <cstring>
#include <thread>

#include "nccl_api.h"

using namespace fake;

FAKE_COUNTS_AT_EXIT("nccl")

namespace fake {

Engine* engine() {
  static Engine* const found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    auto* get = library == nullptr ? nullptr : reinterpret_cast<Engine* (*)()>(dlsym(library, "fake_engine"));
    return get == nullptr ? nullptr : get();
  }();
  return found;
}

}  // namespace fake

namespace {

std::uint64_t hash_of(const void* data, std::size_t bytes, std::uint64_t seed = 0xcbf29ce484222325ULL) {
  for (std::size_t at = 0; at < bytes; ++at) seed = (seed ^ static_cast<const unsigned char*>(data)[at]) * 0x100000001b3ULL;
  return seed;
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Attaches; whether all others are there is wait_attached()'s business.
int make(nccl::Comm* out, std::uint64_t hash, int size, int rank, const nccl::Config* config, int device = -1) {
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) return nccl::kInvalidArgument;
  if (engine() == nullptr || engine()->current_device() < 0) return nccl::kUnhandledCudaError;
  auto comm = std::make_shared<CommState>();
  comm->hash = hash;
  comm->name = hex(hash);
  comm->size = size;
  comm->rank = rank;
  comm->device = device >= 0 ? device : engine()->current_device();
  if (config != nullptr) {
    comm->blocking = config->blocking == nccl::kUndefinedInt || config->blocking != 0;
    const bool named = config->size >= offsetof(nccl::Config, comm_name) + sizeof config->comm_name;
    if (named && config->comm_name != nullptr) comm->comm_name = config->comm_name;
  }
  comm->meeting = std::make_unique<Rendezvous>(comm->name, size, rank);
  if (!comm->meeting->usable()) return nccl::kSystemError;
  comm->plugin = std::make_unique<PluginSession>(*comm);
  *out = new nccl::CommOpaque{comm};
  return nccl::kSuccess;
}

int finish_init(nccl::Comm* out, bool is_child) {
  const nccl::Comm handle = *out;
  const CommPtr comm = handle->state;
  if (t_group.depth > 0) {
    t_group.inits.push_back(comm);
    return nccl::kSuccess;
  }
  if (comm->blocking) {
    const OnDevice current(comm->device);
    comm->plugin->open();
    return comm->meeting->wait_attached() ? nccl::kSuccess : nccl::kSystemError;
  }
  comm->pending.fetch_add(1);
  const bool late = is_child && setting("nccl.children.late", 0) != 0;
  if (late) *out = nullptr;
  std::thread([comm, handle, out, late] {
    pause_ns(setting("nccl.nonblocking.delay", 200e3));
    open_plugin(*comm);
    if (!comm->meeting->wait_attached()) comm->async_error.store(nccl::kSystemError);
    comm->pending.fetch_sub(1);
    if (late) __atomic_store_n(out, handle, __ATOMIC_RELEASE);
  }).detach();
  return nccl::kInProgress;
}

}  // namespace

// 2.27.7 src/init.cc, ncclCommInitRankFunc: cudaSetDevice, then (initTransportsRank) ncclProfilerPluginInit. In a group, for
// ncclCommInitAll and for a non-blocking communicator that is an asynchronous job with a thread of its own (src/group.cc,
// groupLaunch and ncclAsyncLaunch); else it is the caller's thread.
void fake::open_plugin(CommState& comm) {
  std::thread([&comm] {
    const OnDevice current(comm.device);
    comm.plugin->open();
  }).join();
}

namespace {

int init(nccl::Comm* out, const nccl::UniqueId& id, int size, int rank, const nccl::Config* config) {
  *out = nullptr;
  if (const int error = make(out, hash_of(id.bytes, sizeof id.bytes), size, rank, config); error != 0) return error;
  return finish_init(out, false);
}

// As NCCL: what is still being made answers with an error.
bool ready(nccl::Comm handle) { return handle != nullptr && handle->state->pending.load() == 0; }

std::uint64_t child_hash(const CommState& parent, const char* how, std::uint64_t number, int color) {
  const std::uint64_t words[] = {parent.hash, number, static_cast<std::uint64_t>(color)};
  return hash_of(words, sizeof words, hash_of(how, std::strlen(how)));
}

// Own functions are not called by their exported names: an old release has not all of these.
int make_id(nccl::UniqueId* id) {
  std::memset(id->bytes, 0, sizeof id->bytes);  // most bytes are common, as those of a real id are
  return getrandom(id->bytes + 24, 16, 0) == 16 ? nccl::kSuccess : nccl::kSystemError;
}

void grown_id(const CommState& comm, nccl::UniqueId* id) {
  std::memset(id->bytes, 0, sizeof id->bytes);
  const std::uint64_t hash = child_hash(comm, "grow", 0, 0);
  std::memcpy(id->bytes + 24, &hash, sizeof hash);
}

}  // namespace

FAKE_API int pncclGetVersion(int* version) {
  FAKE_CALL(ncclGetVersion);
  *version = nccl_version();
  return nccl::kSuccess;
}
FAKE_ALIAS(GetVersion, (int*))

FAKE_API int pncclGetUniqueId(nccl::UniqueId* id) {
  FAKE_CALL(ncclGetUniqueId);
  return make_id(id);
}
FAKE_ALIAS(GetUniqueId, (nccl::UniqueId*))

FAKE_API int pncclCommInitRank(nccl::Comm* comm, int size, nccl::UniqueId id, int rank) {
  FAKE_CALL(ncclCommInitRank);
  return init(comm, id, size, rank, nullptr);
}
FAKE_ALIAS(CommInitRank, (nccl::Comm*, int, nccl::UniqueId, int))

FAKE_API int pncclCommInitRankConfig(nccl::Comm* comm, int size, nccl::UniqueId id, int rank, nccl::Config* config) {
  FAKE_CALL(ncclCommInitRankConfig);
  return init(comm, id, size, rank, config);
}
FAKE_ALIAS(CommInitRankConfig, (nccl::Comm*, int, nccl::UniqueId, int, nccl::Config*))

FAKE_API int pncclCommInitRankScalable(nccl::Comm* comm, int size, int rank, int, nccl::UniqueId* ids,
                                       nccl::Config* config) {
  FAKE_CALL(ncclCommInitRankScalable);
  return init(comm, ids[0], size, rank, config);
}
FAKE_ALIAS(CommInitRankScalable, (nccl::Comm*, int, int, int, nccl::UniqueId*, nccl::Config*))

FAKE_API int pncclCommInitAll(nccl::Comm* comms, int count, const int* devices) {
  FAKE_CALL(ncclCommInitAll);
  nccl::UniqueId id;
  if (const int error = make_id(&id); error != 0) return error;
  for (int rank = 0; rank < count; ++rank) {
    if (const int error = make(&comms[rank], hash_of(id.bytes, sizeof id.bytes), count, rank, nullptr,
                               devices != nullptr ? devices[rank] : rank);
        error != 0) {
      return error;
    }
    open_plugin(*comms[rank]->state);
  }
  return nccl::kSuccess;
}
FAKE_ALIAS(CommInitAll, (nccl::Comm*, int, const int*))

FAKE_API int pncclCommSplit(nccl::Comm handle, int color, int key, nccl::Comm* out, nccl::Config* config) {
  FAKE_CALL(ncclCommSplit);
  *out = nullptr;
  if (handle == nullptr) return nccl::kInvalidArgument;
  CommState& parent = *handle->state;
  const std::uint64_t number = parent.admin_number++;
  std::int64_t all[kMostRanks];
  const auto own = static_cast<std::int64_t>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(color)) << 32) |
                                             static_cast<std::uint32_t>(key));
  if (!parent.meeting->exchange(number, own, all)) return nccl::kSystemError;
  if (color == nccl::kNoColor) return nccl::kSuccess;
  int size = 0, rank = 0;
  for (int peer = 0; peer < parent.size; ++peer) {
    if (static_cast<int>(all[peer] >> 32) != color) continue;
    ++size;
    const int peer_key = static_cast<int>(all[peer] & 0xffffffff);
    if (peer_key < key || (peer_key == key && peer < parent.rank)) ++rank;
  }
  if (const int error = make(out, child_hash(parent, "split", number, color), size, rank, config); error != 0) return error;
  return finish_init(out, true);
}
FAKE_ALIAS(CommSplit, (nccl::Comm, int, int, nccl::Comm*, nccl::Config*))

FAKE_API int pncclCommShrink(nccl::Comm handle, int* excluded, int excluded_count, nccl::Comm* out, nccl::Config* config,
                             int) {
  FAKE_CALL(ncclCommShrink);
  *out = nullptr;
  if (handle == nullptr) return nccl::kInvalidArgument;
  CommState& parent = *handle->state;
  int rank = parent.rank;
  std::uint64_t mask = 0;
  for (int at = 0; at < excluded_count; ++at) {
    if (excluded[at] == parent.rank) return nccl::kInvalidUsage;
    if (excluded[at] < parent.rank) --rank;
    mask |= std::uint64_t{1} << excluded[at];
  }
  // Only those that stay make this call, so its number is not one of exchange().
  const std::uint64_t hash = child_hash(parent, "shrink", mask, excluded_count);
  if (const int error = make(out, hash, parent.size - excluded_count, rank, config); error != 0) return error;
  return finish_init(out, true);
}
FAKE_ALIAS(CommShrink, (nccl::Comm, int*, int, nccl::Comm*, nccl::Config*, int))

FAKE_API int pncclCommGetUniqueId(nccl::Comm handle, nccl::UniqueId* id) {
  FAKE_CALL(ncclCommGetUniqueId);
  grown_id(*handle->state, id);
  return nccl::kSuccess;
}
FAKE_ALIAS(CommGetUniqueId, (nccl::Comm, nccl::UniqueId*))

FAKE_API int pncclCommGrow(nccl::Comm handle, int size, const nccl::UniqueId* id, int rank, nccl::Comm* out,
                           nccl::Config* config) {
  FAKE_CALL(ncclCommGrow);
  nccl::UniqueId own;
  if (handle != nullptr) {  // a member; newcomers bring the id instead
    grown_id(*handle->state, &own);
    id = &own;
    rank = handle->state->rank;
  }
  return id == nullptr ? nccl::kInvalidArgument : init(out, *id, size, rank, config);
}
FAKE_ALIAS(CommGrow, (nccl::Comm, int, const nccl::UniqueId*, int, nccl::Comm*, nccl::Config*))

namespace {

void wait_for_device(CommState& comm) {
  while (comm.pending.load() != 0) pause_ns(1e5);
  std::unique_lock lock(comm.mutex);
  comm.turn.wait(lock, [&] { return comm.served == comm.next_ticket || comm.meeting->aborted(); });
}

}  // namespace

FAKE_API int pncclCommFinalize(nccl::Comm handle) {
  FAKE_CALL(ncclCommFinalize);
  if (handle == nullptr) return nccl::kInvalidArgument;
  if (handle->state->blocking) wait_for_device(*handle->state);
  return handle->state->blocking ? nccl::kSuccess : nccl::kInProgress;
}
FAKE_ALIAS(CommFinalize, (nccl::Comm))

FAKE_API int pncclCommDestroy(nccl::Comm handle) {
  FAKE_CALL(ncclCommDestroy);
  if (handle == nullptr) return nccl::kSuccess;
  if (setting("nccl.destroy.waits", 0) != 0) wait_for_device(*handle->state);
  delete handle;
  return nccl::kSuccess;
}
FAKE_ALIAS(CommDestroy, (nccl::Comm))

FAKE_API int pncclCommAbort(nccl::Comm handle) {
  FAKE_CALL(ncclCommAbort);
  if (handle == nullptr) return nccl::kSuccess;
  handle->state->meeting->abort();
  delete handle;
  return nccl::kSuccess;
}
FAKE_ALIAS(CommAbort, (nccl::Comm))

FAKE_API int pncclCommRevoke(nccl::Comm handle, int) {
  FAKE_CALL(ncclCommRevoke);
  if (handle == nullptr) return nccl::kInvalidArgument;
  handle->state->meeting->abort();
  return nccl::kSuccess;
}
FAKE_ALIAS(CommRevoke, (nccl::Comm, int))

FAKE_API int pncclCommCount(nccl::Comm handle, int* size) {
  FAKE_CALL(ncclCommCount);
  if (!ready(handle)) return nccl::kInvalidArgument;
  *size = handle->state->size;
  return nccl::kSuccess;
}
FAKE_ALIAS(CommCount, (nccl::Comm, int*))

FAKE_API int pncclCommUserRank(nccl::Comm handle, int* rank) {
  FAKE_CALL(ncclCommUserRank);
  if (!ready(handle)) return nccl::kInvalidArgument;
  *rank = handle->state->rank;
  return nccl::kSuccess;
}
FAKE_ALIAS(CommUserRank, (nccl::Comm, int*))

FAKE_API int pncclCommCuDevice(nccl::Comm handle, int* device) {
  FAKE_CALL(ncclCommCuDevice);
  if (handle == nullptr) return nccl::kInvalidArgument;
  *device = handle->state->device;
  return nccl::kSuccess;
}
FAKE_ALIAS(CommCuDevice, (nccl::Comm, int*))

FAKE_API int pncclCommGetAsyncError(nccl::Comm handle, int* error) {
  FAKE_CALL(ncclCommGetAsyncError);
  if (handle == nullptr) return nccl::kInvalidArgument;
  const CommState& comm = *handle->state;
  *error = comm.pending.load() != 0 ? nccl::kInProgress : comm.async_error.load();
  return nccl::kSuccess;
}
FAKE_ALIAS(CommGetAsyncError, (nccl::Comm, int*))

FAKE_API const char* ncclGetErrorString(int error) { return error == 0 ? "no error" : "an error of the double"; }
FAKE_API const char* ncclGetLastError(nccl::Comm) { return ""; }
