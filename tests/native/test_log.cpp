// Lines reach the stderr of the start and nothing else, each error once, and no signal comes of it.
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "check.h"
#include "core/log.h"

using namespace stashtrace;

namespace {

// Runs `body` in a child whose stderr is `file`; returns how the child ended.
template <class Body>
int with_stderr(int file, Body body) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(file, 2);
    init_log(LogLevel::error, nullptr);
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

int new_file() { return fileno(std::tmpfile()); }

std::string content(int file) {
  char text[4096];
  const ssize_t bytes = pread(file, text, sizeof text, 0);
  return {text, static_cast<std::size_t>(bytes > 0 ? bytes : 0)};
}

int lines(int file) {
  int count = 0;
  for (const char c : content(file)) count += c == '\n';
  return count;
}

bool is_pending(int signal) {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

void report() { log_line(LogLevel::error, "cannot write records", "/run", 28); }

}  // namespace

int main() {
  const int once = new_file();
  const int ended = with_stderr(once, [] {
    for (int i = 0; i < 12; ++i) report();
    log_line(LogLevel::error, "another thing");
    if (fork() == 0) {  // it inherits what has been reported
      report();
      _exit(0);
    }
    wait(nullptr);
  });
  CHECK_EQUAL(ended, 0);
  CHECK_EQUAL(lines(once), 2);
  CHECK(content(once).find("error: cannot write records: /run: No space left on device\n") != std::string::npos);

  const int first = new_file(), data = new_file();
  CHECK_EQUAL(with_stderr(first,
                          [data] {
                            dup2(data, 2);  // a data file by now
                            report();
                          }),
              0);
  CHECK_EQUAL(lines(first) + lines(data), 0);
  CHECK_EQUAL(with_stderr(first,
                          [] {
                            close(2);
                            report();
                          }),
              0);

  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  close(ends[0]);  // nobody reads
  CHECK_EQUAL(with_stderr(ends[1],
                          [] {
                            signal(SIGPIPE, SIG_DFL);
                            report();
                            if (is_pending(SIGPIPE)) _exit(1);
                          }),
              0);
  const int limited = new_file();
  CHECK_EQUAL(with_stderr(limited,
                          [] {
                            const rlimit none{0, 0};
                            setrlimit(RLIMIT_FSIZE, &none);
                            signal(SIGXFSZ, SIG_DFL);
                            report();
                            if (is_pending(SIGXFSZ)) _exit(1);
                          }),
              0);
  CHECK_EQUAL(lines(limited), 0);
  // Also where no thread can be had to write on.
  CHECK_EQUAL(with_stderr(limited,
                          [] {
                            const rlimit none{0, 0};
                            setrlimit(RLIMIT_FSIZE, &none);
                            setrlimit(RLIMIT_NPROC, &none);
                            if (setresuid(65534, 65534, 65534) != 0 && getuid() == 0) _exit(2);
                            signal(SIGXFSZ, SIG_DFL);
                            report();
                            if (is_pending(SIGXFSZ)) _exit(1);
                          }),
              0);
  // Nor does it wait for ever where a pipe is full and nobody empties it.
  int full[2];
  CHECK_EQUAL(pipe(full), 0);
  fcntl(full[1], F_SETFL, O_NONBLOCK);
  const char page[4096] = {};
  while (write(full[1], page, sizeof page) > 0) continue;
  fcntl(full[1], F_SETFL, 0);
  CHECK_EQUAL(with_stderr(full[1], report), 0);
  return result();
}
