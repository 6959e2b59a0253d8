// Hooks of groups and of the life of communicators. SPDX-License-Identifier: Apache-2.0
//
// Identity: the hash of the whole unique id that the caller gives to all ranks; for a derived communicator the parent's
// identity, the request and its number among such calls on the parent, which all ranks make in one order.
#include "collectors/nccl/calls.h"
#include "collectors/nccl/functions.h"
#include "collectors/nccl/hooks.h"
#include "collectors/nccl/late_launches.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "device/timeline.h"
#include "hooks/interpose.h"
#include "runtime/emit.h"

using namespace stashtrace::nccl;
using stashtrace::now_ticks;

namespace stashtrace::nccl {
void before_communicator() noexcept;  // nccl_collector.cpp
}

namespace {

class InsideHook {
 public:
  InsideHook() noexcept { thread.inside = true; }
  ~InsideHook() { thread.inside = false; }
  InsideHook(const InsideHook&) = delete;
  InsideHook& operator=(const InsideHook&) = delete;

 private:
  stashtrace::device::Inside what_nccl_asks_of_cuda_;
};

bool passes_through() noexcept { return !is_on() || thread.inside; }

NewComm begun(std::uint16_t event, std::uint64_t hash, std::uint64_t parent, int rank, int size,
              const Config* config) noexcept {
  NewComm facts;
  facts.event = event;
  facts.group_hash = hash;
  facts.parent_hash = parent;
  facts.rank = rank;
  facts.size = size;
  facts.begin_ticks = now_ticks();
  if (config != nullptr && config->magic == kConfigMagic && config->size >= sizeof(Config) &&
      config->comm_name != nullptr)
    facts.name_id = stashtrace::intern(config->comm_name);
  return facts;
}

// The communicator exists now, or when the group ends, or later on another thread.
void made(Comm* where, NewComm& facts, Result result, bool known_now) noexcept {
  facts.end_ticks = now_ticks();
  const bool failed = result != kSuccess && result != kInProgress;
  if (failed || where == nullptr) return;
  if (group_open() && await_comm(where, facts)) return;
  if (known_now && *where != nullptr) add_comm(*where, facts);
  else if (result == kInProgress || group_open()) promise_comm(facts);
}

std::uint32_t next_child(Comm parent, unsigned kind) noexcept {
  CommEntry* entry = find_or_adopt(parent);
  return entry != nullptr ? entry->children[kind].fetch_add(1, std::memory_order_relaxed) : 0;
}
std::uint64_t hash_of_comm(Comm comm) noexcept {
  CommEntry* entry = find_or_adopt(comm);
  return entry != nullptr ? entry->group_hash : 0;
}

// Finalize, destroy, abort, revoke. An ended communicator is forgotten first: another thread may get its address.
template <class Call>
Result ending(Comm comm, std::uint16_t event, bool gone, Call call) {
  if (passes_through()) return call();
  const InsideHook guard;
  stashtrace::schema::NcclComm row{};
  row.begin_ticks = now_ticks();
  bool known = false;
  if (gone) {
    const std::uint64_t begin = row.begin_ticks;
    lose_late_launches(comm);
    known = drop_comm(comm, row);
    row.begin_ticks = begin;
  } else if (CommEntry* entry = find_comm(comm)) {
    known = true;
    row.group_hash = entry->group_hash;
    row.parent_hash = entry->parent_hash;
    row.comm_key = reinterpret_cast<std::uintptr_t>(comm);
    row.name_id = entry->name_id;
    row.group_rank = entry->rank;
    row.group_size = entry->size;
    row.nodes_count = entry->nodes;
    row.device_index = entry->device;
    row.source_code = source_code::events;
  }
  const Result result = call();
  row.end_ticks = now_ticks();
  row.event_code = event;
  if (known) stashtrace::emit(row);
  return result;
}

template <class F, class... Args>
Result pass(F* real, Args... args) {
  return real != nullptr ? real(args...) : kInternalError;
}
#define REAL_CALL(name, ...) pass(STASHTRACE_NCCL_REAL(name) __VA_OPT__(, ) __VA_ARGS__)

}  // namespace

STASHTRACE_HOOK(Result, ncclGroupStart) {
  const Result result = REAL_CALL(ncclGroupStart);
  if (!passes_through()) group_began(result);
  return result;
}
STASHTRACE_HOOK(Result, ncclGroupEnd) {
  if (passes_through() || !group_open()) return REAL_CALL(ncclGroupEnd);
  const InsideHook guard;
  const EndingGroup group = group_ends(false);
  const Result result = REAL_CALL(ncclGroupEnd);
  group_ended(group, result, false);
  return result;
}

