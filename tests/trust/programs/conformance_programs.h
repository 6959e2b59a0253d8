// Calls that start programs, prctl, and what is asked for by number. SPDX-License-Identifier: Apache-2.0
//
// Each call is made in a child, which becomes the program, goes on, or dies of a bad address, as it does without a recorder.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/prctl.h>

extern char** environ;

// A text without an end, in front of a page that cannot be read.
static char* edge(const char* text) {
  char* pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(pages + 4096, 4096, PROT_NONE);
  return memcpy(pages + 4096 - strlen(text), text, strlen(text));
}

// A list without an end in front of such a page, `shift` bytes off its place.
static char** edge_list(char* const* entries, int count, int shift) {
  char* list = edge("") - count * (long)sizeof(char*) - shift;
  return memcpy(list, entries, count * sizeof(char*));
}

// The environment with `last` as its last variable.
static char** environment_and(char* last) {
  static char* variables[300];
  int count = 0;
  for (; count < 298 && environ[count] != NULL; ++count) variables[count] = environ[count];
  variables[count] = last, variables[count + 1] = NULL;
  return variables;
}

struct named { const char* name; long value; };
static struct named kPrograms[16], kLists[8], kEnvironments[12];
static int programs_count, lists_count, environments_count;

static void executable(const char* name, const char* content, int mode) {
  fresh(name, content);
  syscall(SYS_fchmodat, AT_FDCWD, name, mode);
}

static void program_scenery(void) {
  scenery();
  executable("told", "#!/bin/sh\necho \"told $# $1 $NAME\"\n", 0755);
  executable("text", "echo text $1\n", 0755);
  executable("plain", "#!/bin/sh\necho no\n", 0644);
  executable("lost", "#!/no/such/interpreter\n", 0755);
  executable("dir/inside", "#!/bin/sh\necho \"inside $1\"\n", 0755);
  const struct named programs[] = {
      {"echo", P("/bin/echo")}, {"found", P("echo")}, {"told", P("./told")}, {"text", P("./text")}, {"plain", P("./plain")},
      {"lost", P("./lost")}, {"missing", P("missing")}, {"dir", P("./dir")}, {"below a file", P("file/x")}, {"empty", P("")},
      {"long", P(kLong)}, {"BAD", BAD}, {"NULL or BAD", 0}, {"BAD edge", P(edge("/bin/ech"))}, {"BAD edge of PATH", P(edge("ech"))}};
  static char* good[] = {"echo", "one", "two", NULL};
  static char* inner[] = {"echo", (char*)BAD, NULL};
  static char* unended[] = {"echo", NULL, NULL};
  unended[1] = edge("one");
  const struct named lists[] = {{"good", P(good)}, {"none", 0}, {"BAD list", BAD}, {"BAD argument", P(inner)},
                                {"BAD list edge", P(edge_list(good, 3, 0))}, {"BAD argument edge", P(unended)}};
  static char* own[] = {"NAME=value", "PATH=/bin:/usr/bin", NULL};
  static char* bad_entry[] = {"NAME=value", (char*)BAD, NULL};
  static char* cut_entries[4][2];
  static const char* const kCut[] = {"LD_P", "LD_PRELOAD=", "LD_PRELOAD=/x/libstashtrace.so", "NAME=va"};
  for (int i = 0; i < 4; ++i) cut_entries[i][0] = edge(kCut[i]);
  const struct named environments[] = {
      {"its own", P(own)}, {"none", 0}, {"inherited", P(environ)}, {"with one more", P(environment_and("NAME=more"))},
      {"BAD environment", BAD}, {"BAD variable", P(bad_entry)}, {"BAD environment edge", P(edge_list(own, 2, 0))},
      {"BAD environment edge, off", P(edge_list(own, 2, 4))}, {"BAD variable edge 0", P(cut_entries[0])},
      {"BAD variable edge 1", P(cut_entries[1])}, {"BAD variable edge 2", P(cut_entries[2])},
      {"BAD variable edge 3", P(cut_entries[3])}};
  memcpy(kPrograms, programs, sizeof programs), programs_count = sizeof programs / sizeof *programs;
  memcpy(kLists, lists, sizeof lists), lists_count = sizeof lists / sizeof *lists;
  memcpy(kEnvironments, environments, sizeof environments), environments_count = sizeof environments / sizeof *environments;
}

