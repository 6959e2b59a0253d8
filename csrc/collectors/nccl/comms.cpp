// Implementation of comms.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/comms.h"

#include "collectors/nccl/functions.h"
#include "collectors/nccl/nccl_collector.h"
#include "collectors/nccl/plugin.h"
#include "core/clock.h"
#include "core/futex_lock.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::nccl {

namespace {

constexpr unsigned kSlots = 1024;  // communicators alive at the same time; a power of two
constexpr unsigned kPromises = 64;
const Comm kGone = reinterpret_cast<Comm>(1);

constinit CommEntry g_entries[kSlots] = {};
constinit FutexLock g_lock;
constinit NewComm g_promises[kPromises] = {};
constinit unsigned g_promised = 0;

unsigned home_of(Comm comm) noexcept {
  return static_cast<unsigned>((reinterpret_cast<std::uintptr_t>(comm) >> 4) * 0x9e3779b97f4a7c15u >> 40) &
         (kSlots - 1);
}

std::int32_t ask(Name name, Comm comm) noexcept {
  auto* query = real_function<function::ncclCommCount>(name);
  int value = -1;
  return query != nullptr && query(comm, &value) == kSuccess ? value : -1;
}

void fill(CommEntry& entry, const NewComm& facts) noexcept {
  entry.group_hash = facts.group_hash;
  entry.parent_hash = facts.parent_hash;
  entry.grown = facts.event == comm_event::grow;
  entry.unseen = facts.unseen;
  entry.event = facts.event;
  entry.begin_ticks = facts.begin_ticks;
  entry.end_ticks = facts.end_ticks;
  entry.rank = facts.rank;
  entry.size = facts.size;
  entry.nodes = -1;
  entry.name_id = facts.name_id;
  entry.sequence.store(0, std::memory_order_relaxed);
  for (auto& count : entry.children) count.store(0, std::memory_order_relaxed);
  entry.captured.store(false, std::memory_order_relaxed);
  entry.recent_at.store(0, std::memory_order_relaxed);
  for (auto& call : entry.recent) call.call_id.store(0, std::memory_order_relaxed);
}

schema::NcclComm row_of(const CommEntry& entry, Comm comm) noexcept {
  schema::NcclComm row{};
  row.group_hash = entry.group_hash;
  row.parent_hash = entry.parent_hash;
  row.comm_key = reinterpret_cast<std::uintptr_t>(comm);
  row.name_id = entry.name_id;
  row.group_rank = entry.rank;
  row.group_size = entry.size;
  row.nodes_count = entry.nodes;
  row.device_index = entry.device;
  row.source_code = source_code::events;
  return row;
}

void write_row(const CommEntry& entry, Comm comm) noexcept {
  schema::NcclComm row = row_of(entry, comm);
  row.begin_ticks = entry.begin_ticks;
  row.end_ticks = entry.end_ticks;
  row.event_code = entry.event;
  emit(row);
}

// Calls into NCCL, so no lock is held. A communicator that is being made would return an error and log a warning, so its
// state is asked first; its next operation asks again, on the thread that uses it.
void learn(CommEntry& entry, Comm comm) noexcept {
  if (!entry.unknown.exchange(false, std::memory_order_relaxed)) return;
  auto* state_of = STASHTRACE_NCCL_REAL(ncclCommGetAsyncError);
  Result state = kSuccess;
  const bool ready = state_of == nullptr || (state_of(comm, &state) == kSuccess && state != kInProgress);
  if (ready && entry.size < 0) entry.size = ask(Name::ncclCommCount, comm);
  if (ready && entry.rank < 0) entry.rank = ask(Name::ncclCommUserRank, comm);
  if (ready && entry.device < 0) entry.device = ask(Name::ncclCommCuDevice, comm);
  if (entry.size < 0 || entry.rank < 0) {
    entry.unknown.store(true, std::memory_order_relaxed);
    return;
  }
  if (entry.device < 0) entry.device = device::current_device();
  note_communicator_on(entry.device);
  plugin::join(entry, entry.unseen ? 0 : entry.begin_ticks);
  write_row(entry, comm);
}

bool take_promise(NewComm& out) noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  const bool any = g_promised > 0;
  if (any) {
    out = g_promises[0];
    for (unsigned i = 1; i < g_promised; ++i) g_promises[i - 1] = g_promises[i];
    --g_promised;
  }
  g_lock.unlock();
  return any;
}

}  // namespace

// FNV-1a; every byte counts, since unique ids of one job differ in few of them.
std::uint64_t hash_bytes(const void* bytes, std::size_t count, std::uint64_t seed) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (std::size_t i = 0; i < count; ++i) {
    hash ^= static_cast<const unsigned char*>(bytes)[i];
    hash *= 0x100000001b3u;
  }
  hash ^= hash >> 32;
  hash *= 0x9e3779b97f4a7c15u;
  return hash != 0 ? hash : 1;
}

