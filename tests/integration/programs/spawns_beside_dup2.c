/* One thread starts programs while another puts a descriptor onto the lowest free number. SPDX-License-Identifier: Apache-2.0

     spawns_beside_dup2 COUNT

   Says how often that descriptor was gone before its thread closed it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int done;

static void* spawn(void* count) {
  for (int i = 0; i < *(int*)count; ++i) {
    char* arguments[] = {"/bin/true", NULL};
    pid_t child;
    int status;
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) != 0) _exit(3);
    if (waitpid(child, &status, 0) != child || status != 0) _exit(4);
  }
  done = 1;
  return NULL;
}

int main(int words, char** arguments) {
  if (words < 2) return 2;
  int count = atoi(arguments[1]);
  const int null = open("/dev/null", O_WRONLY);
  const int lowest = dup(null);
  close(lowest);
  pthread_t thread;
  pthread_create(&thread, NULL, spawn, &count);
  long gone = 0;
  while (!done) {
    dup2(null, lowest);
    for (int i = 0; i < 30; ++i) {
      if (fcntl(lowest, F_GETFD) >= 0) continue;
      ++gone;
      break;
    }
    close(lowest);
  }
  pthread_join(thread, NULL);
  printf("%ld\n", gone);
  return 0;
}
