// Implementation of stacks.h. SPDX-License-Identifier: Apache-2.0
#include "stacks/stacks.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "core/clock.h"
#include "core/large_stack.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"
#include "stacks/codes.h"

namespace stashtrace::stacks {

namespace {

namespace flag = schema::codes::StackFlag;

// What is kept of a stack that is too deep: its innermost frames.
constexpr std::size_t kFramesOfDeepStack = 64;
constexpr int kAttempts = 6;

constinit const Layout* g_layout = nullptr;
constinit Address g_code_type = 0, g_gil = 0;
using OwnState = void* (*)() noexcept;
constinit OwnState g_own_state = nullptr;
constinit std::atomic<bool> g_enabled{false};
constinit std::atomic<std::uint32_t> g_noting{0};  // threads that read their own frames
constinit std::atomic<std::uint64_t> g_not_numbered{0};
constinit std::atomic<bool> g_too_many_reported{false};
constinit CodeTable g_codes;
constinit StringTable g_numbers;  // of frames, by what they are and who called them

struct Slot {
  std::atomic<std::uint32_t> tid;  // 0: free
  std::atomic<Address> state;
  std::atomic<std::uint64_t> thread;
  std::atomic<std::uint64_t> waits_since;  // ticks, 0: it does not wait
};
constinit Slot g_watched[kMostWatched];
constexpr std::uint32_t kTaken = ~std::uint32_t{0};  // being filled in

// Where the kernel's number of a thread lies in libc's record of it, whose address Python up to 3.10 has alone.
constinit std::uint16_t g_tid_in_thread = kNone;

Address own_state() noexcept { return reinterpret_cast<Address>(g_own_state()); }

// The string id of a text, 0 of an empty one; false if it cannot be read.
template <class Memory>
bool intern_text(Memory& memory, Address text, std::uint32_t& id) noexcept {
  char bytes[2 * kMostTextBytes];
  TextBuffer buffer(bytes, sizeof bytes);
  if (!read_text(memory, *g_layout, text, buffer)) return false;
  id = intern(buffer.text());
  return true;
}

// Name and file of a code object; nothing if they cannot be read.
template <class Memory>
std::optional<Code> know(Memory& memory, const CodeIdentity& identity) noexcept {
  const std::uint32_t generation = runtime().generation();
  const std::optional<Code> kept = g_codes.find(identity.address, generation);
  if (kept && kept->identity == identity) return kept;
  Code code{identity, 0, 0, generation, 0};
  if (!intern_text(memory, identity.name, code.name_id) || !intern_text(memory, identity.file, code.path_id)) return {};
  // The texts were read after the object: are they still its own?
  CodeIdentity again;
  MemoryNow now(memory);
  if (!read_identity(now, *g_layout, g_code_type, identity.address, again) || again != identity) return {};
  g_codes.keep(code);
  return code;
}

// A table is full. Said at the 1st, 10th, 100th, ... time.
void count_not_numbered() noexcept {
  const std::uint64_t count = g_not_numbered.fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint64_t power = 1;
  while (power < count) power *= 10;
  if (power != count) return;
  report_loss(kCollectorCode, "stacks_not_numbered", count - count / 10,
              "65,536 different stacks, or texts of the process, are known: stacks that are new are cut or left out",
              schema::codes::Severity::data_loss);
}

// The number of a frame below its callers; its row is written before the number is first used. 0: no number is left, or
// the frame is at no instruction of the code, as one that was read while it was made.
template <class Memory>
std::uint32_t number_of(Memory& memory, std::uint32_t caller_id, const Code& code, std::int64_t offset) noexcept {
  const struct {
    std::uint32_t caller_id, name_id, path_id;
    std::int32_t first_line;
    std::int64_t offset;
    std::uint64_t lines_mark;
  } key{caller_id, code.name_id, code.path_id, code.identity.first_line, offset, code.identity.lines_mark};
  const bool lasting = code.name_id <= kStringSlots && code.path_id <= kStringSlots;
  const std::uint32_t id = lasting ? g_numbers.id_of({reinterpret_cast<const char*>(&key), sizeof key}) : ~0u;
  if (id > kStringSlots) {
    count_not_numbered();
    return 0;
  }
  const std::uint32_t generation = runtime().generation();
  if (g_numbers.is_written(id, generation)) return id;
  const std::int64_t line = line_at(memory, *g_layout, code.identity, offset);
  if (line == kNotInCode) return 0;
  if (emit(schema::StackFrame{.stack_id = id,
                              .caller_id = caller_id,
                              .name_id = code.name_id,
                              .path_id = code.path_id,
                              .line = static_cast<std::int32_t>(line),
                              .first_line = key.first_line}))
    g_numbers.set_written(id, generation);
  return id;
}

// From the outermost frame inwards, up to the first that is no longer what it was. `done`: what is known already.
// `numbered(place, stack_id)` is called for each further one.
template <class Memory, class Take>
Numbered number_of_frames(Memory& memory, const Frame* frames, std::size_t count, Numbered done,
                          Take numbered) noexcept {
  Numbered result = done;
  for (std::size_t i = count - done.count; i-- > 0; ++result.count) {
    CodeIdentity identity;
    if (!read_identity(memory, *g_layout, g_code_type, frames[i].code, identity)) return result;
    const std::optional<Code> code = know(memory, identity);
    if (!code) return result;
    const std::uint32_t id = number_of(memory, result.stack_id, *code, instruction_offset(*g_layout, frames[i]));
    if (id == 0) return result;
    result.stack_id = id;
    numbered(result.count, id);
  }
  return result;
}

// The number of the calling thread's stack, below which are the `awaited` frames; 0 if it has none, or not all of it
// could be numbered.
template <class Memory>
std::uint32_t number_of_own_stack(const SuspendedFrame* awaited, std::size_t awaited_count) noexcept {
  const Address state = own_state();
  if (state == 0) return 0;
  Memory memory;
  Frame frames[kMostFrames + kMostAwaited];
  for (std::size_t i = 0; i < awaited_count; ++i)
    frames[i] = {0, awaited[i].code, instruction_at(*g_layout, awaited[i].code, awaited[i].offset)};
  const Walk found = walk(memory, *g_layout, state, frames + awaited_count, kMostFrames);
  const std::size_t count = awaited_count + (found.whole ? found.count : std::min(found.count, kFramesOfDeepStack));
  const Numbered numbered = number_of_frames(memory, frames, count, {0, 0}, [](std::size_t, std::uint32_t) noexcept {});
  return numbered.count == count ? numbered.stack_id : 0;
}

void note_stack(std::uint64_t begin, std::uint64_t end, std::uint16_t cause, const SuspendedFrame* awaited,
                std::size_t awaited_count) noexcept {
  if (!recording() || detail::thread_state.child_filter != detail::kNoFilter) return;
  g_noting.fetch_add(1, std::memory_order_seq_cst);
  if (g_enabled.load(std::memory_order_seq_cst)) {
    // A handler may have interrupted the interpreter anywhere.
    const bool in_handler = raw::current_signal_mask() != 0;
    const std::uint32_t stack_id = on_large_stack([=]() noexcept {
      return in_handler ? number_of_own_stack<CheckedMemory>(awaited, awaited_count)
                        : number_of_own_stack<PlainMemory>(awaited, awaited_count);
    });
    if (stack_id != 0)
      emit(schema::StackSpan{
          .begin_ticks = begin, .end_ticks = end, .stack_id = stack_id, .cause_code = cause, .reserved_flags = 0});
  }
  g_noting.fetch_sub(1, std::memory_order_release);
}

void find_tid_in_thread() noexcept {
  const auto tid = static_cast<std::uint32_t>(raw::gettid());
  const auto thread = static_cast<Address>(pthread_self());
  constexpr std::uint16_t kFurthest = 1024;
  CheckedMemory memory;
  for (std::uint16_t at = 0; at < kFurthest && g_tid_in_thread == kNone; at += sizeof tid) {
    std::uint32_t found = 0;
    if (memory.read(thread + at, &found, sizeof found) && found == tid) g_tid_in_thread = at;
  }
}

// Who a thread is, by its state; false if that cannot be read.
template <class Memory>
bool identify(Memory& memory, Address state, std::uint64_t& thread, std::uint32_t& tid) noexcept {
  if (!memory.read(state + g_layout->thread_id, &thread, sizeof thread)) return false;
  if (g_layout->thread_native_id == kNone)
    return g_tid_in_thread != kNone && memory.read(thread + g_tid_in_thread, &tid, sizeof tid) && tid != 0;
  std::uint64_t native_id = 0;
  if (!memory.read(state + g_layout->thread_native_id, &native_id, sizeof native_id)) return false;
  tid = static_cast<std::uint32_t>(native_id);
  return tid != 0;
}

}  // namespace

std::uint32_t last_gil_holder() noexcept {
  if (detail::thread_state.child_filter != detail::kNoFilter) return 0;
  std::uint32_t tid = 0;
  g_noting.fetch_add(1, std::memory_order_seq_cst);
  if (g_enabled.load(std::memory_order_seq_cst)) {
    CheckedMemory memory;
    Address holder = 0;
    std::uint64_t thread = 0;
    if (!memory.read(g_gil + g_layout->gil_holder, &holder, sizeof holder) || !identify(memory, holder, thread, tid))
      tid = 0;
  }
  g_noting.fetch_sub(1, std::memory_order_release);
  return tid;
}

bool is_of_gil(Address at) noexcept { return at >= g_gil && at - g_gil < g_layout->gil_bytes; }

void note_long_call(std::uint64_t begin, std::uint64_t end, std::uint16_t cause) noexcept {
  note_stack(begin, end, cause, nullptr, 0);
}

void note_awaited(std::uint64_t begin, std::uint64_t end, const SuspendedFrame* frames, std::size_t count) noexcept {
  if (end - begin >= long_call_ticks.load(std::memory_order_relaxed))
    note_stack(begin, end, schema::codes::StackCause::awaited, frames, count);
}

const char* start(std::uint32_t version) noexcept {
  if (enabled()) return nullptr;
  const auto runtime_address = reinterpret_cast<Address>(dlsym(RTLD_DEFAULT, "_PyRuntime"));
  g_code_type = reinterpret_cast<Address>(dlsym(RTLD_DEFAULT, "PyCode_Type"));
  g_own_state = reinterpret_cast<OwnState>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  if (runtime_address == 0 || g_code_type == 0 || g_own_state == nullptr) return "no symbols of CPython in the process";
  g_layout = find_layout(version, runtime_address);
  if (g_layout == nullptr) return "the frames of this version or build of Python are not known";
  const Address state = own_state();
  CheckedMemory memory;
  g_gil = runtime_address + g_layout->gil;
  if (g_layout->gil_by_interpreter) {
    Address interpreter = 0;
    if (!memory.read(state + g_layout->thread_interpreter, &interpreter, sizeof interpreter) ||
        !memory.read(interpreter + g_layout->gil, &g_gil, sizeof g_gil))
      return "the interpreter's state was not found";
  }
  if (g_layout->thread_native_id == kNone) find_tid_in_thread();
  return nullptr;
}

bool read_own_stack(void (*take)(void* to, const NamedFrame& frame), void* to) noexcept {
  if (g_layout == nullptr) return false;
  CheckedMemory memory;
  Frame frames[kMostFrames];
  const Walk found = walk(memory, *g_layout, own_state(), frames, kMostFrames);
  bool good = !found.torn && found.count != 0;
  for (std::size_t i = 0; good && i < found.count; ++i) {
    CodeIdentity identity;
    char name_bytes[2 * kMostTextBytes], file_bytes[2 * kMostTextBytes];
    TextBuffer name(name_bytes, sizeof name_bytes), file(file_bytes, sizeof file_bytes);
    good = read_identity(memory, *g_layout, g_code_type, frames[i].code, identity) &&
           read_text(memory, *g_layout, identity.name, name) && read_text(memory, *g_layout, identity.file, file);
    if (!good) break;
    const std::int64_t line = line_at(memory, *g_layout, identity, instruction_offset(*g_layout, frames[i]));
    take(to, {name.text().data(), name.text().size(), file.text().data(), file.text().size(), line});
  }
  return good;
}

void enable() noexcept {
  const auto ticks = static_cast<unsigned __int128>(kLongCallNs) * runtime().tick_hz() / 1'000'000'000;
  g_enabled.store(true, std::memory_order_release);
  long_call_ticks.store(static_cast<std::uint64_t>(ticks), std::memory_order_release);
}

void disable() noexcept {
  if (!enabled()) return;
  long_call_ticks.store(kNever, std::memory_order_relaxed);
  g_enabled.store(false, std::memory_order_seq_cst);
  for (Slot& slot : g_watched) slot.tid.store(0, std::memory_order_release);
  constexpr int kRounds = 100;
  constexpr std::int64_t kRoundNs = 1'000'000;
  const std::uint32_t never = 0;
  for (int round = 0; round < kRounds && g_noting.load(std::memory_order_seq_cst) != 0; ++round)
    raw::futex_wait(&never, 0, kRoundNs);
}

bool enabled() noexcept { return g_enabled.load(std::memory_order_acquire); }

void watch_thread(bool on) noexcept {
  if (!enabled() || runtime().gave_up()) return;  // no system call may be made
  forget_own_thread();
  if (!on) return;
  const Address state = own_state();
  if (state == 0) return;
  std::uint64_t thread = 0;
  PlainMemory memory;
  memory.read(state + g_layout->thread_id, &thread, sizeof thread);
  for (Slot& slot : g_watched) {
    std::uint32_t free = 0;
    if (!slot.tid.compare_exchange_strong(free, kTaken, std::memory_order_acquire)) continue;
    slot.state.store(state, std::memory_order_relaxed);
    slot.thread.store(thread, std::memory_order_relaxed);
    slot.waits_since.store(0, std::memory_order_relaxed);
    detail::thread_state.waits_since = &slot.waits_since;
    slot.tid.store(static_cast<std::uint32_t>(raw::gettid()), std::memory_order_release);
    watch_thread_end();
    return;
  }
  if (!g_too_many_reported.exchange(true, std::memory_order_relaxed))
    report_loss(kCollectorCode, "stacks_not_sampled", 0,
                "more than 16 threads of the process drive steps or make batches: Python stacks of the others are not "
                "sampled",
                schema::codes::Severity::error);
}

void forget_own_thread() noexcept {
  detail::thread_state.waits_since = nullptr;
  if (!enabled()) return;
  const auto tid = static_cast<std::uint32_t>(raw::gettid());
  for (Slot& slot : g_watched)
    if (slot.tid.load(std::memory_order_relaxed) == tid) slot.tid.store(0, std::memory_order_release);
}

void reset_after_fork() noexcept {
  detail::thread_state.waits_since = nullptr;
  if (!enabled()) return;
  for (Slot& slot : g_watched) slot.tid.store(0, std::memory_order_relaxed);
  g_noting.store(0, std::memory_order_relaxed);
  g_not_numbered.store(0, std::memory_order_relaxed);
  g_too_many_reported.store(false, std::memory_order_relaxed);
  g_codes.reset_after_fork();
}

std::size_t watched_threads(Watched (&out)[kMostWatched]) noexcept {
  std::size_t count = 0;
  for (const Slot& slot : g_watched) {
    const std::uint32_t tid = slot.tid.load(std::memory_order_acquire);
    if (tid == 0 || tid == kTaken) continue;
    out[count] = {slot.state.load(std::memory_order_relaxed), slot.thread.load(std::memory_order_relaxed), tid,
                  static_cast<std::uint32_t>(&slot - g_watched), slot.waits_since.load(std::memory_order_relaxed) != 0};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.tid.load(std::memory_order_relaxed) == tid) ++count;  // else another thread has this slot by now
  }
  return count;
}

