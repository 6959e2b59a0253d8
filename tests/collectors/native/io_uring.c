// Makes a ring of io_uring. SPDX-License-Identifier: Apache-2.0
//
//   io_uring syscall|instruction|mapped FILE
//
// By libc's syscall(), or by an instruction of its own as liburing does; `mapped` also maps the queue, as each user of a
// ring does. Then reads FILE and waits, so that a sampler sees the ring. Exit code 77: the machine has no io_uring for us.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static long by_instruction(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = 0;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = 0;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#endif
}

int main(int count, char** arguments) {
  char parameters[512] = {0}, byte;  // of io_uring_params, and more
  errno = 5;
  const long ring = strcmp(arguments[1], "syscall") == 0 ? syscall(425, 4, parameters)
                                                         : by_instruction(425, 4, (long)parameters, 0, 0, 0);
  if (ring < 0) return 77;
  if (strcmp(arguments[1], "mapped") == 0 &&
      by_instruction(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring) < 0)
    return 2;
  const int kept = errno;
  const int file = open(arguments[2], O_RDONLY);
  if (count < 3 || read(file, &byte, 1) != 1) return 1;
  close(file);
  usleep(400000);
  printf("%d\n", kept);
  return 0;
}
