// How much stack each hooked function takes. SPDX-License-Identifier: Apache-2.0
//
//   stack FOLDER
//   stack FOLDER signal
//
// The second form opens and looks at files in a handler on a signal stack of 8 KiB, and prints how often that went well.
// Each case runs in a child of its own, on stacks that are painted before and looked at afterwards, so a case may also
// end the process or replace its program. Prints "NAME CASE FIRST THREAD LATER": bytes of stack of the process's first
// call, of the first one of another thread, and of a later one there (0: it did not come so far).
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { kStack = 512 * 1024, kPaint = 0xb7, kVariables = 2000 };

extern int __open_2(const char*, int), __open64_2(const char*, int);
extern int __openat_2(int, const char*, int), __openat64_2(int, const char*, int);
extern ssize_t __read_chk(int, void*, size_t, size_t), __pread_chk(int, void*, size_t, off_t, size_t);
extern ssize_t __pread64_chk(int, void*, size_t, off64_t, size_t);
extern size_t __fread_chk(void*, size_t, size_t, size_t, FILE*), __fread_unlocked_chk(void*, size_t, size_t, size_t, FILE*);
extern char *__fgets_chk(char*, size_t, int, FILE*), *__fgets_unlocked_chk(char*, size_t, int, FILE*);
extern ssize_t __getdelim(char**, size_t*, int, FILE*);
extern ssize_t __recv_chk(int, void*, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void*, size_t, size_t, int, struct sockaddr*, socklen_t*);
extern int __xstat(int, const char*, struct stat*), __lxstat(int, const char*, struct stat*), __fxstat(int, int, struct stat*);
extern int __xstat64(int, const char*, struct stat64*), __lxstat64(int, const char*, struct stat64*);
extern int __fxstat64(int, int, struct stat64*), __fxstatat(int, int, const char*, struct stat*, int);
extern int __fxstatat64(int, int, const char*, struct stat64*, int);

// What the cases use. Made before the first of them, so that none begins with another call.
static char absolute[256], folder[256], long_relative[4000], long_absolute[4000], unsuited[256];
static int fd, out, pair[2], epoll, folder_fd, program_fd;
static FILE *file, *written;
static DIR* names;
static char memory[8192];
static struct stat st;
static struct stat64 st64;
static struct statx stx;
static struct iovec vector = {memory, 16};
static struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
static struct sockaddr_un nobody = {.sun_family = AF_UNIX, .sun_path = "/nobody/is/here"};
static socklen_t option_bytes = sizeof(int);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static const struct timespec passed = {1, 0}, moment = {0, 1000};
static char* arguments[] = {"true", NULL};
static char* large[kVariables + 1];
static int inner[2];
static char* line;
static pid_t gone;  // a child that has ended
static size_t line_bytes;


static int keep_none(const struct dirent* entry) { return entry == NULL; }
static int keep_none64(const struct dirent64* entry) { return entry == NULL; }
static void* nothing(void* argument) { return argument; }
static pthread_t ended(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, nothing, NULL);
  return thread;
}
static void in_child(int (*call)(void)) {  // as subprocess does it
  const pid_t child = vfork();
  if (child == 0) {
    call();
    _exit(1);
  }
  waitpid(child, NULL, 0);
}
static int spawn_true(int search, const char* program, posix_spawn_file_actions_t* actions, char** environment) {
  pid_t child = 0;
  const int error = search ? posix_spawnp(&child, program, actions, NULL, arguments, environment)
                           : posix_spawn(&child, program, actions, NULL, arguments, environment);
  if (error == 0) waitpid(child, NULL, 0);
  return error;
}
static int vforked_exec(void) { return execve("/bin/true", arguments, environ); }
static int vforked_unsuited(void) { return execve(unsuited, arguments, environ); }
static int many(void) {  // more rows than a small ring has
  for (int i = 0; i < 300; ++i) pread(fd, memory, 16, 1);
  return 0;
}
static void* wake(void* unused) {
  for (;;) {
    pthread_cond_broadcast(&condition);
    syscall(SYS_nanosleep, &moment, NULL);
  }
  return unused;
}
static void spawn_moved(int by_descriptor) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (by_descriptor) posix_spawn_file_actions_addfchdir_np(&actions, folder_fd);
  else posix_spawn_file_actions_addchdir_np(&actions, "/");
  spawn_true(0, "bin/true", &actions, environ);
}

