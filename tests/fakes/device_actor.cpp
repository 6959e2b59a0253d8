// A rank of a job on the doubles: runs the program text of a file. SPDX-License-Identifier: Apache-2.0
//
// Started by tests/support/device.py, one process per rank, with RANK and WORLD_SIZE. Its calls of CUDA and NCCL go through the
// import table, as those of a program that is linked against them. What the Python probes would tell (phases, batches,
// step marks) it tells the recorder itself, where libstashtrace.so is preloaded. The last line of its output is JSON:
// the values of query and elapsed, and which calls failed how often.
#include "actor.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdio>
#include <thread>

#include "schema/schema.h"

namespace fake {

namespace {

namespace codes = stashtrace::schema::codes;

// The recorder's C interface (csrc/runtime/capi.h), null where the process is not traced.
struct Recorder {
  template <class Function>
  static Function* find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }
  std::uint64_t (*now_ticks)() = find<std::uint64_t()>("stashtrace_now_ticks");
  std::uint32_t (*intern)(const char*, std::size_t) = find<std::uint32_t(const char*, std::size_t)>("stashtrace_intern");
  int (*emit)(std::uint32_t, const void*, std::size_t) = find<int(std::uint32_t, const void*, std::size_t)>("stashtrace_emit");
  std::uint64_t (*bracket_begin)(std::uint32_t, std::uint64_t, std::uint64_t) =
      find<std::uint64_t(std::uint32_t, std::uint64_t, std::uint64_t)>("stashtrace_device_bracket_begin");
  void (*bracket_end)(std::uint64_t, std::uint64_t) = find<void(std::uint64_t, std::uint64_t)>("stashtrace_device_bracket_end");
  void (*mark)(std::uint32_t, std::uint64_t, std::uint64_t) =
      find<void(std::uint32_t, std::uint64_t, std::uint64_t)>("stashtrace_device_mark");
  void (*kernels_step)(std::uint64_t) = find<void(std::uint64_t)>("stashtrace_kernels_step");
  int (*start_drainer)() = find<int()>("stashtrace_start_drainer");
};

const Recorder& recorder() {
  static const Recorder found;
  return found;
}

std::int64_t thread_cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

int variable(const char* name, int otherwise) { return getenv(name) == nullptr ? otherwise : atoi(getenv(name)); }

}  // namespace

Actor::Actor() : rank_(variable("RANK", 0)), size_(variable("WORLD_SIZE", 1)) {
  if (recorder().start_drainer != nullptr) recorder().start_drainer();
  int devices = 0;
  check("cudaGetDeviceCount", cudaGetDeviceCount(&devices));
  if (devices > 0) check("cudaSetDevice", cudaSetDevice(variable("LOCAL_RANK", rank_) % devices));
  check("cudaMalloc", cudaMalloc(&device_buffer_, kBufferBytes));
  check("cudaHostAlloc", cudaHostAlloc(&pinned_, kBufferBytes, 0));
  pageable_ = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (size_ > 1) job_ = new Rendezvous("job", size_, rank_);
}

int Actor::check(const char* call, int result) {
  if (result != 0) ++errors_[std::string(call) + " " + std::to_string(result)];
  return result;
}

const std::map<std::string, Actor::Action>& Actor::actions() {
  static const std::map<std::string, Action> all = {
      {"kernel", &Actor::kernel},       {"copy", &Actor::copy},           {"memset", &Actor::memset},
      {"allocate", &Actor::allocate},   {"free", &Actor::release},        {"record", &Actor::record},
      {"wait_event", &Actor::wait_event}, {"wait", &Actor::wait},         {"sync", &Actor::sync},
      {"query", &Actor::query},         {"elapsed", &Actor::elapsed},     {"stream", &Actor::stream},
      {"capture", &Actor::capture},     {"launch", &Actor::launch},       {"allreduce", &Actor::collective},
      {"reduce", &Actor::collective},   {"broadcast", &Actor::collective}, {"bcast", &Actor::collective},
      {"allgather", &Actor::collective}, {"reducescatter", &Actor::collective}, {"alltoall", &Actor::collective},
      {"gather", &Actor::collective},   {"scatter", &Actor::collective},  {"send", &Actor::collective},
      {"recv", &Actor::collective},     {"group", &Actor::group},         {"comm", &Actor::comm},
      {"simulate", &Actor::simulate},   {"put", &Actor::one_sided},       {"signal", &Actor::one_sided},
      {"wait_signal", &Actor::one_sided}, {"storm", &Actor::storm},       {"child", &Actor::child},
      {"repeat", &Actor::repeat},       {"rank", &Actor::only_rank},      {"thread", &Actor::thread},
      {"sleep", &Actor::sleep},         {"spin", &Actor::spin},           {"meet", &Actor::meet},
      {"forward", &Actor::phase},       {"backward", &Actor::phase},      {"optimizer", &Actor::phase},
      {"step", &Actor::step},           {"batch_wait", &Actor::batch_wait}, {"leave", &Actor::leave},
      {"device", &Actor::device}};
  return all;
}