static void become_all_ways(const char* note, long path, long list, long variables) {
  static const char* const kWays[] = {"execve", "execv", "execvpe", "execvp"};
  for (int w = 0; w < 4; ++w) IN_CHILD(CALL(INT, kWays[w], note, path, list, variables));
  IN_CHILD(CALL(INT, "execveat", note, AT_FDCWD, path, list, variables, 0));
}

static void spawn_one(const char* way, const char* note, long pid, long path, long actions, long attributes, long list,
                      long variables) {
  // The child writes at any moment from here on: to a file, which is shown in its place. A file of its own: a child whose
  // parent died of a bad address may still write when the next call is made.
  said_to = (int)syscall(SYS_fcntl, 1, F_DUPFD_CLOEXEC, 60);
  syscall(SYS_unlinkat, AT_FDCWD, "output", 0);
  const int output = bare_open("output", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
  syscall(SYS_dup3, output, 1, 0);
  const long got = CALL(INT, way, note, pid, path, actions, attributes, list, variables);
  if (got != 0) return;
  int status = 0;
  char text[200] = "";
  const long child = syscall(SYS_wait4, -1, &status, 0, NULL);
  syscall(SYS_pread64, output, text, sizeof text - 1, 0);
  say("  %s ended with %#x and said %s\n", child > 0 ? "a child" : "no child", status, text);
}

static void spawn_both_ways(const char* note, long path, long list, long variables) {
  pid_t child;
  IN_CHILD(spawn_one("posix_spawn", note, P(&child), path, 0, 0, list, variables));
  IN_CHILD(spawn_one("posix_spawnp", note, P(&child), path, 0, 0, list, variables));
}

static void spawn_elsewhere(void) {
  static const char* const kFolders[] = {"dir", "dir/../dir", "missing", "", "file"};
  static const char* const kTargets[] = {"./inside", "inside", "../told", "./told", "/bin/echo", "echo"};
  char note[160];
  char* arguments[] = {"echo", "argument", NULL};
  pid_t child;
  for (int f = 0; f < 6; ++f)
    for (int t = 0; t < 6; ++t) {
      posix_spawn_file_actions_t actions;
      posix_spawn_file_actions_init(&actions);
      posix_spawn_file_actions_adddup2(&actions, 1, 30);
      const int folder = bare_open("dir", O_RDONLY | O_DIRECTORY);
      snprintf(note, sizeof note, "%s in %s", kTargets[t], f < 5 ? kFolders[f] : "a descriptor");
      if (f < 5) CALL(INT, "posix_spawn_file_actions_addchdir_np", note, P(&actions), P(kFolders[f]));
      else CALL(INT, "posix_spawn_file_actions_addfchdir_np", note, P(&actions), folder);
      IN_CHILD(spawn_one("posix_spawn", note, P(&child), P(kTargets[t]), P(&actions), 0, P(arguments), P(environ)));
      IN_CHILD(spawn_one("posix_spawnp", note, P(&child), P(kTargets[t]), P(&actions), 0, P(arguments), P(environ)));
      posix_spawn_file_actions_destroy(&actions);
      bare_close(folder);
    }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, 999, 1);
  IN_CHILD(spawn_one("posix_spawn", "of a closed number", P(&child), P("./told"), P(&actions), 0, P(arguments), P(environ)));
  IN_CHILD(CALL(INT, "posix_spawn_file_actions_addchdir_np", "BAD folder", P(&actions), BAD));
  IN_CHILD(CALL(INT, "posix_spawn_file_actions_addchdir_np", "BAD actions", BAD, P("dir")));
  IN_CHILD(CALL(INT, "posix_spawn_file_actions_addfchdir_np", "BAD actions", BAD, 0));
  CALL(INT, "posix_spawn_file_actions_addfchdir_np", "no descriptor", P(&actions), -1);
  const struct named bad[] = {{"BAD pid", BAD}, {"BAD actions", BAD}, {"BAD attributes", BAD}};
  for (int c = 0; c < 3; ++c)
    IN_CHILD(spawn_one("posix_spawn", bad[c].name, c == 0 ? BAD : P(&child), P("./told"), c == 1 ? BAD : 0, c == 2 ? BAD : 0,
                       P(arguments), P(environ)));
  // As a program built against another header may have left them.
  posix_spawn_file_actions_t odd;
  memset(&odd, 0xff, sizeof odd);
  IN_CHILD(spawn_one("posix_spawn", "BAD actions inside", P(&child), P("told"), P(&odd), 0, P(arguments), P(environ)));
}

