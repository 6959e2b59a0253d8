// One line of text for each call: value, errno, and what it changed. SPDX-License-Identifier: Apache-2.0
//
// Every function is looked up by name as a program that was linked elsewhere would have it: in front of libc where a
// library is preloaded. errno is 77 before each call, so that a function that touches it where it should not shows.
#pragma once
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define BAD ((long)16)  // an address that nothing is mapped at
#define UNTOUCHED 77

typedef long (*function7)(long, long, long, long, long, long, long);

static long calls_count;
static int said_to = 1;

// Text goes to its descriptor by the bare system call, so that the program's own report is not part of what is compared.
static void say(const char* format, ...) {
  char text[2048];
  va_list values;
  va_start(values, format);
  const int length = vsnprintf(text, sizeof text, format, values);
  va_end(values);
  syscall(SYS_write, said_to, text, length < (int)sizeof text ? length : (int)sizeof text - 1);
}

static function7 found(const char* name) {
  void* function = dlsym(RTLD_DEFAULT, name);
  if (function == NULL) say("%s is not in this libc\n", name);
  return (function7)function;
}

enum kind { INT, LONG, POINTER, NOTHING };

static long called(const char* name, enum kind kind, const char* note, const long* a) {
  const function7 function = found(name);
  if (function == NULL) return -1;
  ++calls_count;
  say("%s(%s)", name, note);  // before the call, so that a line says which one ended its process
  errno = UNTOUCHED;
  long value = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
  const int error = errno;
  if (kind == INT) value = (int)value;
  if (kind == NOTHING) value = 0;
  // An address differs from run to run; whether there is one does not. MAP_FAILED stays -1.
  const long shown = kind == POINTER && value != 0 && value != -1 ? 1 : value;
  say(" = %ld errno %d\n", shown, error);
  return value;
}

#define ARGUMENTS(...) ((const long[7]){__VA_ARGS__})
#define CALL(kind, name, note, ...) called(name, kind, note, ARGUMENTS(__VA_ARGS__))
#define P(...) ((long)(intptr_t)(__VA_ARGS__))

// In a child: what may end the process (a bad address, SIGXFSZ, a check of fortification), and how it ended.
#define IN_CHILD(...)                                                                   \
  do {                                                                                  \
    const long child = syscall(SYS_fork);                                               \
    if (child == 0) {                                                                   \
      struct rlimit none = {0, 0};                                                      \
      setrlimit(RLIMIT_CORE, &none);                                                    \
      __VA_ARGS__;                                                                             \
      syscall(SYS_exit_group, 0);                                                       \
    }                                                                                   \
    int status = 0;                                                                     \
    syscall(SYS_wait4, child, &status, 0, NULL);                                        \
    ++calls_count;                                                                      \
    if (status != 0) say(" ended with status %#x\n", status);                          \
  } while (0)

// State of a descriptor by bare system calls: position, size, flags, and a digest of the content.
static void state(const char* label, int fd) {
  struct stat facts;
  if (syscall(SYS_newfstatat, fd, "", &facts, AT_EMPTY_PATH) != 0) {
    say("  %s: %d is not open\n", label, fd);
    return;
  }
  uint64_t digest = 14695981039346656037u;
  char bytes[4096];
  if (S_ISREG(facts.st_mode)) {
    long got;
    for (long at = 0; at < (1 << 20) && (got = syscall(SYS_pread64, fd, bytes, sizeof bytes, at)) > 0; at += got)
      for (long i = 0; i < got; ++i) digest = (digest ^ (unsigned char)bytes[i]) * 1099511628211u;
  }
  say("  %s: at %ld of %ld, mode %o, flags %lo %ld, digest %016lx\n", label, syscall(SYS_lseek, fd, 0, SEEK_CUR),
      (long)facts.st_size, facts.st_mode, syscall(SYS_fcntl, fd, F_GETFL), syscall(SYS_fcntl, fd, F_GETFD), digest);
}

// Files that each group starts from, made by bare system calls.
static void fresh(const char* name, const char* content) {
  const long fd = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_TRUNC, 0644);
  syscall(SYS_write, fd, content, strlen(content));
  syscall(SYS_close, fd);
}

static int bare_open(const char* name, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0644); }
static void bare_close(int fd) {
  if (fd >= 0) syscall(SYS_close, fd);
}

static volatile int ticks;
static void tick(int number) { ++ticks; }
static void every_20_ms(int on) {
  struct sigaction action = {.sa_handler = tick};  // no SA_RESTART: blocked calls end with EINTR
  sigaction(SIGALRM, &action, NULL);
  const struct itimerval timer = {{0, on ? 20000 : 0}, {0, on ? 20000 : 0}};
  setitimer(ITIMER_REAL, &timer, NULL);
}
