// Threads (or forked children) that read without end and count their calls in a shared page. SPDX-License-Identifier: Apache-2.0
//
//   kill COUNTERS DATA WORKERS threads|children
//
// Worker i owns 64 bytes of COUNTERS: its kernel thread id, the calls it began and the calls it finished. Whoever kills
// the program knows from them, to one call, how many rows there must be.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct slot {
  volatile uint64_t tid, began, finished, unused[5];
};

static struct slot* slots;
static int data;

static void* work(void* number) {
  struct slot* own = &slots[(intptr_t)number];
  char bytes[64];
  own->tid = (uint64_t)syscall(SYS_gettid);
  for (;;) {
    own->began = own->began + 1;
    if (pread(data, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) _exit(3);
    own->finished = own->finished + 1;
  }
  return NULL;
}

int main(int count, char** words) {
  if (count != 5) return 2;
  const int page = open(words[1], O_RDWR), workers = atoi(words[3]);
  data = open(words[2], O_RDONLY);
  slots = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
  if (page < 0 || data < 0 || slots == MAP_FAILED || workers < 1 || workers > 64) return 2;
  for (intptr_t i = 0; i < workers; ++i) {
    pthread_t thread;
    if (strcmp(words[4], "threads") == 0) {
      if (pthread_create(&thread, NULL, work, (void*)i) != 0) return 2;
    } else if (fork() == 0) {
      work((void*)i);
    }
  }
  for (;;) pause();
}
