// Starts argv[2] in the way that argv[1] names, and ends as it did. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

static void execute(const char* way, char* path) {
  char* arguments[] = {path, "argument", NULL};
  if (strcmp(way, "execl") == 0) execl(path, path, "argument", (char*)NULL);
  if (strcmp(way, "execle") == 0) execle(path, path, "argument", (char*)NULL, environ);
  if (strcmp(way, "execlp") == 0) execlp(path, path, "argument", (char*)NULL);
  if (strcmp(way, "execv") == 0) execv(path, arguments);
  if (strcmp(way, "execvp") == 0) execvp(path, arguments);
  if (strcmp(way, "execvpe") == 0) execvpe(path, arguments, environ);
  if (strcmp(way, "fexecve") == 0) fexecve(open(path, O_RDONLY | O_CLOEXEC), arguments, environ);
  if (strcmp(way, "execveat") == 0) execveat(AT_FDCWD, path, arguments, environ, 0);
  execve(path, arguments, environ);
  _exit(99);
}

int main(int argc, char** argv) {
  char* arguments[] = {argv[2], "argument", NULL};
  int status = 0;
  pid_t child = 0;
  if (strcmp(argv[1], "system") == 0) status = system(argv[2]);
  else if (strcmp(argv[1], "posix_spawn") == 0) posix_spawn(&child, argv[2], NULL, NULL, arguments, environ);
  else if (strcmp(argv[1], "posix_spawnp") == 0) posix_spawnp(&child, argv[2], NULL, NULL, arguments, environ);
  else {
    child = strcmp(argv[1], "vfork") == 0 ? vfork() : fork();
    if (child == 0) execute(argv[1], argv[2]);
  }
  if (child > 0) waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