STASHTRACE_HOOK(Result, ncclCommInitRank, Comm* comm, int size, UniqueId id, int rank) {
  if (passes_through()) return REAL_CALL(ncclCommInitRank, comm, size, id, rank);
  const InsideHook guard;
  before_communicator();
  NewComm facts = begun(comm_event::init, hash_of(&id, 1), 0, rank, size, nullptr);
  const Result result = REAL_CALL(ncclCommInitRank, comm, size, id, rank);
  made(comm, facts, result, true);
  return result;
}
STASHTRACE_HOOK(Result, ncclCommInitRankConfig, Comm* comm, int size, UniqueId id, int rank, Config* config) {
  if (passes_through()) return REAL_CALL(ncclCommInitRankConfig, comm, size, id, rank, config);
  const InsideHook guard;
  before_communicator();
  NewComm facts = begun(comm_event::init, hash_of(&id, 1), 0, rank, size, config);
  const Result result = REAL_CALL(ncclCommInitRankConfig, comm, size, id, rank, config);
  made(comm, facts, result, true);
  return result;
}
STASHTRACE_HOOK(Result, ncclCommInitAll, Comm* comms, int count, const int* devices) {
  if (passes_through()) return REAL_CALL(ncclCommInitAll, comms, count, devices);
  const InsideHook guard;
  before_communicator();
  // All ranks are in this process: an identity that no other process has is enough.
  static constinit std::atomic<std::uint64_t> ordinal{0};
  const std::uint64_t words[] = {static_cast<std::uint64_t>(stashtrace::raw::getpid()), now_ticks(),
                                 ordinal.fetch_add(1)};
  NewComm facts = begun(comm_event::init, hash_bytes(words, sizeof words, 3), 0, 0, count, nullptr);
  const Result result = REAL_CALL(ncclCommInitAll, comms, count, devices);
  for (int i = 0; comms != nullptr && i < count && result == kSuccess; ++i) {
    facts.rank = i;
    made(comms + i, facts, result, true);
  }
  return result;
}
STASHTRACE_HOOK(Result, ncclCommSplit, Comm parent, int color, int key, Comm* comm, Config* config) {
  if (passes_through()) return REAL_CALL(ncclCommSplit, parent, color, key, comm, config);
  const InsideHook guard;
  const std::uint64_t parent_hash = hash_of_comm(parent);
  const std::uint32_t ordinal = next_child(parent, 0);
  NewComm facts = begun(comm_event::split, derived_hash(parent_hash, comm_event::split, color, ordinal), parent_hash,
                        -1, -1, config);
  const Result result = REAL_CALL(ncclCommSplit, parent, color, key, comm, config);
  if (color != kNoColor) made(comm, facts, result, true);
  return result;
}
STASHTRACE_HOOK(Result, ncclCommFinalize, Comm comm) {
  return ending(comm, comm_event::finalize, false, [=] { return REAL_CALL(ncclCommFinalize, comm); });
}
STASHTRACE_HOOK(Result, ncclCommDestroy, Comm comm) {
  return ending(comm, comm_event::destroy, true, [=] { return REAL_CALL(ncclCommDestroy, comm); });
}
STASHTRACE_HOOK(Result, ncclCommAbort, Comm comm) {
  return ending(comm, comm_event::abort, true, [=] { return REAL_CALL(ncclCommAbort, comm); });
}
// NCCL asks itself, too, from within its calls: that is passed on.
STASHTRACE_HOOK(Result, ncclCommGetAsyncError, Comm comm, Result* state) {
  const Result result = REAL_CALL(ncclCommGetAsyncError, comm, state);
  if (result == kSuccess && state != nullptr && *state != kInProgress && !passes_through())
    end_late_launches(comm, *state);
  return result;
}

namespace stashtrace::nccl::hooked {

Result ncclGroupSimulateEnd(SimInfo* info) {
  if (passes_through() || !group_open()) return REAL_CALL(ncclGroupSimulateEnd, info);
  const InsideHook guard;
  const EndingGroup group = group_ends(true);
  const Result result = REAL_CALL(ncclGroupSimulateEnd, info);
  group_ended(group, result, true);
  return result;
}
Result ncclCommInitRankScalable(Comm* comm, int size, int rank, int ids_count, UniqueId* ids, Config* config) {
  if (passes_through()) return REAL_CALL(ncclCommInitRankScalable, comm, size, rank, ids_count, ids, config);
  const InsideHook guard;
  before_communicator();
  NewComm facts = begun(comm_event::init, hash_of(ids, ids_count), 0, rank, size, config);
  const Result result = REAL_CALL(ncclCommInitRankScalable, comm, size, rank, ids_count, ids, config);
  made(comm, facts, result, true);
  return result;
}
Result ncclCommShrink(Comm parent, int* excluded, int count, Comm* comm, Config* config, int flags) {
  if (passes_through()) return REAL_CALL(ncclCommShrink, parent, excluded, count, comm, config, flags);
  const InsideHook guard;
  const std::uint64_t parent_hash = hash_of_comm(parent);
  std::uint64_t sum = 0;  // independent of the order in which a rank lists them
  for (int i = 0; excluded != nullptr && i < count; ++i) sum += hash_bytes(excluded + i, sizeof(int), 4);
  const std::uint32_t ordinal = next_child(parent, 1);
  NewComm facts =
      begun(comm_event::shrink, derived_hash(parent_hash, comm_event::shrink, static_cast<std::int64_t>(sum), ordinal),
            parent_hash, -1, -1, config);
  const Result result = REAL_CALL(ncclCommShrink, parent, excluded, count, comm, config, flags);
  made(comm, facts, result, true);
  return result;
}
Result ncclCommGrow(Comm parent, int size, const UniqueId* id, int rank, Comm* comm, Config* config) {
  if (passes_through()) return REAL_CALL(ncclCommGrow, parent, size, id, rank, comm, config);
  const InsideHook guard;
  before_communicator();
  // Old ranks know the parent, new ones the unique id, and nothing is known to both: add_comm() takes the identity that
  // the plugin reports; without it the new ranks stay apart from the old ones.
  const std::uint64_t parent_hash = parent != nullptr ? hash_of_comm(parent) : 0;
  const std::uint64_t hash =
      parent != nullptr ? derived_hash(parent_hash, comm_event::grow, size, next_child(parent, 2)) : hash_of(id, 1);
  NewComm facts = begun(comm_event::grow, hash, parent_hash, rank, size, config);
  const Result result = REAL_CALL(ncclCommGrow, parent, size, id, rank, comm, config);
  made(comm, facts, result, true);
  return result;
}
Result ncclCommRevoke(Comm comm, int flags) {
  return ending(comm, comm_event::revoke, false, [=] { return REAL_CALL(ncclCommRevoke, comm, flags); });
}

}  // namespace stashtrace::nccl::hooked