std::uint64_t hash_of(const UniqueId* ids, int count) noexcept {
  return ids == nullptr || count <= 0 ? 0 : hash_bytes(ids, sizeof(UniqueId) * static_cast<std::size_t>(count), 0);
}

std::uint64_t derived_hash(std::uint64_t parent, std::uint16_t event, std::int64_t what,
                           std::uint64_t ordinal) noexcept {
  const std::uint64_t words[] = {parent, event, static_cast<std::uint64_t>(what), ordinal};
  return hash_bytes(words, sizeof words, 1);
}

CommEntry* find_comm(Comm comm) noexcept {
  if (comm == nullptr) return nullptr;
  for (unsigned i = home_of(comm), n = 0; n < kSlots; ++n, i = (i + 1) & (kSlots - 1)) {
    const Comm here = g_entries[i].comm.load(std::memory_order_acquire);
    if (here == comm) return &g_entries[i];
    if (here == nullptr) return nullptr;
  }
  return nullptr;
}

CommEntry* find_or_adopt(Comm comm) noexcept {
  if (CommEntry* known = find_comm(comm)) [[likely]] {
    if (known->unknown.load(std::memory_order_relaxed)) learn(*known, comm);
    if (known->wants_plugin.load(std::memory_order_relaxed)) plugin::join(*known, 0);
    return known;
  }
  if (comm == nullptr) return nullptr;
  NewComm facts;
  facts.begin_ticks = facts.end_ticks = now_ticks();
  facts.event = comm_event::init;
  if (!take_promise(facts)) {
    // Made before we were here: its identity cannot be shared with the other ranks. Unique in the host at least.
    const std::uint64_t words[] = {reinterpret_cast<std::uintptr_t>(comm), static_cast<std::uint64_t>(raw::getpid()),
                                   facts.begin_ticks};
    facts.group_hash = hash_bytes(words, sizeof words, 2);
    facts.unseen = true;
  }
  CommEntry* made = add_comm(comm, facts);
  if (made != nullptr && made->unseen && made->wants_plugin.load(std::memory_order_relaxed))
    report_loss(kCollectorCode, "communicator_unknown", 1,
                "a communicator was made before the hooks were there: its operations cannot be matched across ranks",
                schema::codes::Severity::error);
  return made;
}

CommEntry* add_comm(Comm comm, const NewComm& facts) noexcept {
  if (comm == nullptr) return nullptr;
  CommEntry* entry = nullptr;
  {
    const raw::SignalsBlocked quiet;
    g_lock.lock();
    for (unsigned i = home_of(comm), n = 0; n < kSlots && entry == nullptr; ++n, i = (i + 1) & (kSlots - 1)) {
      const Comm here = g_entries[i].comm.load(std::memory_order_relaxed);
      if (here == nullptr || here == kGone || here == comm) entry = &g_entries[i];
    }
    if (entry != nullptr) {
      fill(*entry, facts);
      entry->comm.store(comm, std::memory_order_release);
    }
    g_lock.unlock();
  }
  if (entry == nullptr) {
    count(Count::registry_full);
    return nullptr;
  }
  entry->device = -1;
  entry->wants_plugin.store(true, std::memory_order_relaxed);
  entry->unknown.store(true, std::memory_order_relaxed);
  learn(*entry, comm);
  report_source(true);
  return entry;
}

void promise_comm(const NewComm& facts) noexcept {
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  const bool room = g_promised < kPromises;
  if (room) {
    g_promises[g_promised++] = facts;
  }
  g_lock.unlock();
  if (!room) count(Count::registry_full);
}

bool drop_comm(Comm comm, schema::NcclComm& row) noexcept {
  CommEntry* entry = find_comm(comm);
  if (entry == nullptr) return false;
  if (entry->unknown.exchange(false, std::memory_order_relaxed)) write_row(*entry, comm);  // it had no operation
  row = row_of(*entry, comm);
  plugin::leave(*entry);
  const raw::SignalsBlocked quiet;
  g_lock.lock();
  entry->comm.store(kGone, std::memory_order_release);
  g_lock.unlock();
  return true;
}

void forget_comms() noexcept {
  g_lock.reset();
  g_promised = 0;
  // Only what was used: a child gets no copies of the pages of the rest.
  for (auto& entry : g_entries)
    if (entry.comm.load(std::memory_order_relaxed) != nullptr) entry.comm.store(nullptr, std::memory_order_relaxed);
}

}  // namespace stashtrace::nccl
