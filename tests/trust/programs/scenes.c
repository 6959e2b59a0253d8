// Programs that are hard on a recorder, each with a verdict of its own. SPDX-License-Identifier: Apache-2.0
//
//   scenes NAME ROUNDS
//
// Prints what it found; the same must be found, with the same exit code, whether or not something records it. Scenes
// that print "ready" wait for a line on stdin, so that a test can do something to them in between.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;
static int rounds;
static char** words;

static void require(int good, const char* what) {
  if (good) return;
  printf("failed: %s, errno %d (%s)\n", what, errno, strerror(errno));
  fflush(stdout);
  _exit(9);
}

// I/O that a recorder sees; what is read is checked.
static void busy(int calls) {
  char bytes[16];
  const int fd = open("/dev/zero", O_RDONLY);
  require(fd >= 0, "open /dev/zero");
  for (int i = 0; i < calls; ++i) {
    memset(bytes, 1, sizeof bytes);
    require(read(fd, bytes, sizeof bytes) == sizeof bytes && bytes[15] == 0, "read of zeros");
  }
  require(close(fd) == 0, "close");
}
static void* busy_thread(void* calls) {
  busy((int)(intptr_t)calls);
  return NULL;
}

static void until_told(void) {
  char line[16];
  busy(rounds);
  printf("ready\n");
  fflush(stdout);
  require(fgets(line, sizeof line, stdin) != NULL, "a line on stdin");
  busy(rounds);
  for (int i = 0; i < 4; ++i) {
    pthread_t thread;
    require(pthread_create(&thread, NULL, busy_thread, (void*)(intptr_t)rounds) == 0, "thread");
    pthread_join(thread, NULL);
  }
  const pid_t child = fork();
  if (child == 0) busy(1000), _exit(0);
  int status;
  require(waitpid(child, &status, 0) == child && status == 0, "child");
  printf("went on\n");
}

// Eight numbers, from the lowest that somebody else opened; where there is none, those that a recorder may take next.
static int strangers[8], strangers_count;
static void find_strangers(void) {
  DIR* list = opendir("/proc/self/fd");
  struct dirent* entry;
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const int high = limit.rlim_cur > 2048 ? 1536 : (int)limit.rlim_cur - 32;
  int lowest = high;
  while (list != NULL && (entry = readdir(list)) != NULL)
    if (atoi(entry->d_name) > 100 && (lowest == high || atoi(entry->d_name) < lowest)) lowest = atoi(entry->d_name);
  if (list != NULL) closedir(list);
  for (strangers_count = 0; strangers_count < 8; ++strangers_count) strangers[strangers_count] = lowest + strangers_count;
}

#define PRECIOUS_BYTES (8 << 20)
static int precious;
static void make_precious(void) {
  char* bytes = malloc(PRECIOUS_BYTES);
  memset(bytes, 0x55, PRECIOUS_BYTES);
  precious = open("precious", O_RDWR | O_CREAT | O_TRUNC, 0600);
  require(write(precious, bytes, PRECIOUS_BYTES) == PRECIOUS_BYTES, "write of the precious file");
  free(bytes);
  busy(20000);
  find_strangers();
}
static void check_precious(void) {
  struct stat facts;
  unsigned char* bytes = malloc(PRECIOUS_BYTES);
  require(fstat(precious, &facts) == 0 && facts.st_size == PRECIOUS_BYTES, "the precious file has its size");
  require(pread(precious, bytes, PRECIOUS_BYTES, 0) == PRECIOUS_BYTES, "the precious file can be read");
  long changed = 0;
  for (long i = 0; i < PRECIOUS_BYTES; ++i) changed += bytes[i] != 0x55;
  printf("%ld bytes changed\n", changed);
  require(changed == 0, "nobody wrote into the precious file");
}
static void take_over(void) {
  for (int i = 0; i < strangers_count; ++i) dup2(precious, strangers[i]);
  for (int i = 0; i < strangers_count; ++i) close(strangers[i]);
}
static volatile int over;
static void* takes_over(void* unused) {
  while (!over) take_over();
  return NULL;
}
static void dup2_thread(void) {
  make_precious();
  pthread_t thief, readers[8];
  pthread_create(&thief, NULL, takes_over, NULL);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < 8; ++i) pthread_create(&readers[i], NULL, busy_thread, (void*)20000);
    for (int i = 0; i < 8; ++i) pthread_join(readers[i], NULL);
  }
  over = 1;
  pthread_join(thief, NULL);
  check_precious();
}
static void handle_dup2(int number) { take_over(); }
static void dup2_handler(void) {
  make_precious();
  signal(SIGALRM, handle_dup2);
  const struct itimerval timer = {{0, 200}, {0, 200}};
  setitimer(ITIMER_REAL, &timer, NULL);
  for (int round = 0; round < rounds; ++round) {
    pthread_t readers[4];
    for (int i = 0; i < 4; ++i) pthread_create(&readers[i], NULL, busy_thread, (void*)20000);
    for (int i = 0; i < 4; ++i) pthread_join(readers[i], NULL);
  }
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  check_precious();
}
static void dup2_vfork(void) {
  make_precious();
  for (int round = 0; round < rounds; ++round) {
    const pid_t child = vfork();
    if (child == 0) {
      for (int i = 0; i < strangers_count; ++i) dup2(precious, strangers[i]);
      busy(30000);
      _exit(0);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0, "vfork child");
  }
  check_precious();
}

