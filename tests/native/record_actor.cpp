// Does to the recorder what real programs do to it; tests/integration/test_record_path.py reads what is left.
// SPDX-License-Identifier: Apache-2.0
//
//   record_actor SCENARIO [ROWS [PROGRAM]]     rows are counters named after who wrote them, values 0, 1, 2, ...
//
// Uses the library as shipped, by its C interface, so that no hook has to be there for the test.
#include <fcntl.h>
#include <link.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/capi.h"
#include "schema/schema.h"

namespace {

namespace schema = stashtrace::schema;

std::uint32_t name(const char* who) { return stashtrace_intern(who, std::strlen(who)); }

// Returns how many were kept.
int write_rows(const char* who, int count, int first = 0) {
  const std::uint32_t id = name(who);
  int kept = 0;
  for (int i = first; i < first + count; ++i) {
    const schema::Counter row{stashtrace_now_ticks(), static_cast<double>(i), id, 0};
    kept += stashtrace_emit(schema::Counter::kId, &row, sizeof row) == 1;
  }
  return kept;
}

int files_that_open() {
  std::vector<int> all;
  for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;) all.push_back(fd);
  for (const int fd : all) close(fd);
  return static_cast<int>(all.size());
}

// A process of few descriptors has them all, also after its thread was asked for its times.
int stamps_with_few_descriptors(int times) {
  const rlimit few{20, 20};
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
  const int before = files_that_open();
  stashtrace_stamp_t stamp{};
  for (int i = 0; i < times; ++i) {
    stashtrace_stamp(&stamp);
    if (stamp.runqueue_ns < 0) return 2;
    usleep(100);  // off the CPU, so that the run queue is read again
  }
  const int after = files_that_open();
  std::printf("%d fewer\n", before - after);
  return 0;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  return status;
}

int forks(int rows, bool raw) {
  write_rows("parent", rows);
  const std::uint32_t before = name("named before the fork");
  std::fflush(stdout);
  const auto child = raw ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) : fork();
  if (child == 0) {
    const schema::Counter row{stashtrace_now_ticks(), 0.0, before, 0};
    stashtrace_emit(schema::Counter::kId, &row, sizeof row);
    write_rows("child", rows);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      write_rows("grandchild", rows);
      _exit(0);
    }
    wait_for(grandchild);
    if (raw) _exit(0);  // libc does not know of this process: no exit handlers
    std::exit(0);
  }
  write_rows("parent", rows, rows);
  return wait_for(child) == 0 ? 0 : 1;
}

int vforks(int rows) {
  write_rows("parent", rows);
  const pid_t child = vfork();
  if (child == 0) {
    write_rows("vforked", rows);
    _exit(0);
  }
  write_rows("parent", rows, rows);
  return wait_for(child) == 0 ? 0 : 1;
}

int short_threads(int threads) {
  for (int done = 0; done < threads; done += 4) {
    std::vector<std::thread> group;
    for (int i = 0; i < 4 && done + i < threads; ++i) group.emplace_back([] { write_rows("thread", 5); });
    for (auto& thread : group) thread.join();
  }
  stashtrace_stats_t stats;
  stashtrace_stats(&stats);
  std::printf("%llu\n", static_cast<unsigned long long>(stats.rings_count));
  return 0;
}

// A careless daemon: closes what it does not know, then uses the numbers for its own file.
int closes_descriptors(int rows) {
  write_rows("daemon", rows);
  for (int fd = 3; fd < 4096; ++fd) close(fd);
  const char* dir = getenv("STASHTRACE_DIR");
  const std::string mine = std::string(dir) + "/own.txt";
  const int own = open(mine.c_str(), O_CREAT | O_RDWR, 0644);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  for (int fd = 1500; fd < 1600 && fd < static_cast<int>(limit.rlim_cur); ++fd) dup2(own, fd);
  for (int fd = static_cast<int>(limit.rlim_cur) - 40; fd > 0 && fd < static_cast<int>(limit.rlim_cur); ++fd)
    dup2(own, fd);
  write_rows("daemon", rows, rows);
  stashtrace_flush();
  std::thread([rows] { write_rows("daemon's thread", rows); }).join();  // new rings need the ring file again
  return lseek(own, 0, SEEK_END) == 0 ? 0 : 1;                          // nothing of ours in the user's file
}

std::atomic<int> g_handled{0};
std::uint32_t g_handler_name = 0;
void on_alarm(int) {
  const int n = g_handled.load(std::memory_order_relaxed);
  const schema::Counter row{stashtrace_now_ticks(), static_cast<double>(n), g_handler_name, 0};
  if (stashtrace_emit(schema::Counter::kId, &row, sizeof row) == 1) g_handled.store(n + 1, std::memory_order_relaxed);
}

