// Cost of one pread of 4 KiB through several hooks, block by block in turn. SPDX-License-Identifier: Apache-2.0
//
//   pread_loop FILE CALLS ROUNDS [LIBRARY...]
//
// Contenders: the process's own pread (that of a preloaded library, if any), then the pread of each LIBRARY, which is
// loaded beside it. All are called through a pointer, from the same loop, on the same core, in rotating order, so
// what a round compares differs in the hook alone. Prints one line per round: nanoseconds per call of each contender.
// The file must be in the page cache. Before the first round every contender makes kWarmUp calls, so that the pages of
// the file and of a recorder's ring (32,768 rows of 32 bytes) have all been touched.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { kBytes = 4096, kMostContenders = 8, kWarmUp = 40000 };
typedef ssize_t (*pread_function)(int, void*, size_t, off_t);

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double block_ns(pread_function function, int fd, long calls, long pages) {
  static char buffer[kBytes];
  const double begin = now_ns();
  for (long i = 0; i < calls; ++i)
    if (function(fd, buffer, kBytes, i % pages * kBytes) != kBytes) exit(3);
  return (now_ns() - begin) / (double)calls;
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int fd = open(argv[1], O_RDONLY);
  const long calls = atol(argv[2]), rounds = atol(argv[3]);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_size < kBytes) return 2;
  const long pages = status.st_size / kBytes;

  pread_function contender[kMostContenders] = {pread};
  int count = 1;
  for (int i = 4; i < argc && count < kMostContenders; ++i) {
    void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
    contender[count++] = (pread_function)dlsym(library, "pread");
  }
  for (int i = 0; i < count; ++i) block_ns(contender[i], fd, kWarmUp, pages);
  double ns[kMostContenders];
  for (long round = 0; round < rounds; ++round) {
    for (int i = 0; i < count; ++i) {
      const int next = (int)((round + i) % count);
      ns[next] = block_ns(contender[next], fd, calls, pages);
    }
    for (int i = 0; i < count; ++i) printf("%.3f%c", ns[i], i + 1 < count ? ' ' : '\n');
  }
  return 0;
}
