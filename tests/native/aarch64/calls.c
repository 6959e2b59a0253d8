// What a small job does, each call on purpose: the same program is recorded on this machine and under emulation.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: calls FOLDER [kill]. With "kill" the process ends by SIGKILL, with its rows in the ring.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NEED(condition)                                                               \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, strerror(errno));   \
      _exit(1);                                                                       \
    }                                                                                 \
  } while (0)

static char bytes[4096];
static int in_handler = -1;

static void write_in_handler(int number) {
  (void)number;
  NEED(write(in_handler, "!", 1) == 1);
}

static void* read_everything(void* path) {
  const int fd = open(path, O_RDONLY);
  NEED(fd >= 0);
  while (read(fd, bytes, 1000) > 0) {
  }
  NEED(close(fd) == 0);
  return NULL;
}

static void files(void) {
  const int fd = open("data", O_CREAT | O_RDWR | O_TRUNC, 0644);
  NEED(fd >= 0);
  for (int i = 0; i < 40; ++i) NEED(write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
  for (int i = 0; i < 40; ++i) NEED(pread(fd, bytes, 100 + i, i * 4096) == 100 + i);
  struct iovec parts[2] = {{bytes, 10}, {bytes + 10, 20}};
  NEED(lseek(fd, 4096, SEEK_SET) == 4096);
  NEED(readv(fd, parts, 2) == 30 && writev(fd, parts, 2) == 30);
  struct stat about;
  NEED(fstat(fd, &about) == 0 && about.st_size == 40 * 4096);
  NEED(stat("data", &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 40 * 4096);
  NEED(fstatat(AT_FDCWD, "nothing", &about, 0) == -1 && errno == ENOENT);
  void* mapped = mmap(NULL, 40 * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
  NEED(mapped != MAP_FAILED && ((char*)mapped)[5] == 'x');
  NEED(munmap(mapped, 40 * 4096) == 0);
  NEED(fdatasync(fd) == 0 && ftruncate(fd, 5000) == 0 && close(fd) == 0);
  NEED(rename("data", "renamed") == 0 && mkdir("folder", 0755) == 0 && rmdir("folder") == 0);
  FILE* stream = fopen("renamed", "r");
  NEED(stream != NULL && fread(bytes, 1, 200, stream) == 200 && fclose(stream) == 0);
  DIR* folder = opendir(".");
  NEED(folder != NULL);
  while (readdir(folder) != NULL) {
  }
  NEED(closedir(folder) == 0);
}

static void threads_and_handlers(void) {
  pthread_t thread[3];
  for (int i = 0; i < 3; ++i) NEED(pthread_create(&thread[i], NULL, read_everything, "renamed") == 0);
  for (int i = 0; i < 3; ++i) NEED(pthread_join(thread[i], NULL) == 0);
  in_handler = open("handled", O_CREAT | O_WRONLY | O_APPEND, 0644);
  NEED(in_handler >= 0 && signal(SIGUSR1, write_in_handler) != SIG_ERR);
  for (int i = 0; i < 5; ++i) NEED(raise(SIGUSR1) == 0);
  NEED(close(in_handler) == 0);
}

static void waits(void) {
  int ends[2];
  NEED(pipe(ends) == 0 && write(ends[1], "a", 1) == 1);
  struct pollfd one = {ends[0], POLLIN, 0};
  NEED(poll(&one, 1, 1000) == 1);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(ends[0], &set);
  struct timeval limit = {1, 0};
  NEED(select(ends[0] + 1, &set, NULL, NULL, &limit) == 1);
  const int epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0 && epoll_wait(epoll, &event, 1, 1000) == 1);
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  NEED(pthread_mutex_lock(&mutex) == 0 && pthread_cond_timedwait(&condition, &mutex, &until) == ETIMEDOUT);
}

// All of these pass the assembler of our syscall().
static void calls_by_number(void) {
  int word = 0;
  NEED(syscall(SYS_getpid) == getpid());
  errno = 0;
  NEED(syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 1, NULL, NULL, 0) == -1 && errno == EAGAIN);
  NEED(syscall(SYS_futex, &word, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0) == 0);
  char name[16] = "";
  NEED(syscall(SYS_prctl, PR_SET_NAME, "renamed", 0, 0, 0) == 0 && prctl(PR_GET_NAME, name, 0, 0, 0) == 0);
  NEED(strcmp(name, "renamed") == 0);
  NEED(syscall(SYS_pread64, -1, bytes, 1L, 0L) == -1 && errno == EBADF);
}

static void children(void) {
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
      read_everything("renamed");
      exit(7);
    }
    int status = 0;
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  }
}

int main(int count, char** arguments) {
  NEED(count > 1 && chdir(arguments[1]) == 0);
  memset(bytes, 'x', sizeof bytes);
  files();
  threads_and_handlers();
  waits();
  calls_by_number();
  children();
  NEED(unlink("renamed") == 0 && unlink("handled") == 0);
  if (count > 2) kill(getpid(), SIGKILL);
  return 3;
}
