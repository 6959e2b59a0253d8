// Communicators of this process: identity across ranks, number of each operation. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks (any thread) and the plugin (NCCL's threads). Reading takes no lock; entries are made and ended under
// one, which happens a few times in a job. NCCL does not give a communicator's identity, so it is the hash of
// the whole unique id that all ranks were given, or derived from the parent in the order of the calls on it.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/nccl_abi.h"
#include "schema/schema.h"

namespace stashtrace::nccl {

#pragma GCC visibility push(hidden)

struct RecentCall {
  std::atomic<std::uint32_t> call_id;  // 0: empty, or already matched
  std::uint16_t op;
  bool captured;
  std::int32_t peer;
  std::uint64_t bytes;  // as one rank gives them
};
inline constexpr unsigned kRecentCalls =
    512;  // a group's, before the plugin gets its events: an all-to-all of 256 ranks

struct CommEntry {
  std::atomic<Comm> comm;  // null: free; kGone: was in use
  std::uint64_t group_hash;
  std::uint64_t parent_hash;
  bool grown, unseen;   // unseen: no hook saw how it was made
  std::uint16_t event;  // how it was made; its row is written when its size and rank are known
  std::uint64_t begin_ticks, end_ticks;
  std::atomic<bool> unknown;  // size or rank must be asked for again: it is still being made
  std::int32_t rank, size, nodes, device;
  std::uint32_t name_id;
  std::atomic<std::uint64_t> sequence;     // of the next operation
  std::atomic<std::uint32_t> children[3];  // splits, shrinks, grows so far
  std::atomic<bool> captured;              // a call was captured: tasks without a call are replays
  std::atomic<bool> wants_plugin;          // not yet joined with a context of the plugin
  std::atomic<std::uint32_t> recent_at;
  RecentCall recent[kRecentCalls];  // for plugin versions that do not report the call
};

std::uint64_t hash_bytes(const void* bytes, std::size_t count, std::uint64_t seed) noexcept;
std::uint64_t hash_of(const UniqueId* ids, int count) noexcept;
std::uint64_t derived_hash(std::uint64_t parent, std::uint16_t event, std::int64_t what,
                           std::uint64_t ordinal) noexcept;

// Returns the entry, or null for an unknown communicator (made before we looked).
CommEntry* find_comm(Comm comm) noexcept;
// The same, but makes an entry for an unknown one: its call returned before it was there, or it is adopted.
CommEntry* find_or_adopt(Comm comm) noexcept;

struct NewComm {
  std::uint64_t group_hash = 0, parent_hash = 0;
  std::int32_t rank = -1, size = -1;
  std::uint32_t name_id = 0;  // interned: the caller's text may be gone when a group ends
  std::uint16_t event = 0;
  bool unseen = false;
  std::uint64_t begin_ticks = 0, end_ticks = 0;
};
// Registers a communicator, joins it with the plugin's context if there is one, and writes its row: now, or when NCCL
// knows its size and rank.
CommEntry* add_comm(Comm comm, const NewComm& facts) noexcept;
// A call that will make a communicator later (ncclInProgress, or inside a group of a kind that fills it in at the end).
void promise_comm(const NewComm& facts) noexcept;
// Takes it out; false if it was not known. Call before the real call: its address may be reused right after it.
bool drop_comm(Comm comm, schema::NcclComm& row) noexcept;

void forget_comms() noexcept;  // in a forked child

#pragma GCC visibility pop

}  // namespace stashtrace::nccl