// CASE(function, case, what it does)
#define CASES                                                                                       \
  ON_PATHS(open, fd = open(PATH, O_RDONLY))                                                         \
  ON_NAMES(open64, open64(PATH, O_RDONLY))                                                          \
  ON_PATHS(openat, openat(folder_fd, PATH, O_RDONLY))                                               \
  ON_NAMES(openat64, openat64(AT_FDCWD, PATH, O_RDONLY))                                            \
  ON_NAMES(__open_2, __open_2(PATH, O_RDONLY))                                                      \
  ON_NAMES(__open64_2, __open64_2(PATH, O_RDONLY))                                                  \
  ON_NAMES(__openat_2, __openat_2(AT_FDCWD, PATH, O_RDONLY))                                        \
  ON_NAMES(__openat64_2, __openat64_2(folder_fd, PATH, O_RDONLY))                                   \
  ON_PATHS(creat, creat(PATH, 0600))                                                                \
  ON_NAMES(creat64, creat64(PATH, 0600))                                                            \
  CASE(close, file, close(fd))                                                                      \
  CASE(close, socket, close(pair[0]))                                                               \
  CASE(close_range, few, close_range(900, 910, 0))                                                  \
  CASE(closefrom, many, (closefrom(900), 0))                                                        \
  CASE(dup, file, dup(fd))                                                                          \
  CASE(dup2, file, dup2(fd, 901))                                                                   \
  CASE(dup3, file, dup3(fd, 902, O_CLOEXEC))                                                        \
  CASE(fcntl, copy, fcntl(fd, F_DUPFD, 903))                                                        \
  CASE(fcntl64, flags, fcntl64(fd, F_SETFL, O_APPEND))                                              \
  CASE(socket, new, socket(AF_UNIX, SOCK_STREAM, 0))                                                \
  CASE(socketpair, new, socketpair(AF_UNIX, SOCK_STREAM, 0, inner))                                 \
  CASE(accept, none, accept(pair[0], NULL, NULL))                                                   \
  CASE(accept4, none, accept4(pair[0], NULL, NULL, 0))                                              \
  CASE(pipe, new, pipe(inner))                                                                      \
  CASE(pipe2, new, pipe2(inner, O_CLOEXEC))                                                         \
  CASE(eventfd, new, eventfd(0, 0))                                                                 \
  CASE(memfd_create, new, memfd_create("memory", 0))                                                \
  CASE(read, file, read(fd, memory, 16))                                                            \
  CASE(read, large, read(fd, memory, sizeof memory))                                                \
  CASE(read, bad, read(-1, memory, 16))                                                             \
  CASE(read, high, read(dup2(fd, 1500), memory, 16))                                                \
  CASE(__read_chk, file, __read_chk(fd, memory, 16, sizeof memory))                                 \
  CASE(pread, file, pread(fd, memory, 16, 1))                                                       \
  CASE(pread, many, many())                                                                         \
  CASE(pread64, file, pread64(fd, memory, 16, 1))                                                   \
  CASE(__pread_chk, file, __pread_chk(fd, memory, 16, 1, sizeof memory))                            \
  CASE(__pread64_chk, file, __pread64_chk(fd, memory, 16, 1, sizeof memory))                        \
  CASE(readv, file, readv(fd, &vector, 1))                                                          \
  CASE(preadv, file, preadv(fd, &vector, 1, 1))                                                     \
  CASE(preadv64, file, preadv64(fd, &vector, 1, 1))                                                 \
  CASE(preadv2, file, preadv2(fd, &vector, 1, 1, 0))                                                \
  CASE(preadv64v2, file, preadv64v2(fd, &vector, 1, 1, 0))                                          \
  CASE(write, file, write(out, memory, 16))                                                         \
  CASE(write, socket, write(pair[1], memory, 16))                                                   \
  CASE(pwrite, file, pwrite(out, memory, 16, 1))                                                    \
  CASE(pwrite64, file, pwrite64(out, memory, 16, 1))                                                \
  CASE(writev, file, writev(out, &vector, 1))                                                       \
  CASE(pwritev, file, pwritev(out, &vector, 1, 1))                                                  \
  CASE(pwritev64, file, pwritev64(out, &vector, 1, 1))                                              \
  CASE(pwritev2, file, pwritev2(out, &vector, 1, 1, 0))                                             \
  CASE(pwritev64v2, file, pwritev64v2(out, &vector, 1, 1, 0))                                       \
  CASE(lseek, file, lseek(fd, 0, SEEK_SET))                                                         \
  CASE(lseek64, file, lseek64(fd, 0, SEEK_SET))                                                     \
  CASE(sendfile, file, sendfile(out, fd, NULL, 16))                                                 \
  CASE(sendfile64, file, sendfile64(out, fd, NULL, 16))                                             \
  CASE(copy_file_range, file, copy_file_range(fd, NULL, out, NULL, 16, 0))                          \
  CASE(splice, file, splice(fd, NULL, pair[0], NULL, 16, SPLICE_F_NONBLOCK))                        \
  CASE(fsync, bad, fsync(pair[0]))                                                                  \
  CASE(fdatasync, bad, fdatasync(pair[0]))                                                          \
  CASE(sync_file_range, file, sync_file_range(out, 0, 16, 0))                                       \
  CASE(ftruncate, file, ftruncate(out, 100))                                                        \
  CASE(ftruncate64, file, ftruncate64(out, 100))                                                    \
  ON_PATHS(truncate, truncate(PATH, 9000))                                                          \
  ON_NAMES(truncate64, truncate64(PATH, 9000))                                                      \
  CASE(fallocate, bad, fallocate(fd, 0, 0, 16))                                                     \
  CASE(fallocate64, bad, fallocate64(fd, 0, 0, 16))                                                 \
  CASE(posix_fallocate, bad, posix_fallocate(fd, 0, 16))                                            \
  CASE(posix_fallocate64, bad, posix_fallocate64(fd, 0, 16))                                        \
  CASE(posix_fadvise, file, posix_fadvise(fd, 0, 16, POSIX_FADV_NORMAL))                            \
  CASE(posix_fadvise64, file, posix_fadvise64(fd, 0, 16, POSIX_FADV_NORMAL))                        \
  CASE(readahead, file, readahead(fd, 0, 16))                                                       \
  CASE(mmap, file, mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0))                                  \
  CASE(mmap64, file, mmap64(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0))                              \
  CASE(munmap, file, munmap(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0), 4096))                  \
  CASE(msync, file, msync(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0), 4096, MS_ASYNC))          \
  CASE(madvise, file, madvise(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0), 4096, MADV_NORMAL))   \
  ON_PATHS(stat, stat(PATH, &st))                                                                   \
  ON_NAMES(stat64, stat64(PATH, &st64))                                                             \
  ON_NAMES(lstat, lstat(PATH, &st))                                                                 \
  ON_NAMES(lstat64, lstat64(PATH, &st64))                                                           \
  ON_PATHS(fstatat, fstatat(folder_fd, PATH, &st, 0))                                               \
  ON_NAMES(fstatat64, fstatat64(AT_FDCWD, PATH, &st64, 0))                                          \
  ON_PATHS(statx, statx(AT_FDCWD, PATH, 0, STATX_ALL, &stx))                                        \
  ON_NAMES(__xstat, __xstat(1, PATH, &st))                                                          \
  ON_NAMES(__xstat64, __xstat64(1, PATH, &st64))                                                    \
  ON_NAMES(__lxstat, __lxstat(1, PATH, &st))                                                        \
  ON_NAMES(__lxstat64, __lxstat64(1, PATH, &st64))                                                  \
  ON_NAMES(__fxstatat, __fxstatat(1, AT_FDCWD, PATH, &st, 0))                                       \
  ON_NAMES(__fxstatat64, __fxstatat64(1, AT_FDCWD, PATH, &st64, 0))                                 \
  CASE(stat, address, stat("s3://key:secret@bucket/part?token=1", &st))                             \
  CASE(fstat, file, fstat(fd, &st))                                                                 \
  CASE(fstat64, socket, fstat64(pair[0], &st64))                                                    \
  CASE(__fxstat, file, __fxstat(1, fd, &st))                                                        \
  CASE(__fxstat64, file, __fxstat64(1, fd, &st64))                                                  \
  CASE(unlink, none, unlink("none"))                                                                \
  CASE(unlinkat, none, unlinkat(folder_fd, "none", 0))                                              \
  CASE(remove, none, remove("none"))                                                                \
  CASE(rmdir, none, rmdir("none"))                                                                  \
  CASE(rename, none, rename("none", "other"))                                                       \
  CASE(renameat, none, renameat(AT_FDCWD, "none", folder_fd, "other"))                              \
  CASE(renameat2, none, renameat2(folder_fd, "none", AT_FDCWD, "other", 0))                         \
  CASE(mkdir, there, mkdir(".", 0700))                                                              \
  CASE(mkdirat, there, mkdirat(folder_fd, "d", 0700))                                               \
  CASE(opendir, relative, opendir("."))                                                             \
  CASE(opendir, absolute, opendir(folder))                                                          \
  CASE(fdopendir, folder, fdopendir(dup(folder_fd)))                                                \
  CASE(readdir, folder, readdir(names))                                                             \
  CASE(readdir64, folder, readdir64(names))                                                         \
  CASE(closedir, folder, closedir(opendir(".")))                                                    \
  CASE(scandir, relative, scandir(".", (struct dirent***)memory, keep_none, NULL))                  \
  CASE(scandir64, relative, scandir64(".", (struct dirent64***)memory, keep_none64, NULL))          \
  ON_PATHS(fopen, fopen(PATH, "r"))                                                                 \
  ON_NAMES(fopen64, fopen64(PATH, "r"))                                                             \
  CASE(fdopen, file, fdopen(fd, "r"))                                                               \
  ON_PATHS(freopen, freopen(PATH, "r", fopen(PATH, "r")))                                           \
  ON_NAMES(freopen64, freopen64(PATH, "r", fopen(PATH, "r")))                                       \
  CASE(fclose, file, fclose(fopen("data", "r")))                                                    \
  CASE(fread, file, fread(memory, 1, 16, file))                                                     \
  CASE(fread_unlocked, file, fread_unlocked(memory, 1, 16, file))                                   \
  CASE(__fread_chk, file, __fread_chk(memory, sizeof memory, 1, 16, file))                          \
  CASE(__fread_unlocked_chk, file, __fread_unlocked_chk(memory, sizeof memory, 1, 16, file))        \
  CASE(fgets, file, fgets(memory, 16, file))                                                        \
  CASE(fgets_unlocked, file, fgets_unlocked(memory, 16, file))                                      \
  CASE(__fgets_chk, file, __fgets_chk(memory, sizeof memory, 16, file))                             \
  CASE(__fgets_unlocked_chk, file, __fgets_unlocked_chk(memory, sizeof memory, 16, file))           \
  CASE(getline, file, getline(&line, &line_bytes, file))                                            \
  CASE(getdelim, file, getdelim(&line, &line_bytes, ' ', file))                                     \
  CASE(__getdelim, file, __getdelim(&line, &line_bytes, ' ', file))                                 \
  CASE(fwrite, file, fwrite(memory, 1, 16, written))                                                \
  CASE(fwrite_unlocked, file, fwrite_unlocked(memory, 1, 16, written))                              \
  CASE(fputs, file, fputs("word", written))                                                         \
  CASE(fputs_unlocked, file, fputs_unlocked("word", written))                                       \
  CASE(fseek, file, fseek(file, 0, SEEK_SET))                                                       \
  CASE(fseeko, file, fseeko(file, 0, SEEK_SET))                                                     \
  CASE(fseeko64, file, fseeko64(file, 0, SEEK_SET))                                                 \
  CASE(rewind, file, (rewind(file), 0))                                                             \
  CASE(fflush, file, (fputs("word", written), fflush(written)))                                     \
  CASE(fflush_unlocked, file, (fputs("word", written), fflush_unlocked(written)))                   \
  CASE(recv, none, recv(pair[0], memory, 16, MSG_DONTWAIT))                                         \
  CASE(__recv_chk, none, __recv_chk(pair[0], memory, 16, sizeof memory, MSG_DONTWAIT))              \
  CASE(recvfrom, none, recvfrom(pair[0], memory, 16, MSG_DONTWAIT, NULL, NULL))                     \
  CASE(__recvfrom_chk, none, __recvfrom_chk(pair[0], memory, 16, sizeof memory, MSG_DONTWAIT, NULL, NULL)) \
  CASE(recvmsg, none, recvmsg(pair[0], &message, MSG_DONTWAIT))                                     \
  CASE(send, socket, send(pair[0], memory, 16, 0))                                                  \
  CASE(sendto, socket, sendto(pair[0], memory, 16, 0, NULL, 0))                                     \
  CASE(sendmsg, socket, sendmsg(pair[0], &message, 0))                                              \
  CASE(connect, nobody, connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr*)&nobody, sizeof nobody)) \
  CASE(getsockopt, error, getsockopt(pair[0], SOL_SOCKET, SO_ERROR, memory, &option_bytes))          \
  CASE(pthread_cond_broadcast, nobody, pthread_cond_broadcast(&condition))                           \
  CASE(pthread_cond_wait, woken, LOCKED(pthread_cond_wait(&condition, &mutex)))                     \
  CASE(pthread_cond_timedwait, passed, LOCKED(pthread_cond_timedwait(&condition, &mutex, &passed))) \
  CASE(pthread_cond_clockwait, passed, LOCKED(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &passed))) \
  CASE(pthread_mutex_lock, free, LOCKED(0))                                                         \
  CASE(pthread_join, ended, pthread_join(ended(), NULL))                                            \
  CASE(sem_wait, free, (sem_post(&semaphore), sem_wait(&semaphore)))                                \
  CASE(sem_timedwait, passed, sem_timedwait(&semaphore, &passed))                                   \
  CASE(sem_clockwait, passed, sem_clockwait(&semaphore, CLOCK_MONOTONIC, &passed))                  \
  CASE(poll, none, poll(NULL, 0, 1))                                                                \
  CASE(ppoll, none, ppoll(NULL, 0, &moment, NULL))                                                  \
  CASE(select, none, select(0, NULL, NULL, NULL, &(struct timeval){0, 1}))                          \
  CASE(pselect, none, pselect(0, NULL, NULL, NULL, &moment, NULL))                                  \
  CASE(epoll_wait, none, epoll_wait(epoll, (struct epoll_event*)memory, 1, 1))                      \
  CASE(epoll_pwait, none, epoll_pwait(epoll, (struct epoll_event*)memory, 1, 1, NULL))              \
  CASE(epoll_pwait2, none, epoll_pwait2(epoll, (struct epoll_event*)memory, 1, &moment, NULL))      \
  CASE(nanosleep, short, nanosleep(&moment, NULL))                                                  \
  CASE(clock_nanosleep, short, clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL))                  \
  CASE(usleep, short, usleep(1))                                                                    \
  CASE(sleep, none, sleep(0))                                                                       \
  CASE(wait, child, wait(NULL))                                                           \
  CASE(wait3, child, wait3(NULL, 0, NULL))                                                \
  CASE(wait4, child, wait4(gone, NULL, 0, NULL))                                                  \
  CASE(waitpid, child, waitpid(gone, NULL, 0))                                                    \
  CASE(waitid, child, waitid(P_PID, gone, (siginfo_t*)memory, WEXITED))                           \
  CASE(syscall, futex, syscall(SYS_futex, memory, 0, 1, &moment, NULL, 0))                          \
  CASE(syscall, other, syscall(SYS_getppid))                                                        \
  CASE(prctl, name, prctl(PR_SET_NAME, (unsigned long)"name", 0, 0, 0))                             \
  CASE(_exit, end, (_exit(0), 0))                                                                   \
  CASE(_Exit, end, (_Exit(0), 0))                                                                   \
  CASE(execve, absolute, execve("/bin/true", arguments, environ))                                   \
  CASE(execve, missing, execve("none", arguments, environ))                                         \
  CASE(execve, unsuited, execve(unsuited, arguments, environ))                                      \
  CASE(execve, large_environment, execve(unsuited, arguments, large))                               \
  CASE(execve, vfork, (in_child(vforked_exec), 0))                                                  \
  CASE(execve, vfork_unsuited, (in_child(vforked_unsuited), 0))                                     \
  CASE(execv, absolute, execv("/bin/true", arguments))                                              \
  CASE(execvp, along_path, execvp("true", arguments))                                               \
  CASE(execvpe, along_path, execvpe("true", arguments, environ))                                    \
  CASE(execl, absolute, execl("/bin/true", "true", "1", "2", (char*)NULL))                          \
  CASE(execlp, along_path, execlp("true", "true", "1", "2", (char*)NULL))                           \
  CASE(execle, absolute, execle("/bin/true", "true", "1", "2", (char*)NULL, environ))               \
  CASE(fexecve, program, fexecve(program_fd, arguments, environ))                                   \
  CASE(execveat, program, execveat(program_fd, "", arguments, environ, AT_EMPTY_PATH))              \
  CASE(posix_spawn, absolute, spawn_true(0, "/bin/true", NULL, environ))                            \
  CASE(posix_spawn, unsuited, spawn_true(0, unsuited, NULL, environ))                               \
  CASE(posix_spawn, large_environment, spawn_true(0, unsuited, NULL, large))                        \
  CASE(posix_spawnp, along_path, spawn_true(1, "true", NULL, environ))                              \
  CASE(posix_spawn_file_actions_addchdir_np, moved, (spawn_moved(0), 0))                            \
  CASE(posix_spawn_file_actions_addfchdir_np, moved, (spawn_moved(1), 0))