bool Sampler::start(bool may_open) noexcept {
  for (Before& before : before_) before = {};
  ticks_per_s_ = runtime().tick_hz();
  return memory_.start(may_open);
}

void Sampler::stop() noexcept { memory_.stop(); }

Sampler::Before& Sampler::before(const Watched& thread) noexcept {
  Before& before = before_[thread.place];
  if (before.tid != thread.tid) {
    before = {};
    before.tid = thread.tid;
  }
  return before;
}

void Sampler::plan_frames(const Watched& thread, Before& before) noexcept {
  memory_.forget();
  memory_.plan(thread.state, g_layout->thread_bytes);
  if (before.cframe != 0) memory_.plan(before.cframe, g_layout->cframe_frame + sizeof(Address));
  memory_.plan(g_gil, g_layout->gil_locked + sizeof(std::int32_t));
  for (std::size_t i = 0; i < before.chunks_count; ++i) memory_.plan(before.chunks[i].at, before.chunks[i].bytes);
  for (std::size_t i = 0; i < before.frames_count; ++i) memory_.plan(before.frames[i], g_layout->frame_bytes);
  memory_.fetch();
}

// The code objects and what identifies them, in the order in which they are read.
void Sampler::plan_codes(const Frame* frames, std::size_t count) noexcept {
  memory_.forget();
  const std::uint32_t generation = runtime().generation();
  compared_ = 0;
  for (std::size_t i = count, place = 0; i-- > 0; ++place) {
    bool all = true;
    if (i + 1 == count || frames[i].code != frames[i + 1].code) {
      all = memory_.plan(frames[i].code, g_layout->code_bytes);
      const std::optional<Code> code = g_codes.find(frames[i].code, generation);
      all = code && memory_.plan(code->identity.name, code->identity.name_bytes) &&
            memory_.plan(code->identity.file, code->identity.file_bytes) &&
            memory_.plan(code->identity.lines, g_layout->bytes_data + kLinesSampleBytes) && all;
    }
    pieces_end_[place] = memory_.pieces_planned();
    if (all && compared_ == place) ++compared_;
  }
  if (!memory_.fetch()) compared_ = 0;  // places of pieces have changed
}