// Another process with this one's table of descriptors stops each of its threads in front of every call that uses a
// number, and puts the precious file there first: what a race hits now and then, hit each time. The program's own
// numbers are left alone; it makes none of these calls itself meanwhile but reads of a file that is known.
static void take_over_each(pid_t subject, int known) {
  static char list[4096], path[64];
  const int options = PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD;
  snprintf(path, sizeof path, "/proc/%d/task", subject);
  const int folder = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
  const long bytes = syscall(SYS_getdents64, folder, list, sizeof list);
  syscall(SYS_close, folder);
  for (long at = 0; at < bytes; at += *(unsigned short*)(list + at + 16)) {
    const int thread = atoi(list + at + 19);
    if (thread == 0) continue;
    if (syscall(SYS_ptrace, PTRACE_SEIZE, thread, 0, options) != 0) syscall(SYS_exit_group, 1);
    syscall(SYS_ptrace, PTRACE_INTERRUPT, thread, 0, 0);
  }
  for (;;) {
    int status;
    const long thread = syscall(SYS_wait4, -1, &status, __WALL, NULL);
    if (thread < 0) syscall(SYS_exit_group, 0);  // all have ended
    if (!WIFSTOPPED(status)) continue;
    int forward = 0;
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      struct __ptrace_syscall_info call;
      syscall(SYS_ptrace, PTRACE_GET_SYSCALL_INFO, thread, sizeof call, &call);
      if (call.op == PTRACE_SYSCALL_INFO_ENTRY) {
        const long number = (long)call.entry.nr;
        const int uses = number == SYS_write || number == SYS_pwrite64 || number == SYS_writev ||
                         number == SYS_pwritev || number == SYS_ftruncate || number == SYS_fallocate;
        const int fd = number == SYS_mmap ? (int)call.entry.args[4] : uses ? (int)call.entry.args[0] : -1;
        if (fd > 2 && fd != precious && fd != known) syscall(SYS_dup2, precious, fd);
      }
    } else if (status >> 16 == 0) {
      forward = WSTOPSIG(status);
    }
    syscall(SYS_ptrace, PTRACE_SYSCALL, thread, 0, forward);
  }
}
static void* read_known(void* known) {
  char bytes[16];
  for (int i = 0; i < 300; ++i) require(read((int)(intptr_t)known, bytes, 16) == 16, "read of zeros");
  return NULL;
}
static void dup2_each_call(void) {
  make_precious();
  const int zero = open("/dev/zero", O_RDONLY);
  const pid_t subject = getpid();
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  // The other process shares the table, and ends when this one does.
  const long tracer = syscall(SYS_clone, CLONE_FILES, 0, 0, 0, 0);
  if (tracer == 0) take_over_each(subject, zero);
  char status[4096];
  do {  // until each thread is stopped at its calls
    sched_yield();
    const long file = syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY);
    status[syscall(SYS_read, file, status, sizeof status - 1)] = 0;
    syscall(SYS_close, file);
    if (syscall(SYS_wait4, tracer, NULL, WNOHANG | __WALL, NULL) == tracer) _exit(77);  // it may not trace here
  } while (strstr(status, "TracerPid:\t0\n") != NULL);
  for (int round = 0; round < rounds; ++round) {
    pthread_t readers[8];
    for (int i = 0; i < 8; ++i) pthread_create(&readers[i], NULL, read_known, (void*)(intptr_t)zero);
    for (int i = 0; i < 8; ++i) pthread_join(readers[i], NULL);
  }
  check_precious();
}

