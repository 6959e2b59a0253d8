// Samples /proc on the file sampler's tick: threads and process always, host and network on one process of a host.
// SPDX-License-Identifier: Apache-2.0
//
// Runs on the file sampler's thread only (runtime/file_sampler.h), with raw system calls and integers, about 10 times a
// second. Every file is opened and closed again. The process with LOCAL_RANK 0 (or without it) reads the host, not
// its workers or torchrun's process.
#include <sys/auxv.h>

#include <cstdlib>
#include <cstring>

#include "collectors/collector.h"
#include "collectors/proc/proc_text.h"
#include "collectors/proc/standing_call.h"
#include "core/clock.h"
#include "core/string_table.h"
#include "runtime/emit.h"
#include "runtime/io_uring.h"
#include "schema/schema.h"

namespace stashtrace::proc {
namespace {

constexpr int kMostThreads = 512;  // read per tick; 512 cost 2-3 ms
constexpr int kMostDescriptors = 512;
constexpr std::int64_t kLookEveryNs = 1'000'000'000;
constexpr std::int64_t kNsPerUs = 1'000;
// The main thread stands still if it runs for at most the second in a window of the first.
constexpr std::int64_t kStandingWindowNs = 2'000'000'000;
constexpr std::int64_t kStandingRunNs = 40'000'000;

std::int64_t microseconds(std::int64_t us) noexcept { return us < 0 ? -1 : us * kNsPerUs; }
std::int64_t time_ns(const timeval& time) noexcept { return time.tv_sec * 1'000'000'000LL + time.tv_usec * kNsPerUs; }

struct LinuxDirent {  // what getdents64 fills
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};

class Proc final : public Collector, public TickListener {
 public:
  Status start(Context& context) noexcept override {
    reads_host_ = is_host_reader();
    const unsigned long per_s = getauxval(AT_CLKTCK);
    ns_per_jiffy_ = 1'000'000'000LL / static_cast<std::int64_t>(per_s != 0 ? per_s : 100);
    const unsigned long page = getauxval(AT_PAGESZ);
    page_bytes_ = static_cast<std::int64_t>(page != 0 ? page : 4096);
    if (!context.add_file_listener(*this)) return Status::failed("no_tick_listener_left", "proc samples are missing");
    started_ = true;
    return Status::ok();
  }
  void stop() noexcept override { started_ = false; }
  void after_fork() noexcept override {
    reads_host_ = false;  // a worker: its parent reads the host
    threads_reported_ = false;
    window_begin_ns_ = 0;
    standing_bytes_ = 0;
  }

  void tick(std::uint64_t) noexcept override {
    if (!started_ || !recording()) return;
    sample_threads();
    sample_process();
    look_for_rings();
    if (!reads_host_) return;
    sample_host();
    sample_interfaces();
  }

 private:
  static bool is_host_reader() noexcept;
  void sample_threads() noexcept;
  void sample_thread(const char* tid) noexcept;
  void watch_main_thread(const char* tid, std::int64_t run_ns) noexcept;
  void sample_process() noexcept;
  void look_for_rings() noexcept;
  void sample_host() noexcept;
  void sample_interfaces() noexcept;

  std::int64_t next_look_ns_ = 0;
  bool started_ = false;
  bool reads_host_ = false;
  bool threads_reported_ = false;
  char standing_text_[640] = {};  // what was recorded of the main thread
  std::size_t standing_bytes_ = 0;
  std::int64_t window_begin_ns_ = 0;
  std::int64_t window_run_ns_ = 0;
  std::int64_t ns_per_jiffy_ = 10'000'000;
  std::int64_t page_bytes_ = 4096;
  SmallFile<8192> file_;
  alignas(8) char entries_[4096] = {};
};

bool Proc::is_host_reader() noexcept {
  const char* local_rank = std::getenv("LOCAL_RANK");
  if (local_rank != nullptr && std::strcmp(local_rank, "0") != 0) return false;
  // Not a spawned worker, forkserver or resource tracker of multiprocessing, and not torchrun's agent.
  SmallFile<2048> file;
  const std::string_view command = file.read("/proc/self/cmdline");
  for (const std::string_view other : {"multiprocessing.spawn", "multiprocessing.forkserver",
                                       "multiprocessing.resource_tracker", "--multiprocessing-fork"})
    if (command.find(other) != std::string_view::npos) return false;
  if (local_rank != nullptr) return true;
  for (const std::string_view agent : {"torchrun", "torch.distributed.run", "torch.distributed.launch"})
    if (command.find(agent) != std::string_view::npos) return false;
  return true;
}

void Proc::sample_threads() noexcept {
  const int folder = raw::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  int seen = 0;
  for (;;) {
    const long bytes = raw::call(SYS_getdents64, folder, raw::address(entries_), sizeof entries_);
    if (bytes <= 0) break;
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const LinuxDirent*>(entries_ + at);
      at += entry->length;
      if (entry->name[0] < '0' || entry->name[0] > '9') continue;
      if (++seen <= kMostThreads) sample_thread(entry->name);
    }
  }
  raw::close(folder);
  if (seen > kMostThreads && !threads_reported_) {
    threads_reported_ = true;
    report_loss(4, "threads_not_sampled", static_cast<std::uint64_t>(seen - kMostThreads),
                "only the first 512 threads of a process are sampled", schema::codes::Severity::info);
  }
}

void Proc::sample_thread(const char* tid) noexcept {
  char path[64] = "/proc/self/task/";
  const std::size_t length = std::strlen(tid);
  if (length > 12) return;
  std::memcpy(path + 16, tid, length);
  std::memcpy(path + 16 + length, "/schedstat", 11);
  std::string_view text = file_.read(path);
  const std::uint64_t ticks = now_ticks();
  if (text.empty()) return;  // ended meanwhile
  schema::TaskSample row{};
  row.ticks = ticks;
  row.run_ns = take_number(text);
  row.runqueue_ns = take_number(text);
  row.timeslices_count = take_number(text);
  std::string_view number(tid, length);
  row.tid = static_cast<std::uint32_t>(take_number(number));
  emit(row);
  if (row.tid == static_cast<std::uint32_t>(raw::getpid())) watch_main_thread(tid, row.run_ns);
}

// A fact says which call the main thread stands in while it hardly runs, and is emptied when it runs again.
void Proc::watch_main_thread(const char* tid, std::int64_t run_ns) noexcept {
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  if (window_begin_ns_ != 0 && now - window_begin_ns_ < kStandingWindowNs) return;
  const bool stands = window_begin_ns_ != 0 && run_ns - window_run_ns_ <= kStandingRunNs;
  window_begin_ns_ = now;
  window_run_ns_ = run_ns;
  char text[sizeof standing_text_];
  TextBuffer call(text, sizeof text);
  if (stands) {
    char path[64];
    TextBuffer file(path, sizeof path);
    file.add("/proc/self/task/").add(tid).add("/syscall");
    add_standing_call(file_.read(file.c_str()), call);
  }
  if (call.text() == std::string_view(standing_text_, standing_bytes_)) return;
  standing_bytes_ = call.text().size();
  std::memcpy(standing_text_, text, standing_bytes_);
  emit(schema::Metadata{now_ticks(), intern("stands_in"), intern(call.text())});
}

void Proc::sample_process() noexcept {
  rusage usage{};
  if (raw::getrusage(RUSAGE_SELF, &usage) != 0) return;
  schema::ProcessSample row{};
  row.ticks = now_ticks();
  row.user_ns = time_ns(usage.ru_utime);
  row.system_ns = time_ns(usage.ru_stime);
  row.minor_faults_count = usage.ru_minflt;
  row.major_faults_count = usage.ru_majflt;
  row.voluntary_switches_count = usage.ru_nvcsw;
  row.involuntary_switches_count = usage.ru_nivcsw;
  const std::string_view io = file_.read("/proc/self/io");
  row.read_bytes = number_after(io, "read_bytes:");
  row.write_bytes = number_after(io, "write_bytes:");
  std::string_view memory = file_.read("/proc/self/statm");
  take_number(memory);
  const std::int64_t pages = take_number(memory);
  row.resident_bytes = pages < 0 ? -1 : pages * page_bytes_;
  emit(row);
}

// Descriptors of io_uring. The folder is that of the process, also for our thread, which has left its table.
void Proc::look_for_rings() noexcept {
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  if (now < next_look_ns_) return;
  next_look_ns_ = now + kLookEveryNs;
  const int folder = raw::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  for (int seen = 0; seen < kMostDescriptors;) {
    const long bytes = raw::call(SYS_getdents64, folder, raw::address(entries_), sizeof entries_);
    if (bytes <= 0) break;
    for (long at = 0; at < bytes; ++seen) {
      const auto* entry = reinterpret_cast<const LinuxDirent*>(entries_ + at);
      at += entry->length;
      char target[32];
      const long length =
          raw::call(SYS_readlinkat, folder, raw::address(entry->name), raw::address(target), sizeof target);
      if (length <= 0 || std::string_view(target, static_cast<std::size_t>(length)) != "anon_inode:[io_uring]")
        continue;
      std::string_view number(entry->name);
      note_ring_seen(static_cast<int>(take_number(number)));
    }
  }
  raw::close(folder);
}

void Proc::sample_host() noexcept {
  std::string_view cpu = file_.read("/proc/stat");
  schema::HostSample row{};
  row.ticks = now_ticks();
  std::int64_t jiffies[8];  // user nice system idle iowait irq softirq steal
  for (std::int64_t& value : jiffies) {
    value = take_number(cpu);
    if (value < 0) value = 0;
  }
  row.user_ns = (jiffies[0] + jiffies[1]) * ns_per_jiffy_;
  row.system_ns = (jiffies[2] + jiffies[5] + jiffies[6]) * ns_per_jiffy_;
  row.idle_ns = jiffies[3] * ns_per_jiffy_;
  row.iowait_ns = jiffies[4] * ns_per_jiffy_;
  row.steal_ns = jiffies[7] * ns_per_jiffy_;
  row.psi_cpu_some_ns = microseconds(pressure_total_us(file_.read("/proc/pressure/cpu"), "some"));
  const std::string_view io = file_.read("/proc/pressure/io");
  row.psi_io_some_ns = microseconds(pressure_total_us(io, "some"));
  row.psi_io_full_ns = microseconds(pressure_total_us(io, "full"));
  row.psi_memory_some_ns = microseconds(pressure_total_us(file_.read("/proc/pressure/memory"), "some"));
  const std::int64_t cached_kib = number_after(file_.read("/proc/meminfo"), "Cached:");
  row.page_cache_bytes = cached_kib < 0 ? -1 : cached_kib * 1024;
  row.retransmits_count = snmp_value(file_.read("/proc/self/net/snmp"), "Tcp:", "RetransSegs");
  emit(row);
}

// Two heading lines, then "  eth0: received_bytes packets errs drop fifo frame compressed multicast sent_bytes ...".
void Proc::sample_interfaces() noexcept {
  std::string_view text = file_.read("/proc/self/net/dev");
  const std::uint64_t ticks = now_ticks();
  take_line(text);
  take_line(text);
  while (!text.empty()) {
    std::string_view line = take_line(text);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    std::string_view name = line.substr(0, colon);
    while (name.starts_with(' ')) name.remove_prefix(1);
    line.remove_prefix(colon + 1);
    schema::NetSample row{};
    row.ticks = ticks;
    row.receive_bytes = take_number(line);
    for (int skipped = 0; skipped < 7; ++skipped) take_number(line);
    row.transmit_bytes = take_number(line);
    if (row.receive_bytes <= 0 && row.transmit_bytes <= 0) continue;  // an interface that never moved a byte
    row.interface_id = intern(name);
    emit(row);
  }
}

constinit Proc collector;

}  // namespace
}  // namespace stashtrace::proc

namespace stashtrace::collectors {
Collector& proc() noexcept { return stashtrace::proc::collector; }
}  // namespace stashtrace::collectors