static void programs(void) {
  char note[160];
  program_scenery();
  setenv("NAME", "inherited", 1);
  for (int p = 0; p < programs_count; ++p) {
    snprintf(note, sizeof note, "program %s", kPrograms[p].name);
    const long path = kPrograms[p].value;
    become_all_ways(note, path, kLists[0].value, P(environ));
    spawn_both_ways(note, path, kLists[0].value, P(environ));
    IN_CHILD(CALL(INT, "execl", note, path, P("echo"), P("one"), P("two"), 0));
    IN_CHILD(CALL(INT, "execlp", note, path, P("echo"), P("one"), P("two"), 0));
    IN_CHILD(CALL(INT, "execle", note, path, P("echo"), P("one"), 0, kEnvironments[p % 4].value));
    const int file = p == 11 ? -1 : p == 12 ? kClosed : path == 0 ? -1 : bare_open((const char*)path, O_RDONLY);
    if (p < 13) IN_CHILD(CALL(INT, "fexecve", note, file, kLists[0].value, P(environ)));
    if (p < 13) IN_CHILD(CALL(INT, "execveat", "of a descriptor", file, P(""), kLists[0].value, P(environ), AT_EMPTY_PATH));
    bare_close(file);
  }
  for (int l = 0; l < lists_count; ++l)
    for (int e = 0; e < environments_count; ++e) {
      if (l > 0 && e > 2) continue;
      snprintf(note, sizeof note, "list %s, %s", kLists[l].name, kEnvironments[e].name);
      become_all_ways(note, P("./told"), kLists[l].value, kEnvironments[e].value);
      spawn_both_ways(note, P("./told"), kLists[l].value, kEnvironments[e].value);
      const int file = bare_open("/bin/echo", O_RDONLY);
      IN_CHILD(CALL(INT, "fexecve", note, file, kLists[l].value, kEnvironments[e].value));
      bare_close(file);
      IN_CHILD(CALL(INT, "execle", note, P("./told"), P("echo"), l > 2 ? BAD : P("one"), 0, kEnvironments[e].value));
      IN_CHILD(CALL(INT, "execl", note, P("./told"), l > 2 ? BAD : P("echo"), 0));
      IN_CHILD(CALL(INT, "execlp", note, P("told"), l > 2 ? BAD : 0, 0));
    }
  for (int code = 0; code < 300; code += 127) {
    const pid_t child = fork();
    if (child == 0) _exit(code);
    int status = 0;
    waitpid(child, &status, 0);
    say("_exit(%d) = %d\n", code, WEXITSTATUS(status));
  }
  const int dir = bare_open("dir", O_RDONLY | O_DIRECTORY), file = bare_open("told", O_RDONLY);
  const struct named from[] = {{"dir", dir}, {"file", file}, {"closed", kClosed}, {"negative", -1}};
  for (int d = 0; d < 4; ++d)
    for (int p = 0; p < 5; ++p) {
      static const char* const kBelow[] = {"inside", "../told", "/bin/echo", "", NULL};
      static const int kHow[] = {0, AT_SYMLINK_NOFOLLOW, 0x7777, AT_EMPTY_PATH, 0};
      snprintf(note, sizeof note, "%s below %s", kBelow[p] ? kBelow[p] : "BAD", from[d].name);
      IN_CHILD(CALL(INT, "execveat", note, from[d].value, kBelow[p] ? P(kBelow[p]) : BAD, kLists[0].value, P(environ), kHow[p]));
    }
  bare_close(dir), bare_close(file);
  spawn_elsewhere();
}

