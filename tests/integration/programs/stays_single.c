/* A program of one thread that reads much, and then does what only such a program may. SPDX-License-Identifier: Apache-2.0

     stays_single READS

   Prints the most tasks that it saw itself have, and how unshare(CLONE_NEWUSER) ended. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int tasks(void) {
  DIR* folder = opendir("/proc/self/task");
  int found = 0;
  for (struct dirent* entry; (entry = readdir(folder)) != NULL;) found += entry->d_name[0] != '.';
  closedir(folder);
  return found;
}

int main(int count, char** arguments) {
  const int reads = count > 1 ? atoi(arguments[1]) : 1000;
  char bytes[16];
  const int zero = open("/dev/zero", O_RDONLY);
  int most = tasks();
  for (int i = 1; i <= reads; ++i) {
    if (read(zero, bytes, sizeof bytes) != sizeof bytes) return 3;
    if (i % 1000 != 0) continue;
    const int now = tasks();
    if (now > most) most = now;
  }
  errno = 0;
  const int result = unshare(CLONE_NEWUSER);
  printf("tasks %d unshare %d errno %d\n", most, result, errno);
  return 0;
}
