// A daemon whose data file has descriptor 2: its child cannot reach the run directory. SPDX-License-Identifier: Apache-2.0
//
//   reused_stderr DATA RUN
//
// Moves RUN away when it has recorded, so that the recorder of the child has something to report.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void record_rows(void) {
  char bytes[8];
  const int zero = open("/dev/zero", O_RDONLY);
  for (int i = 0; i < 100; ++i) pread(zero, bytes, sizeof bytes, 0);
  close(zero);
}

int main(int count, char** arguments) {
  char moved[4096];
  if (count < 3) return 1;
  record_rows();
  snprintf(moved, sizeof moved, "%s.moved", arguments[2]);
  if (rename(arguments[2], moved) != 0) return 2;
  close(2);
  if (open(arguments[1], O_RDWR) != 2) return 3;
  if (fork() == 0) {
    record_rows();
    _exit(0);
  }
  int status = 0;
  wait(&status);
  return status;
}
