/* Threads whose first recorded call is made by a vfork child, beside threads that begin later. SPDX-License-Identifier: Apache-2.0

     first_row_in_child THREADS READS

   THREADS threads each have a child that opens a file and ends; when all have, as many others begin. Then every thread reads READS
   times, and says its id. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int reads;
static pthread_barrier_t children_have_ended, all_read;

static void* read_zeros(void* unused) {
  char bytes[16];
  const int zero = open("/dev/zero", O_RDONLY);
  for (int i = 0; i < reads; ++i)
    if (read(zero, bytes, sizeof bytes) != sizeof bytes) _exit(3);
  pthread_barrier_wait(&all_read);
  printf("%d\n", gettid());
  return unused;
}

static void* have_child(void* unused) {
  const pid_t child = vfork();
  if (child == 0) {
    open("/dev/null", O_RDONLY);
    _exit(0);
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(4);
  pthread_barrier_wait(&children_have_ended);
  return read_zeros(unused);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const int threads = atoi(arguments[1]);
  reads = atoi(arguments[2]);
  pthread_t* all = calloc(2 * (size_t)threads, sizeof *all);
  pthread_barrier_init(&children_have_ended, NULL, (unsigned)threads + 1);
  pthread_barrier_init(&all_read, NULL, 2 * (unsigned)threads);
  for (int i = 0; i < threads; ++i) pthread_create(&all[i], NULL, have_child, NULL);
  pthread_barrier_wait(&children_have_ended);
  for (int i = 0; i < threads; ++i) pthread_create(&all[threads + i], NULL, read_zeros, NULL);
  for (int i = 0; i < 2 * threads; ++i) pthread_join(all[i], NULL);
  return 0;
}
