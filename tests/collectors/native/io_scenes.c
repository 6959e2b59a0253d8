// Programs in which recording goes wrong easily. SPDX-License-Identifier: Apache-2.0
//
//   io_scenes threads|killed|signals|cancelled|cancelled_open|forked|vforked FILE COUNT
//
// Each does a known number of preads of FILE and prints what the test must find.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static const char* path;
static long count;

static void pread_all(int fd, long times) {
  char buffer[64];
  for (long i = 0; i < times; ++i)
    if (pread(fd, buffer, sizeof buffer, i % 64) != sizeof buffer) exit(3);
}

static void* thread_main(void* unused) {
  (void)unused;
  const int fd = open(path, O_RDONLY);
  pread_all(fd, count);
  close(fd);
  return NULL;
}

static int threads(void) {
  pthread_t thread[8];
  for (int i = 0; i < 8; ++i) pthread_create(&thread[i], NULL, thread_main, NULL);
  for (int i = 0; i < 8; ++i) pthread_join(thread[i], NULL);
  return 0;
}

static int killed(void) {
  pread_all(open(path, O_RDONLY), count);
  return raise(SIGKILL);
}

static volatile sig_atomic_t handled;
static int handler_fd;
static void on_alarm(int signal) {
  (void)signal;
  const int saved = errno;
  char byte;
  if (pread(handler_fd, &byte, 1, 7) == 1) ++handled;
  errno = saved;
}

static int signals(void) {
  handler_fd = open(path, O_RDONLY);
  signal(SIGALRM, on_alarm);
  const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  pread_all(open(path, O_RDONLY), count);
  setitimer(ITIMER_REAL, &never, NULL);
  printf("%d\n", (int)handled);
  return 0;
}

static int ends[2];
static void* blocked_main(void* unused) {
  (void)unused;
  char byte;
  read(ends[0], &byte, 1);  // a cancellation point
  return NULL;
}

static int cancelled(void) {
  pthread_t thread;
  void* value;
  if (pipe(ends) != 0) return 2;
  pthread_create(&thread, NULL, blocked_main, NULL);
  usleep(20000);
  pthread_cancel(thread);
  pthread_join(thread, &value);
  pread_all(open(path, O_RDONLY), count);
  printf("%d\n", value == PTHREAD_CANCELED);
  return 0;
}

static void* opening_main(void* name) {
  open(name, O_RDONLY);  // a cancellation point: nobody writes to the pipe
  return NULL;
}

static int cancelled_open(void) {
  char name[4096];
  pthread_t thread;
  void* value;
  snprintf(name, sizeof name, "%s.fifo", path);
  if (mkfifo(name, 0600) != 0) return 2;
  pthread_create(&thread, NULL, opening_main, name);
  usleep(20000);
  pthread_cancel(thread);
  pthread_join(thread, &value);
  pread_all(open(path, O_RDONLY), count);
  printf("%d\n", value == PTHREAD_CANCELED);
  return 0;
}

// Parent and child share the position of a descriptor that is open at fork.
static int forked(void) {
  char buffer[64];
  const int fd = open(path, O_RDONLY);
  read(fd, buffer, 10);
  const pid_t child = fork();
  if (child == 0) {
    read(fd, buffer, 20);
    pread_all(fd, count);
    _exit(0);
  }
  waitpid(child, NULL, 0);
  read(fd, buffer, 30);
  lseek(fd, 5, SEEK_SET);
  read(fd, buffer, 40);
  pread_all(fd, count);
  printf("%d %d\n", (int)getpid(), (int)child);
  return 0;
}

// A vfork child rearranges its descriptors in the memory of its parent.
static int vforked(void) {
  char buffer[64];
  const int fd = open(path, O_RDONLY), other = open("/dev/null", O_RDONLY);
  const pid_t child = vfork();
  if (child == 0) {
    dup2(other, fd);
    close(other);
    _exit(0);
  }
  waitpid(child, NULL, 0);
  pread_all(fd, count);
  printf("%d\n", (int)pread(other, buffer, 1, 0));
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  path = argv[2];
  count = atol(argv[3]);
  static const struct {
    const char* name;
    int (*run)(void);
  } scenes[] = {{"threads", threads}, {"killed", killed}, {"signals", signals},
                {"cancelled", cancelled}, {"cancelled_open", cancelled_open}, {"forked", forked},
                {"vforked", vforked}};
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; ++i)
    if (strcmp(argv[1], scenes[i].name) == 0) return scenes[i].run();
  return 2;
}
