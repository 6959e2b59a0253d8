/* Executes a program from a signal handler on a stack of 12 KiB, below which nothing may be touched. SPDX-License-Identifier: Apache-2.0

     exec_on_small_stack execve|execvp PROGRAM */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kStackBytes = 12288, kGuardBytes = 1 << 18 };

static char** words;

static void execute(int number) {
  (void)number;
  char* arguments[] = {words[2], NULL};
  if (strcmp(words[1], "execve") == 0) execve(words[2], arguments, environ);
  else execvp(words[2], arguments);
  _exit(8);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  words = arguments;
  char* memory = mmap(NULL, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(memory, kGuardBytes, PROT_NONE);
  const stack_t stack = {.ss_sp = memory + kGuardBytes, .ss_size = kStackBytes};
  sigaltstack(&stack, NULL);
  const struct sigaction action = {.sa_handler = execute, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR1, &action, NULL);
  raise(SIGUSR1);
  return 7;
}
