// Reads on two threads and in a forked child, and starts programs. SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void* read_often(void* unused) {
  char bytes[64];
  const int zero = open("/dev/zero", O_RDONLY);
  for (int i = 0; i < 20000; ++i) pread(zero, bytes, sizeof bytes, 0);
  close(zero);
  return unused;
}

int main(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, &read_often, NULL);
  read_often(NULL);
  pthread_join(thread, NULL);
  if (fork() == 0) {
    read_often(NULL);
    _exit(0);
  }
  int status = 0;
  wait(&status);
  return status != 0 || system("true") != 0;
}
