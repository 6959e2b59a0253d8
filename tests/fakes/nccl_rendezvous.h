// Where the ranks of a communicator of the NCCL double meet: one file in memory, found by the unique id. SPDX-License-Identifier: Apache-2.0
//
// The file is all zero when it is made, which is its valid first state; the first rank to come makes it, the last to
// attach removes its name, so a killed job leaves nothing but what it had not begun. A rank waits on one futex word that
// every arrival changes. Times are CLOCK_MONOTONIC ns (the same for all processes of a host), or virtual ones.
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace fake {

constexpr int kMostRanks = 64;
constexpr std::uint64_t kSlots = 64;      // collectives that may be under way between the first and the last rank
constexpr std::uint64_t kPairSlots = 16;  // messages of one pair

struct Slot {
  std::atomic<std::uint64_t> round;
  std::atomic<std::uint32_t> left;
  std::atomic<std::int64_t> entry_ns[kMostRanks];  // 0: not yet there
  std::atomic<std::int64_t> detail[kMostRanks];    // what a rank brings along: colour and key of a split
};

struct PairSlot {
  std::atomic<std::uint64_t> round;
  std::atomic<std::uint32_t> left;
  std::atomic<std::int64_t> send_ns, receive_ns;
};

struct Meeting {
  std::atomic<std::uint32_t> attached, changes;
  Slot slots[kSlots];
  Slot admin[kSlots];  // init, split and the like, apart from the work of the device
  PairSlot pairs[kMostRanks][kMostRanks][kPairSlots];
};

class Rendezvous {
 public:
  Rendezvous(const std::string& name, int size, int rank) : size_(size), rank_(rank) {
    const char* folder = getenv("FAKE_SHARED");
    path_ = std::string(folder == nullptr ? "/dev/shm" : folder) + "/fake-nccl-" + name;
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (ftruncate(fd, sizeof(Meeting)) == 0) {
      void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (memory != MAP_FAILED) meeting_ = static_cast<Meeting*>(memory);
    }
    close(fd);
    if (meeting_ != nullptr && meeting_->attached.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) {
      unlink(path_.c_str());
    }
    if (meeting_ != nullptr) changed();
  }
  ~Rendezvous() {
    if (meeting_ != nullptr) munmap(meeting_, sizeof(Meeting));
  }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  bool usable() const { return meeting_ != nullptr; }
  void abort() {
    aborted_.store(true);
    changed();
  }
  bool aborted() const { return aborted_.load(); }

  // False: aborted.
  bool wait_attached() {
    return wait([&] { return meeting_->attached.load() >= static_cast<std::uint32_t>(size_); });
  }

  // Brings `detail` and learns everybody's; for calls of the host that all ranks make.
  bool exchange(std::uint64_t number, std::int64_t detail, std::int64_t* all) {
    Slot& slot = meeting_->admin[number % kSlots];
    if (!wait([&] { return slot.round.load() == number / kSlots; })) return false;
    slot.detail[rank_].store(detail);
    slot.entry_ns[rank_].store(1);
    changed();
    for (int peer = 0; peer < size_; ++peer) {
      if (!wait([&] { return slot.entry_ns[peer].load() != 0; })) return false;
      all[peer] = slot.detail[peer].load();
    }
    leave(slot);
    return true;
  }

  // Enters collective `number` at `entry_ns` and waits for those ranks that `needed` says. Gives the latest entry of them
  // and of this rank, -1 if aborted.
  std::int64_t meet(std::uint64_t number, std::int64_t entry_ns, const std::function<bool(int)>& needed) {
    Slot& slot = meeting_->slots[number % kSlots];
    if (!wait([&] { return slot.round.load() == number / kSlots; })) return -1;
    slot.entry_ns[rank_].store(entry_ns);
    changed();
    std::int64_t last_ns = entry_ns;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || !needed(peer)) continue;
      if (!wait([&] { return slot.entry_ns[peer].load() != 0; })) return -1;
      last_ns = std::max(last_ns, slot.entry_ns[peer].load());
    }
    leave(slot);
    return last_ns;
  }

  // One message of a pair in two halves: say that this side is there, then wait for the other one.
  bool offer(int peer, bool sends, std::uint64_t number, std::int64_t entry_ns) {
    PairSlot& slot = pair(peer, sends, number);
    if (!wait([&] { return slot.round.load() == number / kPairSlots; })) return false;
    (sends ? slot.send_ns : slot.receive_ns).store(entry_ns);
    changed();
    return true;
  }
  std::int64_t accept(int peer, bool sends, std::uint64_t number, bool wait_for_peer) {
    PairSlot& slot = pair(peer, sends, number);
    std::atomic<std::int64_t>& other = sends ? slot.receive_ns : slot.send_ns;
    if (wait_for_peer && !wait([&] { return other.load() != 0; })) return -1;
    const std::int64_t last_ns = std::max(other.load(), (sends ? slot.send_ns : slot.receive_ns).load());
    if (slot.left.fetch_add(1) + 1 == 2) {
      slot.send_ns.store(0);
      slot.receive_ns.store(0);
      slot.left.store(0);
      slot.round.fetch_add(1);
      changed();
    }
    return last_ns;
  }

 private:
  PairSlot& pair(int peer, bool sends, std::uint64_t number) {
    return sends ? meeting_->pairs[rank_][peer][number % kPairSlots] : meeting_->pairs[peer][rank_][number % kPairSlots];
  }

  void leave(Slot& slot) {
    if (slot.left.fetch_add(1) + 1 != static_cast<std::uint32_t>(size_)) return;
    for (int peer = 0; peer < size_; ++peer) slot.entry_ns[peer].store(0);
    slot.left.store(0);
    slot.round.fetch_add(1);
    changed();
  }

  void changed() {
    if (meeting_ == nullptr) return;
    meeting_->changes.fetch_add(1);
    syscall(SYS_futex, &meeting_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  template <class Condition>
  bool wait(Condition holds) {
    while (!aborted_.load()) {
      const std::uint32_t seen = meeting_->changes.load();
      if (holds()) return true;
      const timespec limit = {0, 100'000'000};
      syscall(SYS_futex, &meeting_->changes, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    return false;
  }

  Meeting* meeting_ = nullptr;
  std::string path_;
  int size_, rank_;
  std::atomic<bool> aborted_{false};
};

}  // namespace fake
