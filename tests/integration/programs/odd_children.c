/* Children that share memory with their parent, and are not threads of it. SPDX-License-Identifier: Apache-2.0

     odd_children KIND CHILDREN READS [AFTER]

   KIND: plain, vfork, clone_vm, clone_vm_vfork, clone_files, raw_fork. Each child reads READS times and ends; the parent waits,
   and reads AFTER times at the end. Ends with 0, or with what went wrong. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kStackBytes = 1 << 18 };

static int reads;

static void read_zeros(int count) {
  char bytes[16];
  const int zero = open("/dev/zero", O_RDONLY);
  for (int i = 0; i < count; ++i)
    if (read(zero, bytes, sizeof bytes) != sizeof bytes) _exit(3);
  close(zero);
}

static int child_main(void* unused) {
  (void)unused;
  read_zeros(reads);
  return 0;
}

static pid_t start(const char* kind, char* stack) {
  if (strcmp(kind, "raw_fork") == 0) {
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
      read_zeros(reads);
      _exit(0);
    }
    return child;
  }
  int flags = SIGCHLD;
  if (strcmp(kind, "clone_vm") == 0) flags |= CLONE_VM | CLONE_FS | CLONE_FILES;
  if (strcmp(kind, "clone_vm_vfork") == 0) flags |= CLONE_VM | CLONE_VFORK;
  if (strcmp(kind, "clone_files") == 0) flags |= CLONE_FILES;
  return clone(child_main, stack + kStackBytes, flags, NULL);
}

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const char* kind = arguments[1];
  reads = atoi(arguments[3]);
  char* stack = mmap(NULL, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int children = atoi(arguments[2]);
  for (volatile int i = 0; i < children; ++i) {
    pid_t child;
    if (strcmp(kind, "vfork") == 0) {
      child = vfork();
      if (child == 0) {
        read_zeros(reads);
        _exit(0);
      }
    } else {
      child = start(kind, stack);
    }
    int status;
    if (child < 0) return 4;
    if (waitpid(child, &status, 0) != child) return 5;
    if (status != 0) return 6;
  }
  if (count > 4) read_zeros(atoi(arguments[4]));
  return 0;
}
