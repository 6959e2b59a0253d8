/* Redirects numbers of descriptors that it does not own onto its own file, while the recorder makes rings and appends.
   SPDX-License-Identifier: Apache-2.0

     redirects thread|handler|vfork ROUNDS

   Ends with 0 if no byte of its file changed, 9 if one did. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kBytes = 4 << 20, kFill = 0x55, kThreads = 4, kReads = 3000, kHigh = 8, kOwnEnd = 20 };

static int mine, zero, high;
static atomic_int stop;
static atomic_long redirected;

/* Numbers just above ours, where open() puts new ones, and those where a tracer would hide its own. */
static void redirect_all(void) {
  for (int fd = kOwnEnd; fd < kOwnEnd + kHigh; ++fd) redirected += dup2(mine, fd) == fd;
  for (int fd = high; fd < high + kHigh; ++fd) redirected += dup2(mine, fd) == fd;
  for (int fd = kOwnEnd; fd < kOwnEnd + kHigh; ++fd) close(fd);
  for (int fd = high; fd < high + kHigh; ++fd) close(fd);
}

static void* redirector(void* unused) {
  while (!stop) redirect_all();
  return unused;
}

static void on_signal(int number) {
  const int saved = errno;
  (void)number;
  redirect_all();
  errno = saved;
}

static void* signaller(void* pid) {
  while (!stop) {
    kill((pid_t)(long)pid, SIGUSR1);
    usleep(50);
  }
  return NULL;
}

static void* reader(void* unused) {
  char bytes[16];
  for (int i = 0; i < kReads; ++i)
    if (read(zero, bytes, sizeof bytes) != sizeof bytes) _exit(3);
  return unused;
}

static void* vforker(void* unused) {
  while (!stop) {
    const pid_t child = vfork();
    if (child == 0) {
      redirect_all();
      reader(NULL);
      redirect_all();
      _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(4);
  }
  return unused;
}

int main(int count, char** arguments) {
  if (count != 3) return 2;
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  high = limit.rlim_cur > 2048 ? 1536 : (int)limit.rlim_cur - 32;
  char path[] = "/tmp/redirects.XXXXXX";
  mine = mkstemp(path);
  unlink(path);
  char* content = malloc(kBytes);
  memset(content, kFill, kBytes);
  if (write(mine, content, kBytes) != kBytes) return 5;
  char* mapped = mmap(NULL, kBytes, PROT_READ, MAP_SHARED, mine, 0);
  zero = open("/dev/zero", O_RDONLY);
  /* The numbers below are in use, so that what anybody opens meanwhile gets one that is redirected. */
  while (dup(zero) < kOwnEnd - 1) {
  }
  pthread_t attacker;
  if (strcmp(arguments[1], "thread") == 0) {
    pthread_create(&attacker, NULL, redirector, NULL);
  } else if (strcmp(arguments[1], "handler") == 0) {
    signal(SIGUSR1, on_signal);
    pthread_create(&attacker, NULL, signaller, (void*)(long)getpid());
  } else {
    pthread_create(&attacker, NULL, vforker, NULL);
  }
  const int rounds = atoi(arguments[2]);
  for (int round = 0; round < rounds; ++round) {
    pthread_t threads[kThreads];
    for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, reader, NULL);
    for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  }
  stop = 1;
  pthread_join(attacker, NULL);
  struct stat facts;
  fstat(mine, &facts);
  size_t changed = 0;
  for (size_t i = 0; i < kBytes; ++i) changed += mapped[i] != kFill;
  printf("changed %zu size %+ld reads %d redirected %d\n", changed, (long)(facts.st_size - kBytes),
         rounds * kThreads * kReads, redirected > 0);
  return changed != 0 || facts.st_size != kBytes ? 9 : 0;
}