#define LOCKED(call) (pthread_mutex_lock(&mutex), (call), pthread_mutex_unlock(&mutex))
#define ON_NAMES(function, call) PATHS(function, relative, "data", call) PATHS(function, absolute, absolute, call)
#define ON_PATHS(function, call) \
  ON_NAMES(function, call)       \
  PATHS(function, long_relative, long_relative, call) PATHS(function, long_absolute, long_absolute, call)

#define CASE(function, variant, call) \
  static void do_##function##_##variant(void) { (void)!(intptr_t)(call); }
#define PATHS(function, variant, path, call)       \
  static void do_##function##_##variant(void) {    \
    const char* const PATH = path;                 \
    (void)!(intptr_t)(call);                       \
  }
CASES
#undef CASE
#undef PATHS

static const struct {
  const char *function, *variant;
  void (*call)(void);
} cases[] = {
#define CASE(function, variant, call) {#function, #variant, do_##function##_##variant},
#define PATHS(function, variant, path, call) {#function, #variant, do_##function##_##variant},
    CASES};

enum { kFirst, kOfThread, kLater, kStacks };
static unsigned char* stacks[kStacks];

// Stacks are shared with the parent, which looks at them: no case may fork there.
static void on_stack(unsigned char* stack, void (*call)(void)) {
  gone = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (gone == 0) syscall(SYS_exit_group, 0);
  ucontext_t back, there;
  getcontext(&there);
  there.uc_stack.ss_sp = stack;
  there.uc_stack.ss_size = kStack;
  there.uc_link = &back;
  makecontext(&there, call, 0);
  swapcontext(&back, &there);
}

