// Which Python code called: stacks of threads, as numbers. SPDX-License-Identifier: Apache-2.0
//
//   note_call()          hooks and probes, on the thread whose call took long: walks its own frames, writes a stack_span
//   watch_thread()       probes, on a thread to be sampled
//   Sampler              collectors/python_stacks, of another thread
//
// A stack is the number of its innermost frame; each frame has a row with its caller, written before it is first used.
// On between enable(), when the probes have compared a stack with what the interpreter says, and disable(), before the
// interpreter frees its threads. No lock, no allocation, no call of the interpreter but for
// PyGILState_GetThisThreadState(), which reads thread-local storage.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stacks/layout.h"
#include "stacks/memory.h"
#include "stacks/objects.h"

namespace stashtrace::stacks {

inline constexpr std::uint16_t kCollectorCode = 12;  // COLLECTOR(python_stacks, ...) of records.def

// Calls at least this long have a stack; off: none has.
inline constexpr std::int64_t kLongCallNs = 1'000'000;
inline constexpr std::uint64_t kNever = ~std::uint64_t{0};
inline constinit std::atomic<std::uint64_t> long_call_ticks{kNever};

void note_long_call(std::uint64_t begin, std::uint64_t end, std::uint16_t cause) noexcept;

// `cause`: a StackCause.
inline void note_call(std::uint64_t begin, std::uint64_t end, std::uint16_t cause) noexcept {
  if (end - begin >= long_call_ticks.load(std::memory_order_relaxed)) [[unlikely]]
    note_long_call(begin, end, cause);
}

// As note_call(), of a call whose caller waits for coroutines, which are on no stack: their frames, the innermost first,
// are put below those of the calling thread. `offset`: bytes from the begin of the code's instructions. The caller holds
// the code objects; `count`: at most kMostAwaited.
inline constexpr std::size_t kMostAwaited = 64;
struct SuspendedFrame {
  Address code;
  std::int64_t offset;
};
void note_awaited(std::uint64_t begin, std::uint64_t end, const SuspendedFrame* frames, std::size_t count) noexcept;

// Finds out where things lie in this interpreter; null, or why stacks cannot be read here. `version`: sys.hexversion.
const char* start(std::uint32_t version) noexcept;
// The frames of the calling thread, the innermost first, read as those of another thread are. `take(frame)` gets
// their names, files and lines; false if they could not be read.
struct NamedFrame {
  const char* name;
  std::size_t name_bytes;
  const char* file;
  std::size_t file_bytes;
  std::int64_t line;
};
bool read_own_stack(void (*take)(void* to, const NamedFrame& frame), void* to) noexcept;
// Stacks are right: from now on calls are noted, and threads that are watched may be sampled.
void enable() noexcept;
// The interpreter ends. Waits, for 0.1 s at most, for threads that are reading their own frames.
void disable() noexcept;
bool enabled() noexcept;

// The calling thread is to be sampled, or no longer. Beyond kMostWatched threads a loss row says so, once.
void watch_thread(bool on) noexcept;
void forget_own_thread() noexcept;  // it ends
void reset_after_fork() noexcept;

struct Watched {
  Address state;  // its PyThreadState
  std::uint64_t thread;
  std::uint32_t tid, place;  // its place among those that are watched
  bool waits;                // in a call that another thread may end
};
inline constexpr std::size_t kMostWatched = 16, kMostFrames = 200, kMostChunks = 6;
// Of the threads that are not watched: how many are looked for at once, and how many of these are sampled.
inline constexpr std::size_t kMostOthers = 32, kMostOthersSampled = 8;
std::size_t watched_threads(Watched (&out)[kMostWatched]) noexcept;

// The tid of the thread that held the GIL last, or holds it; 0 if that is not known. Read by a thread that has just been
// woken: who gives a lock of Python back, or ends what an event loop waits for, holds the GIL.
std::uint32_t last_gil_holder() noexcept;
bool is_of_gil(Address at) noexcept;  // what a thread waits on that waits for the GIL

// From the outermost frame inwards: the number of the innermost one that has one, and how many frames that are.
struct Numbered {
  std::uint32_t stack_id;
  std::size_t count;
};

// One look at another thread. `flags`: StackFlag bits.
struct Look {
  std::uint32_t stack_id;  // 0: it could not be read
  std::uint16_t flags;
  bool runs_python;    // false: it has no frame, as before and after the program's code
  Address gil_holder;  // the PyThreadState that holds the GIL, 0 if none does
};

// Reads stacks of other threads: on one thread of ours.
class Sampler {
 public:
  bool start(bool may_open) noexcept;  // as GuardedMemory's; false: the kernel does not let us
  void stop() noexcept;
  Look look(const Watched& thread) noexcept;
  // A thread that is not watched, by its state; false if it ended.
  bool find_thread(Address state, Watched& out) noexcept;
  // The other threads of an interpreter, alternately if they are too many.
  struct Others {
    std::size_t count;
    bool all, too_many;
    Watched threads[kMostOthers];
  };
  void find_others(Address state, Others& out) noexcept;

 private:
  // Where a thread's frames were the last time, to be read in one call the next time.
  struct Before {
    std::uint32_t tid;
    Address cframe, outermost;
    std::size_t chunks_count;
    struct {
      Address at;
      std::size_t bytes;
    } chunks[kMostChunks];
    std::size_t frames_count;  // those that lie apart
    Address frames[kMostFrames];
    // The last stack, the outermost frame first: its number, and a hash of all that was read of it and its callers.
    std::size_t known_count;
    struct Known {
      std::uint64_t hash;
      std::uint32_t stack_id;
    } known[kMostFrames];
  };

  Before& before(const Watched& thread) noexcept;
  void plan_frames(const Watched& thread, Before& before) noexcept;
  bool find_chunks(const Watched& thread, Before& before) noexcept;
  void plan_codes(const Frame* frames, std::size_t count) noexcept;
  Numbered number_of_sample(Before& before, const Frame* frames, std::size_t count) noexcept;
  static void note_frame(Before& before, Address frame) noexcept;
  bool took_long(std::uint64_t begin) const noexcept;

  PrefetchedMemory memory_;
  std::size_t pieces_end_[kMostFrames] = {};  // of each frame, the outermost first: behind its last piece
  std::size_t compared_ = 0;                  // frames from the outermost on all of whose pieces are there
  std::uint64_t ticks_per_s_ = 1;
  std::size_t others_passed_ = 0;                              // by find_others(), when it began
  Before before_[kMostWatched + kMostOthersSampled + 1] = {};  // the last one: of who holds the GIL and is not watched
};

}  // namespace stashtrace::stacks
