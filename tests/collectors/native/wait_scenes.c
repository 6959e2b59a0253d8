// Every hooked wait once, on a watched thread, and once on one that is not. SPDX-License-Identifier: Apache-2.0
//
// Each wait lasts about 20 ms; mutex and condition are used correctly, so a hook that changed a result would show.
// Prints one line per call: its name and result.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kMs = 20 };
static const struct timespec length = {0, kMs * 1000000};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int word;

#define SHOW(call) show(#call, (long)(call))
static void show(const char* call, long result) {
  printf("%.*s %ld\n", (int)strcspn(call, "("), call, result);
}

static struct timespec soon(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  now.tv_nsec += length.tv_nsec;
  if (now.tv_nsec >= 1000000000) ++now.tv_sec, now.tv_nsec -= 1000000000;
  return now;
}

static void raw_nap(void) { syscall(SYS_nanosleep, &length, NULL); }

static void* signal_late(void* unused) {
  raw_nap();
  pthread_mutex_lock(&mutex);
  pthread_cond_signal(&condition);
  pthread_mutex_unlock(&mutex);
  return unused;
}
static void* post_late(void* unused) {
  raw_nap();
  sem_post(&semaphore);
  return unused;
}
static void* hold(void* unused) {
  pthread_mutex_lock(&held);
  sem_post(&semaphore);
  raw_nap();
  pthread_mutex_unlock(&held);
  return unused;
}
static void* end_late(void* unused) {
  raw_nap();
  return unused;
}

static void all_waits(void) {
  pthread_t thread;
  struct timespec until;
  pthread_create(&thread, NULL, signal_late, NULL);
  pthread_mutex_lock(&mutex);
  SHOW(pthread_cond_wait(&condition, &mutex));
  until = soon(CLOCK_REALTIME);
  SHOW(pthread_cond_timedwait(&condition, &mutex, &until));
  until = soon(CLOCK_MONOTONIC);
  SHOW(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until));
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, NULL);

  pthread_create(&thread, NULL, hold, NULL);
  sem_wait(&semaphore);
  SHOW(pthread_mutex_lock(&held));
  pthread_mutex_unlock(&held);
  pthread_join(thread, NULL);

  pthread_create(&thread, NULL, post_late, NULL);
  SHOW(sem_wait(&semaphore));
  pthread_join(thread, NULL);
  until = soon(CLOCK_REALTIME);
  SHOW(sem_timedwait(&semaphore, &until));
  until = soon(CLOCK_MONOTONIC);
  SHOW(sem_clockwait(&semaphore, CLOCK_MONOTONIC, &until));

  struct timeval limit = {0, kMs * 1000};
  struct epoll_event event;
  const int epoll = epoll_create1(0);
  SHOW(poll(NULL, 0, kMs));
  SHOW(ppoll(NULL, 0, &length, NULL));
  SHOW(select(0, NULL, NULL, NULL, &limit));
  SHOW(pselect(0, NULL, NULL, NULL, &length, NULL));
  SHOW(epoll_wait(epoll, &event, 1, kMs));
  SHOW(epoll_pwait(epoll, &event, 1, kMs, NULL));
  close(epoll);

  SHOW(nanosleep(&length, NULL));
  SHOW(clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL));
  SHOW(usleep(kMs * 1000));

  pthread_create(&thread, NULL, end_late, NULL);
  SHOW(pthread_join(thread, NULL));
  pid_t child = fork();
  if (child == 0) {
    raw_nap();
    _exit(0);
  }
  SHOW(waitpid(child, NULL, 0) == child);
  SHOW(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &length, NULL, 0));
  SHOW(syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
  SHOW(syscall(SYS_getppid) == getppid());
}

// What must not change on the way through the mutex hook.
static void mutex_answers(void) {
  pthread_mutexattr_t kind;
  pthread_mutex_t checked;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&checked, &kind);
  SHOW(pthread_mutex_lock(&checked));
  SHOW(pthread_mutex_lock(&checked));
  SHOW(pthread_mutex_unlock(&checked));
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&checked, &kind);
  SHOW(pthread_mutex_lock(&checked));
  SHOW(pthread_mutex_lock(&checked));
}

static void* unwatched(void* unused) {
  all_waits();
  return unused;
}

int main(void) {
  void (*watch)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "stashtrace_watch_waits");
  pthread_t thread;
  sem_init(&semaphore, 0, 0);
  if (watch != NULL) watch(1);
  all_waits();
  mutex_answers();
  if (watch != NULL) watch(0);
  all_waits();
  pthread_create(&thread, NULL, unwatched, NULL);
  pthread_join(thread, NULL);
  return 0;
}