static long used(const unsigned char* stack) {
  long untouched = 0;
  while (untouched < kStack && stack[untouched] == kPaint) ++untouched;
  return kStack - untouched;
}

static void watch_waits(void) {
  void (*watch)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "stashtrace_watch_waits");
  if (watch != NULL) watch(1);
}

static void* in_thread(void* call) {
  watch_waits();
  on_stack(stacks[kOfThread], (void (*)(void))call);
  on_stack(stacks[kLater], (void (*)(void))call);
  return NULL;
}

static void prepare(const char* place) {
  if (chdir(place) != 0 || getcwd(folder, sizeof folder) == NULL) exit(3);
  snprintf(absolute, sizeof absolute, "%s/data", folder);
  mkdir("d", 0700);
  while (strlen(long_relative) < 3600) strcat(long_relative, "d/../");
  snprintf(long_absolute, sizeof long_absolute, "%s/%s", folder, long_relative);
  strcat(long_relative, "data");
  strcat(long_absolute, "data");
  out = open("written", O_RDWR | O_CREAT, 0600);
  fd = open("data", O_RDWR | O_CREAT, 0600);
  if (write(fd, memory, sizeof memory) != sizeof memory) exit(3);
  lseek(fd, 0, SEEK_SET);
  snprintf(unsuited, sizeof unsuited, "%s/unsuited", folder);  // for another processor
  Elf64_Ehdr head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS32}, .e_machine = EM_NONE};
  const int program = open(unsuited, O_WRONLY | O_CREAT | O_TRUNC, 0700);
  if (write(program, &head, sizeof head) != sizeof head) exit(3);
  close(program);
  file = fopen("data", "r");
  written = fopen("/dev/null", "w");
  names = opendir(".");
  folder_fd = open(".", O_RDONLY | O_DIRECTORY);
  program_fd = open("/bin/true", O_RDONLY);
  epoll = epoll_create1(0);
  sem_init(&semaphore, 0, 0);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) exit(3);
  int kept = 0;
  for (char** each = environ; *each != NULL; ++each) large[kept++] = *each;
  while (kept < kVariables) large[kept++] = "VARIABLE=value";
  large[kept] = NULL;
}

