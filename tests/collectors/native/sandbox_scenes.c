// Writes a file, puts itself under a filter in the way that argv[1] names, goes on. SPDX-License-Identifier: Apache-2.0
//
// The filter kills at every call but read, write, exit, exit_group and rt_sigreturn, as strict mode does; "tsc" forbids the time
// stamp counter alone. "container ERRNO" is another thing: a filter by the rules of Docker's default, which allows the calls of
// container_calls.txt, refuses all others with ERRNO, and is inherited by the program argv[3]. The names come as
// container_calls.h, made by the test; "job" is a program to be started so. "old container" refuses close_range too, as lists did before Linux had it.
// In front of the container's list stands what libseccomp puts there: calls of another processor's kind kill.
//
// "vfork" has a vfork child do so first, which ends; "vfork execve" has one that executes "say" under the filter of "killing", then
// starts "say" again, without a filter.
//
// "killing WAY" is a third: a filter that kills at a few calls, by which the program lives well, as does the one that it then executes
// in that way, "say".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <linux/audit.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ARGUMENT(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[i]))
#define ANSWER BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))

static struct sock_filter strict[] = {
    NUMBER, ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_exit_group), ALLOW(SYS_rt_sigreturn),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
static struct sock_filter killing[] = {
    NUMBER, BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_uname, 2, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 1, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1), KILL, ANSWER};
// Namespaces: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
#define NAMESPACES 0x7e020000
static struct sock_filter container[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0), KILL,
    NUMBER,
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), KILL,
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1), ANSWER,  // "old container" puts its refusal here
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1), REFUSE(ENOSYS),  // its flags lie in memory
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
    ARGUMENT(0), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1), REFUSE(EPERM), ANSWER,
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 4),
    ARGUMENT(0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_VSOCK, 0, 1), REFUSE(EPERM), ANSWER,
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 8),
    ARGUMENT(0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 8, 3, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x20000, 2, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x20008, 1, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 0, 1), ANSWER, REFUSE(EPERM),
#include "container_calls.h"
    REFUSE(EPERM)};
#define PROGRAM(filter) {sizeof filter / sizeof *filter, filter}
static struct sock_fprog strict_program = PROGRAM(strict), container_program = PROGRAM(container),
                         killing_program = PROGRAM(killing);
enum { kOfCloseRange = 7 };  // in the container's list
extern char** environ;

// A job of threads and a child, which makes 20,000 writes and reads in each of its three threads of control.
static void* move_bytes(void* name) {
  char byte;
  const int file = open(name, O_RDWR | O_CREAT, 0600);
  for (int i = 0; i < 20000; ++i) write(file, "x", 1);
  for (int i = 0; i < 20000; ++i) pread(file, &byte, 1, i);
  close(file);
  return NULL;
}
static int job(void) {
  pthread_t thread;
  int status = 0;
  if (pthread_create(&thread, NULL, move_bytes, "of a thread") != 0) return 1;
  const pid_t child = fork();
  if (child == 0) move_bytes("of a child"), _exit(0);
  move_bytes("of the first thread");
  pthread_join(thread, NULL);
  waitpid(child, &status, 0);
  return status;
}

// Executes itself to "say" something under the filter.
static int execute(const char* way, char* self) {
  char* arguments[] = {self, "say", NULL};
  char* environment[256] = {"OWN=1"};
  int status = 0;
  pid_t child = 0;
  for (int i = 0; environ[i] != NULL && i < 254; ++i) environment[i + 1] = environ[i];
  if (strstr(way, "execve") != NULL) execve(self, arguments, environment);
  else if (strstr(way, "execv") != NULL) execv(self, arguments);
  else if (strstr(way, "posix_spawn") != NULL) posix_spawn(&child, self, NULL, NULL, arguments, environment);
  else if ((child = fork()) == 0) execvp(self, arguments);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Exit code of a vfork child that puts itself under a filter, then ends, or executes `self`; 128 and the signal if it was killed.
static int vfork_child(struct sock_fprog* program, char* self) {
  char* arguments[] = {self, "say", NULL};
  int status = 0;
  const pid_t child = vfork();
  if (child == 0) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0) _exit(9);
    if (self != NULL) execve(self, arguments, environ);
    _exit(0);
  }
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char** argv) {
  const char* way = argv[1];
  if (strcmp(way, "job") == 0) return job();
  if (strcmp(way, "say") == 0) return write(1, getenv("KEPT") != NULL ? "kept\n" : "lost\n", 5) == 5 ? 6 : 7;
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (strncmp(way, "killing", 7) == 0) {
    const int file = open("before", O_WRONLY | O_CREAT, 0600);
    write(file, "12345", 5);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &killing_program, 0, 0) != 0) return 9;
    return execute(way, argv[0]);
  }
  if (strcmp(way, "vfork execve") == 0) {
    const int code = vfork_child(&killing_program, argv[0]);
    return code == 6 ? execute("fork", argv[0]) : code;
  }
  const int old = strcmp(way, "old container") == 0;
  if (old || strcmp(way, "container") == 0) {
    const int error = SECCOMP_RET_ERRNO | atoi(argv[2]);
    container[sizeof container / sizeof *container - 1].k = error;
    if (old) container[kOfCloseRange].k = error;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &container_program) != 0) return 9;
    // Under the filter that was meant: user namespaces are refused, and what is in no list.
    if (unshare(CLONE_NEWUSER) == 0 || errno != atoi(argv[2]) || syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) != -1 ||
        errno != EPERM || syscall(SYS_clone3, 0, 0) != -1 || errno != ENOSYS || syscall(9999) != -1 || errno != atoi(argv[2]))
      return 8;
    execv(argv[3], argv + 3);
    return 7;
  }
  const int file = open("before", O_WRONLY | O_CREAT, 0600);
  write(file, "12345", 5);
  int failed = 0;
  // A question about filters is none.
  failed |= prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) != -1 || errno != EFAULT;
  write(file, "1234567", 7);
  if (strcmp(way, "strict") == 0) failed |= prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
  if (strcmp(way, "vfork") == 0) failed |= vfork_child(&strict_program, NULL);
  if (strcmp(way, "filter") == 0 || strcmp(way, "vfork") == 0) failed |= prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &strict_program, 0, 0);
  if (strcmp(way, "seccomp") == 0) failed |= syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &strict_program);
  if (strcmp(way, "prctl by number") == 0) failed |= syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
  if (strcmp(way, "tsc") == 0) failed |= prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
  char byte;
  for (int i = 0; i < 20000; ++i) write(file, "x", 1);
  read(0, &byte, 1);
  write(1, "went on\n", 8);
  syscall(SYS_exit, failed ? 7 : 5);
}