static void sandboxes(void) {
  static struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  static struct sock_filter nonsense[] = {{0xffff, 0, 0, 0}};
  struct sock_fprog good = {1, allow}, none = {0, allow}, refused = {1, nonsense}, bad = {1, (struct sock_filter*)BAD};
  char cut[sizeof good];
  memset(cut, 1, sizeof cut);
  const struct named filters[] = {{"good", P(&good)}, {"none", 0}, {"BAD filter", BAD}, {"empty", P(&none)},
                                  {"nonsense", P(&refused)}, {"BAD inside", P(&bad)}, {"BAD filter edge", P(edge(cut) + 8)}};
  for (int f = 0; f < 7; ++f)
    for (int allowed = 0; allowed < 2; ++allowed) {
      const char* note = filters[f].name;
      IN_CHILD({
        if (allowed) CALL(INT, "prctl", "PR_SET_NO_NEW_PRIVS", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        CALL(INT, "prctl", note, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters[f].value, 0, 0);
        CALL(LONG, "syscall", note, SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters[f].value, 0, 0);
        CALL(LONG, "syscall", note, SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filters[f].value);
        CALL(LONG, "syscall", note, SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0x7777, filters[f].value);
        CALL(INT, "open", "afterwards", P("file"), O_RDONLY, 0);
      });
    }
  IN_CHILD({
    CALL(INT, "prctl", "a mode that does not exist", PR_SET_SECCOMP, 77, 0, 0, 0);
    CALL(INT, "prctl", "an option that does not exist", 99999, BAD, BAD, BAD, BAD);
    CALL(INT, "prctl", "name BAD", PR_SET_NAME, BAD, 0, 0, 0);
    CALL(INT, "prctl", "get name BAD", PR_GET_NAME, BAD, 0, 0, 0);
    CALL(INT, "prctl", "no new privileges, refused", PR_SET_NO_NEW_PRIVS, 2, 0, 0, 0);
    CALL(INT, "prctl", "time stamps BAD", PR_GET_TSC, BAD, 0, 0, 0);
    CALL(INT, "prctl", "time stamps, refused", PR_SET_TSC, 99, 0, 0, 0);
    CALL(INT, "prctl", "death signal", PR_SET_PDEATHSIG, 9999, 0, 0, 0);
    CALL(INT, "prctl", "seccomp mode", PR_GET_SECCOMP, 0, 0, 0, 0);
    CALL(LONG, "syscall", "seccomp, no such operation", SYS_seccomp, 99, 0, 0);
    CALL(LONG, "syscall", "seccomp, action BAD", SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, BAD);
    CALL(LONG, "syscall", "seccomp strict with flags", SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, 0);
    CALL(LONG, "syscall", "a negative number", -1, BAD, BAD, BAD);
    CALL(LONG, "syscall", "futex BAD", SYS_futex, BAD, 0, 0, 0, 0, 0);
    CALL(LONG, "syscall", "exec BAD", SYS_execve, BAD, BAD, BAD);
    CALL(LONG, "syscall", "exec with a BAD list", SYS_execve, P("./told"), BAD, BAD);
    CALL(LONG, "syscall", "signal mask BAD", SYS_rt_sigprocmask, SIG_SETMASK, BAD, 0, 8);
    CALL(LONG, "syscall", "an address of a range BAD", SYS_mprotect, BAD, 4096, 0);
  });
  IN_CHILD({
    CALL(INT, "prctl", "strict", PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    say("  still here\n");
  });  // its end is refused: killed
  IN_CHILD({
    CALL(INT, "prctl", "time stamps forbidden", PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    CALL(LONG, "syscall", "afterwards", SYS_getuid == 0 ? -1 : -1, 0, 0);
  });
  IN_CHILD(CALL(LONG, "syscall", "exec", SYS_execve, P("./told"), kLists[0].value, P(environ)));
}
