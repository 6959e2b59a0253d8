// Calls that sleep and calls that are merely long. SPDX-License-Identifier: Apache-2.0
//
//   io_blocking cold|warm|crowded|socket|pipe FILE
//
// cold     drops FILE from the page cache, reads it once; prints pages resident before and after (mincore)
// warm     reads 1 MiB pieces that are in the page cache, with sleeps between, which must not be blamed on the reads
// crowded  warm, beside more spinning threads than cores: the reads are preempted, which is not blocking
// socket   recv that waits 30 ms for a peer; pipe: the same with read
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kPiece = 1 << 20 };
static char buffer[kPiece];

static long resident_pages(const char* path) {
  struct stat status;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
  syscall(SYS_fstat, fd, &status);
  const size_t pages = (size_t)(status.st_size + 4095) / 4096;
  unsigned char* found = malloc(pages);
  void* map = (void*)syscall(SYS_mmap, NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
  mincore(map, (size_t)status.st_size, found);
  long resident = 0;
  for (size_t i = 0; i < pages; ++i) resident += found[i] & 1;
  syscall(SYS_munmap, map, status.st_size);
  syscall(SYS_close, fd);
  free(found);
  return resident;
}

static int cold(const char* path) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
  syscall(SYS_fdatasync, fd);
  syscall(SYS_fadvise64, fd, 0L, 0L, POSIX_FADV_DONTNEED);
  const long before = resident_pages(path);
  while (read(fd, buffer, 65536) > 0) {
  }
  printf("%ld %ld\n", before, resident_pages(path));
  return 0;
}

static void nap(long ms) {
  const struct timespec length = {0, ms * 1000000};
  syscall(SYS_nanosleep, &length, NULL);
}

static int warm(const char* path, int rounds) {
  const int fd = open(path, O_RDONLY);
  while (syscall(SYS_read, fd, buffer, (size_t)kPiece) > 0) {
  }
  for (int i = 0; i < rounds; ++i) {
    pread(fd, buffer, kPiece, 0);
    nap(1);  // a voluntary switch outside
  }
  return 0;
}

static volatile int spinning = 1;
static void* spin(void* unused) {
  while (spinning) {
  }
  return unused;
}

static int crowded(const char* path) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  pthread_t thread[64];
  const long count = cores + 1 < 64 ? cores + 1 : 64;
  for (long i = 0; i < count; ++i) pthread_create(&thread[i], NULL, spin, NULL);
  const int fd = open(path, O_RDONLY);
  while (syscall(SYS_read, fd, buffer, (size_t)kPiece) > 0) {
  }
  for (int i = 0; i < 400; ++i) pread(fd, buffer, kPiece, 0);
  spinning = 0;
  for (long i = 0; i < count; ++i) pthread_join(thread[i], NULL);
  return 0;
}

static int ends[2];
static void* send_late(void* unused) {
  nap(30);
  syscall(SYS_write, ends[1], "x", 1L);
  return unused;
}

static int late(int is_socket) {
  pthread_t thread;
  if ((is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends)) != 0) return 2;
  pthread_create(&thread, NULL, send_late, NULL);
  if (is_socket) recv(ends[0], buffer, 1, 0);
  else read(ends[0], buffer, 1);
  pthread_join(thread, NULL);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (strcmp(argv[1], "cold") == 0) return cold(argv[2]);
  if (strcmp(argv[1], "warm") == 0) return warm(argv[2], 40);
  if (strcmp(argv[1], "crowded") == 0) return crowded(argv[2]);
  return late(strcmp(argv[1], "socket") == 0);
}
