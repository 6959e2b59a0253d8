// Hooks of c10d::ProcessGroupGloo::AsyncWork::execute and of the wake-up that ends it. SPDX-License-Identifier: Apache-2.0
//
// execute runs a Work on a thread of gloo: the collective itself, then finishWorkGloo, which completes the future: wakes
// those who wait for it, then calls its callbacks (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, AsyncWork::execute;
// aten/src/ATen/core/ivalue_inl.h, Future::markCompleted). The end is the wake-up, so that callbacks of the user, such as
// those of a communication hook of DDP, are not part of the collective. Where the wake-up is not recognised, the end is
// the return of execute.
#include "hooks/gloo_works.h"

#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "hooks/interpose.h"
#include "runtime/capi.h"
#include "runtime/emit.h"

namespace stashtrace::gloo {
namespace {

constexpr std::size_t kWord = sizeof(void*);

const void* class_of(const void* work) noexcept { return *static_cast<const void* const*>(work); }
std::uintptr_t number(const void* address) noexcept { return reinterpret_cast<std::uintptr_t>(address); }
std::uintptr_t word_of(const void* work, std::size_t index) noexcept {
  return static_cast<const std::uintptr_t*>(work)[index];
}

// Classes of Works of which a callback has been seen: as many as c10d has kinds of collectives, twice.
constinit std::array<std::atomic<const void*>, 64> g_classes{};

bool is_known(const void* type) noexcept {
  for (const auto& known : g_classes) {
    const void* const at = known.load(std::memory_order_acquire);
    if (at == type) return true;
    if (at == nullptr) return false;
  }
  return false;
}

void add_class(const void* type) noexcept {
  for (auto& place : g_classes) {
    const void* expected = nullptr;
    if (place.compare_exchange_strong(expected, type, std::memory_order_acq_rel) || expected == type) return;
  }
}

// Where a Work keeps its future, and the future its condition variable. Members of their base classes: the same in all.
struct Layout {
  std::uint32_t future_word = 0;  // 0: unknown
  std::uint32_t condition_bytes = 0;
};
constinit std::atomic<Layout> g_layout{};

constexpr std::uintptr_t kLargestFuture = 512;
constexpr std::size_t kMostWords = 128;

bool is_end(const Layout& layout, const void* work, const void* condition) noexcept {
  return layout.future_word != 0 && word_of(work, layout.future_word) + layout.condition_bytes == number(condition);
}

// The condition variable lies behind the begin of the future: of all pointers in the Work, the nearest before it.
Layout find_layout(const void* work, const void* condition) noexcept {
  Layout found;
  std::uintptr_t nearest = kLargestFuture;
  const std::size_t words = std::min(malloc_usable_size(const_cast<void*>(work)) / kWord, kMostWords);
  for (std::size_t i = 1; i < words; ++i) {
    const std::uintptr_t bytes = number(condition) - word_of(work, i);
    if (bytes >= nearest) continue;
    nearest = bytes;
    found = {.future_word = static_cast<std::uint32_t>(i), .condition_bytes = static_cast<std::uint32_t>(bytes)};
  }
  return found;
}

// Tables by address. A Work may end before its launch has returned to the probe, so whoever comes second writes.
constexpr std::size_t kSlots = 1'024, kTries = 16;

std::size_t slot_of(const void* work, std::size_t attempt) noexcept {
  return (static_cast<std::size_t>(number(work) / 16 * 0x9E3779B97F4A7C15U >> 32) + attempt) % kSlots;
}

// A slot is owned by whoever swaps its key for kBusy. Sequentially consistent: the probe puts the collective and then looks
// for an end, gloo's thread the other way round, and one of them must see what the other has put.
constexpr std::uintptr_t kFree = 0, kBusy = 1;

struct Followed {
  std::atomic<std::uintptr_t> work{kFree};
  Collective collective{};
};
constinit std::array<Followed, kSlots> g_followed{};
constinit std::atomic<std::size_t> g_followed_count{0};

struct Times {
  std::uint64_t begin, end;
};
struct Ended {
  std::atomic<std::uintptr_t> work{kFree};
  std::atomic<std::uint64_t> end{0};
  Times times{};
};
constinit std::array<Ended, kSlots> g_ended{};

template <class Slot>
bool own(Slot& slot, std::uintptr_t key) noexcept {
  return slot.work.compare_exchange_strong(key, kBusy, std::memory_order_seq_cst);
}

bool put_followed(const void* work, const Collective& collective) noexcept {
  for (std::size_t attempt = 0; attempt < kTries; ++attempt) {
    Followed& slot = g_followed[slot_of(work, attempt)];
    // The same address: a Work that was given up before it ran.
    const bool stale = own(slot, number(work));
    if (!stale && !own(slot, kFree)) continue;
    if (!stale) g_followed_count.fetch_add(1, std::memory_order_relaxed);
    slot.collective = collective;
    slot.work.store(number(work), std::memory_order_seq_cst);
    return true;
  }
  return false;
}

bool take_followed(const void* work, Collective& out) noexcept {
  for (std::size_t attempt = 0; attempt < kTries; ++attempt) {
    Followed& slot = g_followed[slot_of(work, attempt)];
    if (!own(slot, number(work))) continue;
    out = slot.collective;
    slot.work.store(kFree, std::memory_order_release);
    g_followed_count.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

// An end is of use until its launch has returned to the probe; after this time its place is given away.
std::uint64_t lifetime_ticks() noexcept {
  static constinit std::atomic<std::uint64_t> ticks{0};
  if (ticks.load(std::memory_order_relaxed) == 0) ticks.store(stashtrace_tick_hz() / 20 + 1, std::memory_order_relaxed);
  return ticks.load(std::memory_order_relaxed);
}

void put_ended(const void* work, const Times& times) noexcept {
  for (std::size_t attempt = 0; attempt < kTries; ++attempt) {
    Ended& slot = g_ended[slot_of(work, attempt)];
    const std::uintptr_t key = slot.work.load(std::memory_order_relaxed);
    const bool fresh =
        key > kBusy && key != number(work) && times.end - slot.end.load(std::memory_order_relaxed) < lifetime_ticks();
    if (key == kBusy || fresh || !own(slot, key)) continue;
    slot.times = times;
    slot.end.store(times.end, std::memory_order_relaxed);
    slot.work.store(number(work), std::memory_order_seq_cst);
    return;
  }
}

// `since`: ends of an earlier Work at the same address do not count.
bool take_ended(const void* work, std::uint64_t since, Times& out) noexcept {
  for (std::size_t attempt = 0; attempt < kTries; ++attempt) {
    Ended& slot = g_ended[slot_of(work, attempt)];
    if (!own(slot, number(work))) continue;
    out = slot.times;
    slot.work.store(kFree, std::memory_order_release);
    if (out.begin >= since) return true;
  }
  return false;
}

void write_done(const Collective& collective, const Times& times) noexcept {
  // As of an end that the probe sees: never earlier than the return of the call.
  emit(schema::CollectiveDone{.return_ticks = collective.return_ticks,
                              .begin_ticks = times.begin,
                              .end_ticks = std::max(times.end, collective.return_ticks),
                              .collective_id = collective.id,
                              .status_code = 0,
                              .reserved_flags = 0});
}

struct Running {
  const void* work;
  const void* woken;  // the condition variable that this thread signalled last
  std::uint64_t begin;
  bool ended;
};
constinit thread_local Running t_running{};
constinit thread_local bool t_named = false;

void name_thread() noexcept {
  if (std::exchange(t_named, true)) return;
  constexpr std::string_view name = "collectives";
  stashtrace_set_thread_role(schema::codes::ThreadRole::backend, name.data(), name.size());
}

void has_ended(Running& running, std::uint64_t end) noexcept {
  running.ended = true;
  const Times times{running.begin, end};
  Collective collective;
  if (!take_followed(running.work, collective)) {
    put_ended(running.work, times);
    // The probe may have come between the two.
    Times again;
    if (!take_followed(running.work, collective)) return;
    take_ended(running.work, times.begin, again);
  }
  name_thread();
  write_done(collective, times);
}

// The argument of execute: a c10::intrusive_ptr, whose only member is the pointer. In a torch that passes it by value, the
// caller makes the object and hands over its address, as the C++ ABI demands of classes with a destructor.
using Execute = void (*)(void* const*);

// torch is loaded for itself alone, so RTLD_NEXT does not find it: the function behind is looked up in the library that
// called.
[[gnu::noinline, gnu::cold]] Execute find_real(const char* name, const void* caller) noexcept {
  Dl_info about{};
  if (dladdr(caller, &about) == 0 || about.dli_fname == nullptr) return nullptr;
  void* const library = dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  const auto found = reinterpret_cast<Execute>(dlsym(library, name));
  dlclose(library);  // the caller holds it
  return found;
}

// Not noexcept: what the real function throws passes through.
void execute(std::atomic<Execute>& real, const char* name, void* const* work, const void* caller) {
  Execute next = real.load(std::memory_order_relaxed);
  if (next == nullptr) {
    // A call that reached us was bound by the caller's own library, which has the function.
    next = find_real(name, caller);
    real.store(next, std::memory_order_relaxed);
  }
  if (stashtrace_active() == 0) return next(work);
  const Running outer = std::exchange(t_running, {*work, nullptr, stashtrace_now_ticks(), false});
  next(work);
  if (!t_running.ended) has_ended(t_running, stashtrace_now_ticks());
  t_running = outer;
}

constinit std::atomic<Execute> g_execute_by_reference{nullptr}, g_execute_by_value{nullptr};

#define STASHTRACE_EXECUTE "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeE"
#define STASHTRACE_WORK "N3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_default_null_typeIS1_EEEE"
constexpr const char* kByReference = STASHTRACE_EXECUTE "RK" STASHTRACE_WORK;
constexpr const char* kByValue = STASHTRACE_EXECUTE STASHTRACE_WORK;

}  // namespace

const void* running_work() noexcept { return t_running.work; }

void learn_from_callback() noexcept {
  const Running& running = t_running;
  if (running.work == nullptr) return;
  if (running.woken != nullptr && !is_end(g_layout.load(std::memory_order_relaxed), running.work, running.woken))
    g_layout.store(find_layout(running.work, running.woken), std::memory_order_relaxed);
  add_class(class_of(running.work));
}

bool follow(const void* work, const Collective& collective) noexcept {
  if (!is_known(class_of(work)) || !put_followed(work, collective)) return false;
  Times times;
  Collective taken;
  if (take_ended(work, collective.call_ticks, times) && take_followed(work, taken)) write_done(taken, times);
  return true;
}

std::size_t in_flight_count() noexcept { return g_followed_count.load(std::memory_order_relaxed); }

void forget() noexcept {
  for (Followed& slot : g_followed) slot.work.store(kFree, std::memory_order_relaxed);
  g_followed_count.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace::gloo

using namespace stashtrace;

extern "C" {
__attribute__((visibility("default"))) void stashtrace_gloo_by_reference(void* const* work) __asm__(
    STASHTRACE_EXECUTE "RK" STASHTRACE_WORK);
__attribute__((visibility("default"))) void stashtrace_gloo_by_value(void* const* work) __asm__(
    STASHTRACE_EXECUTE STASHTRACE_WORK);
void stashtrace_gloo_by_reference(void* const* work) {
  gloo::execute(gloo::g_execute_by_reference, gloo::kByReference, work, __builtin_return_address(0));
}
void stashtrace_gloo_by_value(void* const* work) {
  gloo::execute(gloo::g_execute_by_value, gloo::kByValue, work, __builtin_return_address(0));
}
}

STASHTRACE_HOOK(int, pthread_cond_broadcast, pthread_cond_t* condition) {
  gloo::Running& running = gloo::t_running;
  if (running.work == nullptr || running.ended) [[likely]]
    return real::pthread_cond_broadcast(condition);
  const std::uint64_t now = stashtrace_now_ticks();
  running.woken = condition;
  const bool ends = gloo::is_end(gloo::g_layout.load(std::memory_order_relaxed), running.work, condition);
  const int result = real::pthread_cond_broadcast(condition);
  if (ends) gloo::has_ended(running, now);
  return result;
}