static void close_all(void) {
  for (int round = 0; round < rounds; ++round) {
    pthread_t reader;
    busy(5000);
    if (round % 3 == 0) closefrom(3);
    else if (round % 3 == 1) close_range(3, ~0u, 0);
    else for (int i = 3; i < 4096; ++i) close(i);
    const int lowest = open("/dev/null", O_RDONLY);
    require(lowest == 3, "the lowest number is 3 again");
    close(lowest);
    pthread_create(&reader, NULL, busy_thread, (void*)5000);
    pthread_join(reader, NULL);
  }
  printf("closed\n");
}

static void lowest_number(void) {
  busy(20000);
  long others = 0;
  for (int i = 0; i < rounds; ++i) {
    const int fd = open("/dev/null", O_RDONLY);
    others += fd != 3;
    close(fd);
  }
  printf("%s\n", others > 0 ? "another number than the lowest" : "always the lowest number");
}

static void forks(void) {
  for (int round = 0; round < rounds; ++round) {
    pid_t children[8];
    for (int i = 0; i < 8; ++i) {
      children[i] = i % 2 ? fork() : (pid_t)syscall(SYS_fork);
      require(children[i] >= 0, "fork");
      if (children[i] == 0) {
        busy(500);
        if (i == 3 && fork() == 0) busy(100), _exit(0);
        _exit(i);
      }
    }
    for (int i = 0; i < 8; ++i) {
      int status;
      require(waitpid(children[i], &status, 0) == children[i] && WEXITSTATUS(status) == i, "forked child");
    }
  }
  require(waitpid(-1, NULL, 0) == -1 && errno == ECHILD, "no other child");
  printf("forked\n");
}

static void vforks(void) {
  char* arguments[] = {"true", NULL};
  for (int round = 0; round < rounds; ++round) {
    pid_t child = vfork();
    if (child == 0) busy(300), execv("/bin/true", arguments), _exit(1);
    int status;
    require(waitpid(child, &status, 0) == child && status == 0, "vfork and exec");
    require(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0, "spawn");
    require(waitpid(-1, &status, 0) == child && status == 0, "spawned child");
    FILE* pipe = popen("echo piped", "r");
    char line[16] = "";
    require(pipe != NULL && fgets(line, 16, pipe) != NULL && strcmp(line, "piped\n") == 0, "popen");
    require(pclose(pipe) == 0 && system("exit 3") == 3 << 8, "pclose and system");
  }
  printf("spawned\n");
}

static int cloned(void* calls) {
  busy((int)(intptr_t)calls);
  return 0;
}
static void clones(int flags) {
  busy(100);
  for (int round = 0; round < rounds; ++round) {
    char* stack = mmap(NULL, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const pid_t child = clone(cloned, stack + (1 << 18), flags | SIGCHLD, (void*)(intptr_t)30000);
    int status;
    require(child > 0 && waitpid(child, &status, 0) == child && status == 0, "cloned child");
    munmap(stack, 1 << 18);
  }
  printf("cloned\n");
}
static void clone_plain(void) { clones(0); }
static void clone_files(void) { clones(CLONE_FILES | CLONE_FS); }
static void clone_vm(void) { clones(CLONE_VM); }
static void clone_vm_vfork(void) { clones(CLONE_VM | CLONE_VFORK); }

static void other_user(void) {
  busy(rounds);
  require(setgid(65534) == 0 && setuid(65534) == 0, "become nobody");
  busy(rounds);
  pthread_t thread;
  pthread_create(&thread, NULL, busy_thread, (void*)(intptr_t)rounds);
  pthread_join(thread, NULL);
  char* arguments[] = {"true", NULL};
  pid_t child;
  int status;
  require(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0, "spawn");
  require(waitpid(child, &status, 0) == child && status == 0, "child of nobody");
  printf("nobody\n");
}
static void other_root(void) {
  busy(rounds);
  const int zero = open("/dev/zero", O_RDONLY);
  mkdir("cell", 0755);
  require(chroot("cell") == 0 && chdir("/") == 0, "chroot");
  char bytes[16];
  for (int i = 0; i < rounds; ++i) require(read(zero, bytes, 16) == 16, "read within");
  const int made = open("/made", O_WRONLY | O_CREAT, 0600);
  require(made >= 0 && write(made, "x", 1) == 1 && close(made) == 0, "a file within");
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < rounds; ++i) require(read(zero, bytes, 16) == 16, "read in a child");
    _exit(0);
  }
  int status;
  require(waitpid(child, &status, 0) == child && status == 0, "child within");
  int entries = 0;
  DIR* list = opendir("/");
  while (readdir(list) != NULL) ++entries;
  closedir(list);
  printf("%d entries\n", entries);
}
static void namespace_after_work(void) {
  busy(rounds);
  require(unshare(CLONE_NEWUSER) == 0, "unshare(CLONE_NEWUSER)");
  busy(rounds);
  printf("unshared\n");
}