static volatile int went_well;
static void in_handler(int number) {
  const int opened = open("data", O_RDONLY);
  went_well += opened >= 0 && read(opened, memory, 16) == 16 && close(opened) == 0;
  went_well += stat(long_relative, &st) == 0 && access("data", F_OK) == 0;
  went_well += number == SIGUSR1;
}
// A page that cannot be touched lies below.
static int on_signal_stack(void) {
  enum { kSmall = 8192 };
  char* lower = mmap(NULL, 4096 + kSmall, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(lower, 4096, PROT_NONE);
  const stack_t small = {.ss_sp = lower + 4096, .ss_size = kSmall};
  const struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
  if (sigaltstack(&small, NULL) != 0 || sigaction(SIGUSR1, &action, NULL) != 0) return 4;
  for (int i = 0; i < 3; ++i) raise(SIGUSR1);
  printf("%d\n", went_well);
  return 0;
}

int main(int count, char** given) {
  if (count < 2) return 2;
  prepare(given[1]);
  if (count > 2) return on_signal_stack();
  watch_waits();
  for (int i = 0; i < kStacks; ++i)
    stacks[i] = mmap(NULL, kStack, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    for (int k = 0; k < kStacks; ++k) memset(stacks[k], kPaint, kStack);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      pthread_t thread;
      if (strcmp(cases[i].function, "pthread_cond_wait") == 0) pthread_create(&thread, NULL, wake, NULL);
      on_stack(stacks[kFirst], cases[i].call);
      if (pthread_create(&thread, NULL, in_thread, (void*)cases[i].call) == 0) pthread_join(thread, NULL);
      syscall(SYS_exit_group, 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%s %s", cases[i].function, cases[i].variant);
    for (int k = 0; k < kStacks; ++k) printf(" %ld", used(stacks[k]));
    printf(" %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  }
  return 0;
}
