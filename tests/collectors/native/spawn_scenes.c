// Starts argv[2] in the way that argv[1] names, and ends as it did. SPDX-License-Identifier: Apache-2.0
//
// "chdir spawn", "chdir spawnp" and "fchdir spawn" start it by its bare name from its folder, which file actions choose; "path spawnp",
// "path execvp" and "chdir path" look for the name along PATH. "actions spawn" has file actions that leave the folder alone.
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
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

static int through_pipe(const char* path) {
  char line[4096];
  FILE* from = popen(path, "r");
  while (fgets(line, sizeof line, from) != NULL) fputs(line, stdout);
  return pclose(from);
}

static pid_t spawn(const char* way, char* path) {
  char *folder = dirname(strdup(path)), *name = basename(strdup(path)), *relative = NULL;
  char* arguments[] = {path, "argument", NULL};
  pid_t child = 0;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  asprintf(&relative, "./%s", name);
  if (strncmp(way, "chdir", 5) == 0) posix_spawn_file_actions_addchdir_np(&actions, folder);
  if (strncmp(way, "fchdir", 6) == 0) posix_spawn_file_actions_addfchdir_np(&actions, open(folder, O_RDONLY | O_DIRECTORY));
  if (strncmp(way, "actions", 7) == 0) posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // What cannot be executed, and is not a program, does not end the search.
  if (strncmp(way, "path", 4) == 0) asprintf(&folder, "/proc:/no such folder:%s", folder), setenv("PATH", folder, 1);
  if (strcmp(way, "chdir path") == 0) setenv("PATH", "/no such folder::/bin", 1);
  if (strcmp(way, "path execvp") == 0) {
    child = fork();
    if (child == 0) execvp(name, arguments), _exit(98);
  } else if (strstr(way, "path") != NULL) {
    if (posix_spawnp(&child, name, &actions, NULL, arguments, environ) != 0) return -1;
  } else if (strstr(way, "spawnp") != NULL) {
    if (posix_spawnp(&child, relative, &actions, NULL, arguments, environ) != 0) return -1;
  } else {
    if (posix_spawn(&child, strcmp(way, "actions spawn") == 0 ? relative : name, &actions, NULL, arguments, environ) != 0) return -1;
  }
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

int main(int argc, char** argv) {
  char* arguments[] = {argv[2], "argument", NULL};
  int status = 0;
  pid_t child = 0;
  if (strcmp(argv[1], "system") == 0) status = system(argv[2]);
  else if (strcmp(argv[1], "popen") == 0) status = through_pipe(argv[2]);
  else if (strchr(argv[1], ' ') != NULL) child = spawn(argv[1], argv[2]);
  else if (strcmp(argv[1], "posix_spawn") == 0) posix_spawn(&child, argv[2], NULL, NULL, arguments, environ);
  else if (strcmp(argv[1], "posix_spawnp") == 0) posix_spawnp(&child, argv[2], NULL, NULL, arguments, environ);
  else {
    child = strcmp(argv[1], "vfork") == 0 ? vfork() : fork();
    if (child == 0) execute(argv[1], argv[2]);
  }
  if (child < 0) return 97;
  if (child > 0) waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