int interrupted(int rows) {
  g_handler_name = name("handler");
  struct sigaction action{};
  action.sa_handler = &on_alarm;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 100}, {0, 100}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  const int kept = write_rows("main", rows);
  setitimer(ITIMER_REAL, &never, nullptr);
  std::printf("%d %d\n", kept, g_handled.load());
  return 0;
}

// For seven seconds, in a process that has told of a loss before.
int writes_steadily(int rows) {
  constexpr int kRounds = 140;
  int kept = 0;
  stashtrace_report_loss(0, "before", 1, "", schema::codes::Severity::info);
  for (int round = 0; round < kRounds; ++round) {
    kept += write_rows("main", rows / kRounds, round * (rows / kRounds));
    usleep(50'000);
  }
  std::printf("%d\n", kept);
  return 0;
}

// Forks while another thread is inside the loader, as one that unwinds its stack is: that lock stays taken in the child.
int forks_in_loader(int rows) {
  std::atomic<bool> inside{false}, forked{false};
  std::thread walker([&] {
    const auto wait = [&] {
      inside = true;
      while (!forked) sched_yield();
    };
    dl_iterate_phdr([](dl_phdr_info*, std::size_t, void* self) { return (*static_cast<decltype(wait)*>(self))(), 1; },
                    const_cast<void*>(static_cast<const void*>(&wait)));
  });
  while (!inside) sched_yield();
  const pid_t child = fork();
  if (child == 0) {
    write_rows("child", rows);
    std::exit(0);
  }
  forked = true;
  walker.join();
  for (int i = 0; i < 300; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return status == 0 ? 0 : 1;
    usleep(100'000);
  }
  kill(child, SIGKILL);
  return 2;
}

int limited(int rows) {
  write_rows("before the limit", 10);
  const rlimit limit{32768, 32768};  // SIGXFSZ ends a process that goes beyond, unless it is kept away
  setrlimit(RLIMIT_FSIZE, &limit);
  const int kept = write_rows("beyond the limit", rows);
  std::printf("%d\n", kept);
  return 0;
}

// The process goes on where any system call but write, read and exit ends it, and so does its child.
int seals(int rows) {
  write_rows("before", rows);
  stashtrace_start_drainer();
  stashtrace_seal("sealed_for_the_test");
  const std::uint32_t id = name("after");
  const schema::Counter row{0, 0.0, id, 0};  // no clock: the strict mode forbids rdtsc
  const bool refused = stashtrace_emit(schema::Counter::kId, &row, sizeof row) != 1;
  const pid_t child = fork();
  if (child == 0) {
    syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    const bool silent = stashtrace_emit(schema::Counter::kId, &row, sizeof row) != 1 && name("more") == 0;
    syscall(SYS_exit, silent ? 0 : 1);
  }
  std::thread([&row] { stashtrace_emit(schema::Counter::kId, &row, sizeof row); }).join();
  const bool alive = wait_for(child) == 0;
  return refused && alive ? 0 : 1;
}

// Until somebody ends it; says when the first rows are there.
[[noreturn]] int endless() {
  write_rows("endless", 100);
  std::puts("recording");
  std::fflush(stdout);
  for (int first = 100;; first += 1000) write_rows("endless", 1000, first);
}

int exits_among_threads(int rows) {
  std::atomic<int> ready{0};
  for (int i = 0; i < 2; ++i)
    std::thread([&ready] {
      write_rows("busy thread", 1);
      ++ready;
      for (;;) write_rows("busy thread", 100), sched_yield();
    }).detach();
  while (ready < 2) sched_yield();
  write_rows("main", rows);
  std::exit(0);
}

// The ring that this process has: its inode, 0 if there is none under its name.
unsigned long ring_inode() {
  std::string path = stashtrace_stash_path();
  path.replace(path.size() - 5, 5, "ring");
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

// Calls exec, which fails, between rows; says what exec said, and whether the ring was another one afterwards. With a limit
// no file can become as large as the ring was.
void fail_to_execute(int rows, const char* program, bool limited) {
  write_rows("main", rows);
  const rlimit limit{64 * 1024, 64 * 1024};
  if (limited) setrlimit(RLIMIT_FSIZE, &limit);
  const unsigned long before = ring_inode();
  errno = 0;
  const int result = execl(program, program, nullptr);
  const int error = errno;
  const unsigned long after = ring_inode();
  write_rows("main", rows, rows);
  std::printf("%d %d %s\n", result, error, after == 0 ? "none" : after == before ? "same" : "new");
  std::fflush(stdout);
}

// I/O rows have the largest ring, which gets the rest of its space when it is used. Without `space` the file may not grow.
int fill_large_ring(int rows, bool space) {
  int kept = 0;
  write_rows("main", 1);  // so that the large ring is the last of the file
  for (int i = 0; i < rows; ++i) {
    const schema::IoOp row{.begin_ticks = stashtrace_now_ticks(),
                           .offset_bytes = i,
                           .duration_ticks = 1,
                           .result_bytes = 0,
                           .path_id = 0,
                           .op_code = 1,
                           .io_flags = 0};
    kept += stashtrace_emit(schema::IoOp::kId, &row, sizeof row) == 1;
    if (i != 0 || space) continue;
    const rlimit limit{256 * 1024, 256 * 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::printf("%d\n", kept);
  std::fflush(stdout);
  return kept;
}

// The first call's row finds no ring, and the process ends at once.
[[noreturn]] void end_without_ring(int rows) {
  write_rows("main", rows);
  const rlimit limit{128 * 1024, 128 * 1024};
  setrlimit(RLIMIT_FSIZE, &limit);
  close(open("/dev/null", O_RDONLY));
  _exit(0);
}

// Children that end in every way there is, four of each; "failed" ends after an exec that failed.
int ends(int rows, const char* unsuited) {
  for (const char* way : {"exit", "_exit", "exec", "failed", "killed"})
    for (int i = 0; i < 4; ++i) {
      const pid_t child = fork();
      if (child != 0) {
        wait_for(child);
        continue;
      }
      write_rows(way, rows);
      close(open("/dev/null", O_RDONLY));  // I/O rows have the largest ring
      const std::string_view kind = way;
      if (kind == "exec") execl("/bin/true", "true", nullptr);
      if (kind == "failed") execl(unsuited, unsuited, nullptr);
      if (kind == "killed") raise(SIGKILL);
      if (kind == "exit") std::exit(0);
      _exit(0);
    }
  return 0;
}

// The program is another user's, who may not write to the run directory.
int executes_as_nobody(int rows) {
  write_rows("main", rows);
  if (setgid(65534) != 0 || setuid(65534) != 0) return 1;
  execl("/bin/true", "true", nullptr);
  return 99;
}

// exec beside another thread, in a vfork child, and in a forked child that has recorded nothing.
int executes_elsewhere(int rows) {
  write_rows("main", rows);
  const unsigned long before = ring_inode();
  for (const bool shares : {true, false}) {
    const pid_t child = shares ? vfork() : fork();
    if (child == 0) {
      execl("/bin/true", "true", nullptr);
      _exit(99);
    }
    if (wait_for(child) != 0) return 1;
    if (ring_inode() != before) return 2;
  }
  std::atomic<bool> there{false};
  std::thread([&there] {
    there = true;
    for (;;) pause();
  }).detach();
  while (!there) sched_yield();
  execl("/bin/true", "true", nullptr);
  return 99;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  const int rows = argc > 2 ? std::atoi(argv[2]) : 100;
  const char* program = argc > 3 ? argv[3] : "";
  if (scenario == "fork") return forks(rows, false);
  if (scenario == "raw_fork") return forks(rows, true);
  if (scenario == "vfork") return vforks(rows);
  if (scenario == "threads") return short_threads(rows);
  if (scenario == "close") return closes_descriptors(rows);
  if (scenario == "interrupted") return interrupted(rows);
  if (scenario == "endless") endless();
  if (scenario == "limited") return limited(rows);
  if (scenario == "steady") return writes_steadily(rows);
  if (scenario == "fork_in_loader") return forks_in_loader(rows);
  if (scenario == "few_descriptors") return stamps_with_few_descriptors(rows);
  if (scenario == "seal") return seals(rows);
  if (scenario == "exit_among_threads") return exits_among_threads(rows);
  if (scenario == "end_without_ring") end_without_ring(rows);
  if (scenario == "large" || scenario == "large_limited") {
    fill_large_ring(rows, scenario == "large");
    raise(SIGKILL);
  }
  if (scenario == "ends") return ends(rows, program);
  if (scenario == "exec_as_nobody") return executes_as_nobody(rows);
  if (scenario == "exec_elsewhere") return executes_elsewhere(rows);
  if (scenario == "exec_fails" || scenario == "exec_fails_killed" || scenario == "exec_fails_limited") {
    fail_to_execute(rows, program, scenario == "exec_fails_limited");
    if (scenario == "exec_fails_killed") raise(SIGKILL);
    return 0;
  }
  const int kept = write_rows("main", rows);
  if (scenario == "plain") std::printf("%d\n", kept);
  if (scenario == "silent") return 0;
  if (scenario == "quick_exit") _exit(0);
  if (scenario == "kill") raise(SIGKILL);
  if (scenario == "terminate") raise(SIGTERM);
  if (scenario == "abort") std::abort();
  if (scenario == "exec") {
    const std::string more = std::to_string(rows);
    execl("/proc/self/exe", argv[0], "plain", more.c_str(), nullptr);
    return 127;
  }
  return 0;
}