void Actor::run(const std::vector<Statement>& program) {
  for (const Statement& one : program) {
    if (left_) return;
    const auto action = actions().find(one.name());
    if (action == actions().end()) {
      check(("unknown " + one.name()).c_str(), -1);
      continue;
    }
    (this->*action->second)(one);
  }
}

void Actor::repeat(const Statement& one) {
  const auto times = static_cast<int>(one.quantity());
  for (int at = 0; at < times && !left_; ++at) run(one.body);
}

// rank 1 { ... } or rank 1 sleep 30ms
void Actor::only_rank(const Statement& one) {
  if (atoi(one.word(1).c_str()) != rank_) return;
  if (one.words.size() == 2) {
    run(one.body);
    return;
  }
  Statement rest = one;
  rest.words.erase(rest.words.begin(), rest.words.begin() + 2);
  run({rest});
}

// Another thread does it, this one waits for that.
void Actor::thread(const Statement& one) {
  std::thread other([&] { run(one.body); });
  other.join();
}

void Actor::sleep(const Statement& one) { pause_ns(one.quantity()); }

void Actor::spin(const Statement& one) {
  const Clock clock;
  const std::int64_t end_ns = clock.now() + static_cast<std::int64_t>(one.quantity());
  while (clock.now() < end_ns) {}
}

// All ranks wait here for each other, on the host.
void Actor::meet(const Statement&) {
  std::int64_t all[kMostRanks];
  if (job_ != nullptr) job_->exchange(meetings_++, 0, all);
}

void Actor::device(const Statement& one) { check("cudaSetDevice", cudaSetDevice(static_cast<int>(one.quantity()))); }

void Actor::phase(const Statement& one) {
  if (recorder().emit == nullptr) {
    run(one.body);
    return;
  }
  stashtrace::schema::PhaseSpan row = {};
  row.begin_ticks = recorder().now_ticks();
  row.begin_cpu_ns = thread_cpu_ns();
  row.begin_runqueue_ns = row.end_runqueue_ns = -1;
  run(one.body);
  row.end_ticks = recorder().now_ticks();
  row.end_cpu_ns = thread_cpu_ns();
  row.name_id = recorder().intern(one.name().c_str(), one.name().size());
  row.phase_code = one.name() == "forward"    ? codes::Phase::forward
                   : one.name() == "backward" ? codes::Phase::backward
                                              : codes::Phase::optimizer;
  row.phase_flags = one.name() == "forward" ? codes::PhaseFlag::training : 0;
  recorder().emit(stashtrace::schema::PhaseSpan::kId, &row, sizeof row);
}

// step [stream=N]: the end of a step, as the probe of the optimizer marks it
void Actor::step(const Statement& one) {
  const auto stream = reinterpret_cast<std::uint64_t>(stream_of(one));
  if (recorder().mark != nullptr) recorder().mark(codes::Bracket::step, stream, steps_);
  ++steps_;
  if (recorder().kernels_step != nullptr) recorder().kernels_step(steps_);
}

// batch_wait 5ms [stream=N]: the loader's next() that blocks for so long
void Actor::batch_wait(const Statement& one) {
  const auto stream = reinterpret_cast<std::uint64_t>(stream_of(one));
  const std::uint64_t batch = batches_++;
  const std::uint64_t token =
      recorder().bracket_begin == nullptr ? 0 : recorder().bracket_begin(codes::Bracket::batch_wait, stream, batch);
  stashtrace::schema::Batch row = {};
  if (recorder().now_ticks != nullptr) row.begin_ticks = recorder().now_ticks();
  pause_ns(one.quantity());
  if (recorder().emit != nullptr) {
    row.end_ticks = recorder().now_ticks();
    row.loader_id = 1;
    row.batch_index = static_cast<std::int64_t>(batch);
    row.cpu_ns = row.runqueue_ns = -1;
    row.worker_id = 0;  // a worker that leaves no record
    row.phase_code = codes::BatchPhase::wait;
    recorder().emit(stashtrace::schema::Batch::kId, &row, sizeof row);
  }
  if (token != 0) recorder().bracket_end(token, batch);
}

void Actor::leave(const Statement&) { left_ = true; }

void Actor::finish() {
  if (left_) return;
  if (!stopped_) check("cudaDeviceSynchronize", cudaDeviceSynchronize());
  for (auto& [number, comm] : comms_) {
    if (comm != nullptr) check("ncclCommDestroy", stashtrace::nccl::ncclCommDestroy(comm));
  }
}

void Actor::print_results() const {
  std::string text = "{\"rank\": " + std::to_string(rank_) + ", \"results\": [";
  for (const std::string& one : results_) text += (text.back() == '[' ? "" : ", ") + one;
  text += "], \"errors\": {";
  for (const auto& [call, count] : errors_) {
    text += (text.back() == '{' ? "\"" : ", \"") + call + "\": " + std::to_string(count);
  }
  std::printf("%s}}\n", text.c_str());
}

}  // namespace fake

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto* actor = new fake::Actor();
  actor->run(fake::read_program(argv[1]));
  actor->finish();
  actor->print_results();
  return 0;
}