static void few_files(void) {
  const struct rlimit few = {20, 20};
  require(setrlimit(RLIMIT_NOFILE, &few) == 0, "limit");
  for (int round = 0; round < rounds; ++round) {
    int opened = 0, all[32];
    while ((all[opened] = open("/dev/null", O_RDONLY)) >= 0) ++opened;
    require(errno == EMFILE, "too many files");
    if (round == 0) printf("%d files\n", opened);
    while (opened > 0) close(all[--opened]);
    busy(2000);
  }
}
static void few_files_from_the_start(void) {
  if (rounds > 0) {
    const struct rlimit few = {20, 20};
    require(setrlimit(RLIMIT_NOFILE, &few) == 0, "limit");
    char* again[] = {words[0], words[1], "0", NULL};
    execv("/proc/self/exe", again);
  }
  rounds = 3;
  few_files();
}
static void little_memory(void) {
  busy(100);
  const struct rlimit little = {96 << 20, 96 << 20};
  require(setrlimit(RLIMIT_AS, &little) == 0, "limit");
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 1 << 16);
  for (int i = 0; i < rounds; ++i) {
    pthread_t thread;
    require(pthread_create(&thread, &small, busy_thread, (void*)3000) == 0, "thread");
    pthread_join(thread, NULL);
  }
  require(malloc(1 << 30) == NULL && errno == ENOMEM, "no gigabyte");
  busy(50000);
  printf("little\n");
}
static void small_files(void) {
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit size = {4096, 4096};
  require(setrlimit(RLIMIT_FSIZE, &size) == 0, "limit");
  const int fd = open("small", O_RDWR | O_CREAT, 0600);
  char bytes[3000] = {0};
  const long first = write(fd, bytes, 3000), second = write(fd, bytes, 3000), third = write(fd, bytes, 3000);
  printf("%ld %ld %ld %s\n", first, second, third, strerror(errno));
  busy(rounds);
}

static sigjmp_buf back;
static volatile long jumps;
static void jump(int number) {
  ++jumps;
  siglongjmp(back, 1);
}
static void jumps_from_handlers(void) {
  signal(SIGALRM, jump);
  const struct itimerval timer = {{0, 100}, {0, 100}};
  char bytes[16];
  const int fd = open("/dev/zero", O_RDONLY);
  sigsetjmp(back, 1);
  if (jumps < rounds) {
    setitimer(ITIMER_REAL, &timer, NULL);
    for (;;) require(read(fd, bytes, 16) == 16, "read between jumps");
  }
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  signal(SIGALRM, SIG_IGN);
  busy(30000);
  const pid_t child = fork();
  if (child == 0) busy(100), _exit(0);
  int status;
  require(waitpid(child, &status, 0) == child && status == 0, "child after jumps");
  printf("jumped\n");
}

static volatile long handled;
static void handle_with_io(int number) {
  const int keep = errno;
  char byte;
  const int fd = open("/dev/zero", O_RDONLY);
  if (fd < 0 || read(fd, &byte, 1) != 1 || close(fd) != 0) _exit(8);
  ++handled;
  errno = keep;
}
// Two signals that interrupt each other's handler, but not their own: no more than two frames on the stack, however slow
// the machine is. Two take 9.2 KiB of it while the loader binds the first call; a third would not be sure to fit.
static void small_signal_stack(void) {
  static char memory[12288];
  const stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
  sigaltstack(&stack, NULL);
  struct sigaction action = {.sa_handler = handle_with_io, .sa_flags = SA_ONSTACK | SA_RESTART};
  const struct itimerval timer = {{0, 500}, {0, 500}};
  sigaction(SIGALRM, &action, NULL);
  sigaction(SIGPROF, &action, NULL);
  setitimer(ITIMER_REAL, &timer, NULL);
  setitimer(ITIMER_PROF, &timer, NULL);
  while (handled < rounds) busy(100);
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
  printf("handled\n");
}

static void execs(void) {
  busy(200);
  if (rounds > 0) {
    char number[16];
    snprintf(number, sizeof number, "%d", rounds - 1);
    char* again[] = {words[0], words[1], number, NULL};
    execv("/proc/self/exe", again);
    require(0, "exec");
  }
  printf("the same process: %d\n", getpid() > 0);
}