// As number_of_frames(). Most of a thread's callers are the same from one sample to the next: those of which all bytes
// that were read, but for the counts of references, are those of the last time keep their numbers.
Numbered Sampler::number_of_sample(Before& before, const Frame* frames, std::size_t count) noexcept {
  std::uint64_t hashes[kMostFrames], hash = 0;
  Numbered known{0, 0};
  for (std::size_t place = 0, begin = 0; place < compared_; begin = pieces_end_[place++]) {
    const Frame& frame = frames[count - 1 - place];
    hash = (hash ^ frame.code ^ static_cast<std::uint64_t>(frame.instruction) << 1) * 0x9e3779b97f4a7c15;
    hashes[place] = hash = memory_.hash_of_pieces(begin, pieces_end_[place], kReferencesBytes, hash);
    if (known.count == place && place < before.known_count && before.known[place].hash == hash)
      known = {before.known[place].stack_id, place + 1};
  }
  before.known_count = known.count;
  const std::uint32_t generation = runtime().generation();
  return number_of_frames(memory_, frames, count, known, [&](std::size_t place, std::uint32_t stack_id) noexcept {
    if (place >= compared_ || before.known_count != place || !g_numbers.is_written(stack_id, generation)) return;
    before.known[before.known_count++] = {hashes[place], stack_id};
  });
}

