// Writes a file, puts itself under a filter in the way that argv[1] names, goes on. SPDX-License-Identifier: Apache-2.0
//
// The filter kills at every call but read, write, exit, exit_group and rt_sigreturn, as strict mode does. "container" is
// another thing: an allow-list that answers EPERM to the rest, and then argv[2] is started under it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define DENY(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))

static struct sock_filter strict[] = {
    NUMBER, ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_exit_group), ALLOW(SYS_rt_sigreturn),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
// What a container's default refuses, of calls that a tracer may think of; the newest numbers are refused whole.
static struct sock_filter container[] = {
    NUMBER, DENY(SYS_perf_event_open), DENY(SYS_process_vm_readv), DENY(SYS_process_vm_writev), DENY(SYS_ptrace), DENY(SYS_bpf),
    DENY(SYS_userfaultfd), DENY(SYS_kcmp), DENY(SYS_unshare), DENY(SYS_setns), DENY(SYS_mount), DENY(SYS_keyctl),
    DENY(SYS_add_key), DENY(SYS_personality), DENY(SYS_syslog), DENY(SYS_open_by_handle_at), DENY(SYS_io_uring_setup),
    BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 439, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
#define PROGRAM(filter) {sizeof filter / sizeof *filter, filter}
static struct sock_fprog strict_program = PROGRAM(strict), container_program = PROGRAM(container);

int main(int argc, char** argv) {
  const char* way = argv[1];
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (strcmp(way, "container") == 0) {
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &container_program) != 0) return 9;
    execv(argv[2], argv + 2);
    return 8;
  }
  const int file = open("before", O_WRONLY | O_CREAT, 0600);
  write(file, "12345", 5);
  int failed = 0;
  // A question about filters is none.
  failed |= prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) != -1 || errno != EFAULT;
  write(file, "1234567", 7);
  if (strcmp(way, "strict") == 0) failed |= prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
  if (strcmp(way, "filter") == 0) failed |= prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &strict_program, 0, 0);
  if (strcmp(way, "seccomp") == 0) failed |= syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &strict_program);
  if (strcmp(way, "prctl by number") == 0) failed |= syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
  if (strcmp(way, "tsc") == 0) failed |= prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
  char byte;
  for (int i = 0; i < 20000; ++i) write(file, "x", 1);
  read(0, &byte, 1);
  write(1, "went on\n", 8);
  syscall(SYS_exit, failed ? 7 : 5);
}