static void bare_calls(void) {
  char bytes[16];
  for (int round = 0; round < rounds; ++round) {
    busy(1000);
    const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
      const long fd = syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY, 0);
      for (int i = 0; i < 1000; ++i) syscall(SYS_read, fd, bytes, 16);
      busy(500);
      syscall(SYS_exit_group, 7);
    }
    int status;
    require(syscall(SYS_wait4, child, &status, 0, NULL) == child && status == 7 << 8, "bare child");
    for (int i = 100; i < 2048; ++i) syscall(SYS_close, i);
    pthread_t thread;
    pthread_create(&thread, NULL, busy_thread, (void*)2000);
    pthread_join(thread, NULL);
  }
  printf("bare\n");
}

static void another_title(void) {
  busy(rounds);
  char* end = words[0];
  for (int i = 0; words[i] != NULL; ++i) end = words[i] + strlen(words[i]);
  for (char** variable = environ; *variable != NULL; ++variable) {
    char* last = *variable + strlen(*variable);
    if (last > end && last < end + 65536) end = last;
    *variable = strdup(*variable);
  }
  memset(words[0], 0, (size_t)(end - words[0]));
  strncpy(words[0], "another title", 14);
  prctl(PR_SET_NAME, "other");
  busy(rounds);
  const pid_t child = fork();
  if (child == 0) busy(500), _exit(0);
  int status;
  require(waitpid(child, &status, 0) == child && status == 0, "child");
  clearenv();
  pid_t spawned;
  char* arguments[] = {"true", NULL};
  require(posix_spawn(&spawned, "/bin/true", NULL, NULL, arguments, environ) == 0, "spawn");
  require(waitpid(spawned, &status, 0) == spawned && status == 0, "child without environment");
  char text[64] = "";
  const int fd = open("/proc/self/cmdline", O_RDONLY);
  read(fd, text, sizeof text - 1);
  printf("%s\n", text);
}

static void* ends_somehow(void* how) {
  busy(200);
  if ((intptr_t)how % 3 == 0) pthread_exit(NULL);
  if ((intptr_t)how % 3 == 1) pthread_cancel(pthread_self()), pthread_testcancel();
  return how;
}
static void many_threads(void) {
  for (int round = 0; round < rounds; ++round) {
    pthread_t threads[16];
    for (intptr_t i = 0; i < 16; ++i) require(pthread_create(&threads[i], NULL, ends_somehow, (void*)i) == 0, "thread");
    for (intptr_t i = 0; i < 16; ++i) {
      void* result;
      require(pthread_join(threads[i], &result) == 0, "join");
      require(result == (i % 3 == 0 ? NULL : i % 3 == 1 ? PTHREAD_CANCELED : (void*)i), "result of a thread");
    }
  }
  printf("joined\n");
}
static void ends_while_threads_work(void) {
  for (int round = 0; round < rounds; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      pthread_t thread;
      for (int i = 0; i < 4; ++i) pthread_create(&thread, NULL, busy_thread, (void*)100000000);
      busy(1000 * round);
      exit(round % 2 ? 5 : 0);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == (round % 2 ? 5 << 8 : 0), "exit beside working threads");
  }
  printf("ended\n");
}

int main(int count, char** arguments) {
  static const struct { const char* name; void (*run)(void); } kScenes[] = {
      {"until_told", until_told}, {"dup2_thread", dup2_thread}, {"dup2_handler", dup2_handler},
      {"dup2_vfork", dup2_vfork}, {"dup2_each_call", dup2_each_call}, {"close_all", close_all}, {"lowest_number", lowest_number}, {"forks", forks},
      {"vforks", vforks}, {"clone_plain", clone_plain}, {"clone_files", clone_files}, {"clone_vm", clone_vm},
      {"clone_vm_vfork", clone_vm_vfork}, {"other_user", other_user}, {"other_root", other_root},
      {"namespace_after_work", namespace_after_work}, {"few_files", few_files},
      {"few_files_from_the_start", few_files_from_the_start}, {"little_memory", little_memory},
      {"small_files", small_files}, {"jumps_from_handlers", jumps_from_handlers},
      {"small_signal_stack", small_signal_stack}, {"execs", execs}, {"bare_calls", bare_calls},
      {"another_title", another_title}, {"many_threads", many_threads},
      {"ends_while_threads_work", ends_while_threads_work}};
  if (count != 3) return 2;
  words = arguments;
  rounds = atoi(arguments[2]);
  for (size_t i = 0; i < sizeof kScenes / sizeof *kScenes; ++i)
    if (strcmp(kScenes[i].name, arguments[1]) == 0) {
      kScenes[i].run();
      return fflush(stdout) == 0 ? 0 : 1;
    }
  return 2;
}