// Remembers a frame that lies in none of the pieces: of a generator, from C, or up to 3.10 any.
void Sampler::note_frame(Before& before, Address frame) noexcept {
  for (std::size_t i = 0; i < before.chunks_count; ++i)
    if (frame - before.chunks[i].at < before.chunks[i].bytes) return;
  if (before.frames_count < kMostFrames) before.frames[before.frames_count++] = frame;
}

// Our thread, or its processor, was taken away meanwhile: a part may be much older than the rest, and the two never have
// been one stack.
bool Sampler::took_long(std::uint64_t begin) const noexcept {
  constexpr std::uint64_t kLongestNs = 20'000, kLongestOfPieceNs = 1'000;
  const std::uint64_t limit_ns = kLongestNs + memory_.pieces_read() * kLongestOfPieceNs;
  return (now_ticks() - begin) * 1'000'000 > limit_ns * (ticks_per_s_ / 1'000);
}

// The pieces of the thread's stack of frames: the newest one, and those before it. True if they were known.
bool Sampler::find_chunks(const Watched& thread, Before& before) noexcept {
  if (g_layout->thread_chunk == kNone) return true;
  Address at[2] = {};  // datastack_chunk, datastack_top
  if (!memory_.read(thread.state + g_layout->thread_chunk, at, sizeof at) || at[0] == 0) return true;
  constexpr std::size_t kMostBytes = 64 * 1024, kAhead = 2048;
  const std::size_t used = at[1] > at[0] && at[1] - at[0] < kMostBytes ? at[1] - at[0] : sizeof(Chunk);
  if (before.chunks_count != 0 && before.chunks[0].at == at[0] && used <= before.chunks[0].bytes) return true;
  before.chunks_count = 0;
  std::size_t bytes = used;
  for (Address chunk = at[0]; chunk != 0 && before.chunks_count < kMostChunks;) {
    Chunk head;
    if (!memory_.read(chunk, &head, sizeof head)) break;
    if (chunk != at[0]) bytes = sizeof head + head.top * sizeof(Address);
    const std::size_t room = head.size_bytes < kMostBytes ? head.size_bytes : kMostBytes;
    before.chunks[before.chunks_count++] = {chunk, std::min(bytes + (chunk == at[0] ? kAhead : 0), room)};
    chunk = head.previous;
  }
  return false;
}

bool Sampler::find_thread(Address state, Watched& out) noexcept {
  MemoryNow now(memory_);
  out = {state, 0, 0, kMostWatched + kMostOthersSampled, false};
  return identify(now, state, out.thread, out.tid);
}

// A neighbour is one that names the thread from which it was reached as its own neighbour, in the same interpreter: a
// thread that has ended meanwhile ends the walk.
void Sampler::find_others(Address state, Others& out) noexcept {
  constexpr std::size_t kMostPassed = 128;
  constexpr std::size_t kWords = 3;  // its neighbours and its interpreter, the begin of each state
  const std::uint16_t next_of[] = {g_layout->thread_older, g_layout->thread_newer};
  out.count = 0;
  out.all = others_passed_ == 0;
  Address first[kWords] = {};
  if (!memory_.read_now(state, first, sizeof first)) out.all = false;
  const auto word = [](const Address(&words)[kWords], std::uint16_t offset) noexcept {
    return words[offset / sizeof(Address)];
  };
  std::size_t passed = 0;
  bool more = false;
  for (const bool newer : {false, true}) {
    Address from = state;
    for (Address at = word(first, next_of[newer]); at != 0;) {
      more = more || passed == kMostPassed || out.count == kMostOthers;
      if (more) break;
      Address here[kWords] = {};
      if (!memory_.read_now(at, here, sizeof here) || word(here, next_of[!newer]) != from ||
          word(here, g_layout->thread_interpreter) != word(first, g_layout->thread_interpreter)) {
        out.all = false;
        break;
      }
      if (passed++ >= others_passed_ && find_thread(at, out.threads[out.count])) ++out.count;
      from = at;
      at = word(here, next_of[newer]);
    }
  }
  out.too_many = more || others_passed_ != 0;
  others_passed_ = more && passed < kMostPassed ? passed : 0;
}

Look Sampler::look(const Watched& thread) noexcept {
  Before& before = this->before(thread);
  Look best{.stack_id = 0, .flags = 0, .runs_python = true, .gil_holder = 0};
  std::size_t best_count = 0;
  Address last_outermost = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::uint64_t begin = now_ticks();
    plan_frames(thread, before);
    if (!find_chunks(thread, before)) plan_frames(thread, before);
    std::uint64_t owner = 0;
    // Its state was freed, or is another thread's by now: it ends, and runs no code of Python any more.
    if (!memory_.read(thread.state + g_layout->thread_id, &owner, sizeof owner) || owner != thread.thread)
      return {.stack_id = 0, .flags = 0, .runs_python = false, .gil_holder = 0};
    if (g_layout->cframe_frame != kNone)
      memory_.read(thread.state + g_layout->thread_frame, &before.cframe, sizeof before.cframe);
    Frame frames[kMostFrames];
    before.frames_count = 0;
    const Walk found = walk(memory_, *g_layout, thread.state, frames, kMostFrames,
                            [&before](Address at) noexcept { note_frame(before, at); });
    // What was not copied with the rest is newer: below it may lie what has been left before.
    const bool of_one_copy = memory_.others_read() == 0 || attempt >= kAttempts / 2;
    if (found.torn || !of_one_copy || took_long(begin)) continue;
    if (found.count == 0) return {.stack_id = 0, .flags = 0, .runs_python = false, .gil_holder = 0};
    std::size_t count = found.count;
    std::uint16_t flags = 0;
    if (!found.whole) {
      count = std::min(count, kFramesOfDeepStack);
      flags = flag::outer_cut;
    }
    const Address outermost = frames[found.count - 1].address;
    if (found.whole && outermost != before.outermost) {
      // A frame that is being made, or up to 3.10 has been left, has no callers either: it is not seen twice in turn.
      const bool seen_twice = outermost == last_outermost;
      last_outermost = outermost;
      if (!seen_twice) continue;
      before.outermost = outermost;
    }
    struct {
      Address holder;
      std::int32_t locked;
    } gil{};
    memory_.read(g_gil + g_layout->gil_holder, &gil.holder, sizeof gil.holder);
    memory_.read(g_gil + g_layout->gil_locked, &gil.locked, sizeof gil.locked);
    best.gil_holder = gil.locked > 0 ? gil.holder : 0;
    if (best.gil_holder == thread.state) flags |= flag::holds_gil;
    plan_codes(frames, count);
    if (took_long(begin)) continue;
    const Numbered numbered = number_of_sample(before, frames, count);
    if (numbered.count == count)
      return {.stack_id = numbered.stack_id, .flags = flags, .runs_python = true, .gil_holder = best.gil_holder};
    if (numbered.count > best_count) {
      best_count = numbered.count;
      best.stack_id = numbered.stack_id;
      best.flags = flags | flag::inner_torn;
    }
  }
  return best;
}

}  // namespace stashtrace::stacks
