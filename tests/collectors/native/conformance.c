// Calls every hooked function of libc with good and bad arguments and prints what came of it, one line a call. Run with
// and without the recorder in front, the output must be the same. SPDX-License-Identifier: Apache-2.0
//
// Each function has a list of values for each argument, the first of them good. Called are all good ones, then each other
// value in the place of one argument and of two arguments. A crash is an answer like any other: the calls run in a child,
// and the next child goes on behind the call that it died of. argv[1] is a folder that the program may fill.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILE_FD = 100, FOLDER_FD, NULL_FD, SOCKET_FD, EPOLL_FD, TAKEN_FD, CLOSED_FD = 150 };

typedef struct { const char* name; long value; } Value;
typedef struct { const Value* values; int count; } Kind;

static char* unmapped;      // no page
static char* guarded;       // PROT_NONE
static char* endless;       // text that runs into the guarded page
static char* last_word;     // text that ends with the page before it
static char* almost;        // 4 bytes before the guarded page
static char* scratch;       // 8 KiB, good
static FILE* stream;
static DIR* folder;

#define MOST_VALUES 16
#define KIND(name) static Value name##_values[MOST_VALUES]; static int name##_count;
#define ADD(kind, text, number) kind##_values[kind##_count++] = (Value){text, (long)(number)}
KIND(path) KIND(target) KIND(fd) KIND(dirfd_) KIND(oflags) KIND(flags) KIND(mode) KIND(out) KIND(bytes) KIND(offset) KIND(offset_pointer)
KIND(iov) KIND(count) KIND(fmode) KIND(stream_) KIND(folder_) KIND(line) KIND(room_pointer) KIND(small) KIND(names) KIND(none)
KIND(address) KIND(address_bytes) KIND(command) KIND(argument) KIND(to_fd) KIND(timeout) KIND(mapping) KIND(protection) KIND(mflags)
KIND(advice) KIND(pid) KIND(options) KIND(clock) KIND(version) KIND(message) KIND(length_pointer) KIND(room) KIND(high) KIND(zero) KIND(idtype) KIND(whence)
KIND(item) KIND(items) KIND(polls) KIND(few) KIND(number) KIND(word) KIND(semaphore) KIND(socket_level) KIND(socket_option) KIND(condition) KIND(mutex) KIND(past) KIND(timed_semaphore) KIND(length)

static struct iovec good_iov[2], bad_iov[2];
static struct msghdr good_message, bad_message;
static int64_t zero_offset;
static struct sockaddr_un peer;
static struct pollfd polled;
static struct timespec no_time, wrong_time = {0, 2000000000}, long_ago = {1, 0};
static char* line_at;
static size_t line_room;
static int lengths[2];

static void fill_kinds(void) {
  static char long_path[5000];
  memset(long_path, 'x', sizeof long_path - 1);
#define POINTERS(kind) \
  ADD(kind, "null", 0); ADD(kind, "16", 16); ADD(kind, "unmapped", unmapped); ADD(kind, "guarded", guarded)
  ADD(path, "file", "file"); ADD(path, "nope", "nope"); ADD(path, "empty", ""); POINTERS(path); ADD(path, "endless", endless);
  ADD(path, "last_word", last_word); ADD(path, "long", long_path); ADD(path, "folder", "folder"); ADD(path, "file/x", "file/x");
  ADD(target, "other", "other"); ADD(target, "empty", ""); ADD(target, "nope/x", "nope/x"); POINTERS(target); ADD(target, "endless", endless);
  ADD(fd, "file", FILE_FD); ADD(fd, "folder", FOLDER_FD); ADD(fd, "null", NULL_FD); ADD(fd, "socket", SOCKET_FD); ADD(fd, "-1", -1);
  ADD(fd, "closed", CLOSED_FD); ADD(fd, "max", INT32_MAX);
  ADD(dirfd_, "cwd", AT_FDCWD); ADD(dirfd_, "folder", FOLDER_FD); ADD(dirfd_, "file", FILE_FD); ADD(dirfd_, "-1", -1); ADD(dirfd_, "closed", CLOSED_FD);
  ADD(oflags, "rdonly", O_RDONLY); ADD(oflags, "rdwr", O_RDWR); ADD(oflags, "create", O_CREAT | O_WRONLY); ADD(oflags, "tmpfile_rdonly", O_TMPFILE | O_RDONLY);
  ADD(oflags, "tmpfile", O_TMPFILE | O_RDWR); ADD(oflags, "create_folder", O_CREAT | O_DIRECTORY); ADD(oflags, "-1", -1); ADD(oflags, "folder", O_DIRECTORY);
  ADD(oflags, "path", O_PATH); ADD(oflags, "excl", O_CREAT | O_EXCL | O_WRONLY); ADD(oflags, "3", 3);
  ADD(flags, "0", 0); ADD(flags, "1", 1); ADD(flags, "3", 3); ADD(flags, "0x7fff", 0x7fff); ADD(flags, "0x7fff0000", 0x7fff0000); ADD(flags, "-1", -1); ADD(flags, "empty_path", AT_EMPTY_PATH);
  ADD(mode, "0600", 0600); ADD(mode, "-1", -1);
  ADD(out, "good", scratch); POINTERS(out); ADD(out, "almost", almost);
  ADD(bytes, "10", 10); ADD(bytes, "0", 0); ADD(bytes, "8192", 8192); ADD(bytes, "-1", -1); ADD(bytes, "half", 1L << 62);
  ADD(room, "-1", -1); ADD(room, "8192", 8192);
  ADD(offset, "0", 0); ADD(offset, "5", 5); ADD(offset, "-1", -1); ADD(offset, "-2", -2); ADD(offset, "max", INT64_MAX);
  ADD(offset_pointer, "null", 0); ADD(offset_pointer, "good", &zero_offset); ADD(offset_pointer, "16", 16); ADD(offset_pointer, "guarded", guarded);
  ADD(iov, "good", good_iov); ADD(iov, "bad", bad_iov); POINTERS(iov); ADD(iov, "almost", almost);
  ADD(count, "2", 2); ADD(count, "0", 0); ADD(count, "-1", -1); ADD(count, "2000", 2000);
  ADD(few, "1", 1); ADD(few, "0", 0); ADD(few, "-1", -1);
  ADD(fmode, "r", "r"); ADD(fmode, "w", "w"); ADD(fmode, "zz", "zz"); ADD(fmode, "empty", ""); ADD(fmode, "a+e", "a+e"); ADD(fmode, "r,ccs", "r,ccs=nope");
  ADD(fmode, "16", 16);
  ADD(stream_, "good", stream); ADD(stream_, "16", 16); ADD(stream_, "guarded", guarded); ADD(stream_, "null", 0);
  ADD(folder_, "good", folder); ADD(folder_, "16", 16); ADD(folder_, "null", 0);
  ADD(line, "good", &line_at); POINTERS(line);
  ADD(room_pointer, "good", &line_room); POINTERS(room_pointer);
  ADD(small, "10", 10); ADD(small, "0", 0); ADD(small, "1", 1); ADD(small, "-1", -1);
  ADD(names, "good", scratch); ADD(names, "16", 16);
  ADD(none, "null", 0);
  ADD(address, "good", &peer); POINTERS(address); ADD(address, "almost", almost);
  ADD(address_bytes, "good", sizeof peer); ADD(address_bytes, "0", 0); ADD(address_bytes, "1", 1); ADD(address_bytes, "4", 4); ADD(address_bytes, "128", 128);
  ADD(address_bytes, "129", 129); ADD(address_bytes, "-1", -1); ADD(address_bytes, "2e9", 2000000000);
  ADD(length_pointer, "good", lengths); POINTERS(length_pointer);
  ADD(socket_level, "socket", SOL_SOCKET); ADD(socket_level, "6", 6); ADD(socket_level, "-1", -1);
  ADD(socket_option, "error", SO_ERROR); ADD(socket_option, "type", SO_TYPE); ADD(socket_option, "-1", -1);
  ADD(command, "getfd", F_GETFD); ADD(command, "dupfd", F_DUPFD); ADD(command, "setfl", F_SETFL); ADD(command, "getlk", F_GETLK); ADD(command, "getfl", F_GETFL); ADD(command, "999", 999);
  ADD(argument, "0", 0); ADD(argument, "-1", -1); ADD(argument, "append", O_APPEND); ADD(argument, "unmapped", unmapped);
  ADD(to_fd, "taken", TAKEN_FD); ADD(to_fd, "closed", CLOSED_FD); ADD(to_fd, "-1", -1); ADD(to_fd, "max", INT32_MAX); ADD(to_fd, "same", FILE_FD);
  ADD(timeout, "none", &no_time); ADD(timeout, "wrong", &wrong_time); ADD(timeout, "16", 16); ADD(timeout, "guarded", guarded);
  ADD(length, "none", &no_time); ADD(length, "16", 16); ADD(length, "guarded", guarded);
  ADD(past, "ago", &long_ago); ADD(past, "wrong", &wrong_time);
  ADD(mapping, "any", 0); ADD(mapping, "16", 16);
  ADD(protection, "read", PROT_READ); ADD(protection, "none", 0); ADD(protection, "0x7f0000", 0x7f0000); ADD(protection, "write", PROT_WRITE);
  ADD(mflags, "private", MAP_PRIVATE); ADD(mflags, "shared", MAP_SHARED); ADD(mflags, "0", 0); ADD(mflags, "anonymous", MAP_PRIVATE | MAP_ANONYMOUS); ADD(mflags, "odd", 0x4000000);
  ADD(advice, "normal", 0); ADD(advice, "-1", -1); ADD(advice, "1234", 1234); ADD(advice, "willneed", 3);
  ADD(pid, "-1", -1); ADD(pid, "nobody", 0x7ffffff0); ADD(pid, "min", INT32_MIN);
  ADD(options, "nohang", WNOHANG); ADD(options, "-1", -1); ADD(options, "0", 0);
  ADD(idtype, "all", P_ALL); ADD(idtype, "pid", P_PID); ADD(idtype, "99", 99);
  ADD(clock, "monotonic", CLOCK_MONOTONIC); ADD(clock, "realtime", CLOCK_REALTIME); ADD(clock, "99", 99);
  ADD(version, "1", 1); ADD(version, "0", 0); ADD(version, "9", 9); ADD(version, "-1", -1);
  ADD(message, "good", &good_message); ADD(message, "bad", &bad_message); POINTERS(message); ADD(message, "almost", almost);
  ADD(high, "200", 200); ADD(high, "300", 300);
  ADD(zero, "0", 0);
  ADD(whence, "set", SEEK_SET); ADD(whence, "end", SEEK_END); ADD(whence, "9", 9); ADD(whence, "-1", -1);
  ADD(item, "1", 1); ADD(item, "0", 0); ADD(item, "100", 100);
  ADD(items, "10", 10); ADD(items, "0", 0); ADD(items, "2^60", 1L << 60);
  ADD(polls, "good", &polled); POINTERS(polls);
  ADD(number, "gettid", SYS_gettid); ADD(number, "futex", SYS_futex); ADD(number, "openat", SYS_openat); ADD(number, "99999", 99999); ADD(number, "-1", -1);
  ADD(word, "unmapped", unmapped); ADD(word, "0", 0); ADD(word, "-1", -1);
  ADD(semaphore, "free", scratch + 2048);
  ADD(timed_semaphore, "empty", scratch); ADD(timed_semaphore, "free", scratch + 2048);
  ADD(condition, "good", scratch + 512); ADD(mutex, "good", scratch + 1024);
}

// A call's name, what it returns (i int, l 64 bits, p pointer or null, v nothing), its arguments' kinds.
typedef struct { const char* name; char result; const Value* values[6]; int* counts[6]; } Call;
#define A(kind) kind##_values
#define N(kind) &kind##_count
#define C1(n, r, a) {n, r, {A(a)}, {N(a)}}
#define C2(n, r, a, b) {n, r, {A(a), A(b)}, {N(a), N(b)}}
#define C3(n, r, a, b, c) {n, r, {A(a), A(b), A(c)}, {N(a), N(b), N(c)}}
#define C4(n, r, a, b, c, d) {n, r, {A(a), A(b), A(c), A(d)}, {N(a), N(b), N(c), N(d)}}
#define C5(n, r, a, b, c, d, e) {n, r, {A(a), A(b), A(c), A(d), A(e)}, {N(a), N(b), N(c), N(d), N(e)}}
#define C6(n, r, a, b, c, d, e, f) {n, r, {A(a), A(b), A(c), A(d), A(e), A(f)}, {N(a), N(b), N(c), N(d), N(e), N(f)}}
static Call calls[] = {
  C3("open", 'i', path, oflags, mode), C3("open64", 'i', path, oflags, mode), C4("openat", 'i', dirfd_, path, oflags, mode),
  C4("openat64", 'i', dirfd_, path, oflags, mode), C2("creat", 'i', path, mode), C2("creat64", 'i', path, mode),
  C2("__open_2", 'i', path, oflags), C2("__open64_2", 'i', path, oflags), C3("__openat_2", 'i', dirfd_, path, oflags),
  C3("__openat64_2", 'i', dirfd_, path, oflags), C1("close", 'i', fd), C3("close_range", 'i', high, high, flags), C1("closefrom", 'v', high),
  C1("dup", 'i', fd), C2("dup2", 'i', fd, to_fd), C3("dup3", 'i', fd, to_fd, flags), C3("fcntl", 'i', fd, command, argument),
  C3("fcntl64", 'i', fd, command, argument), C3("socket", 'i', few, flags, flags), C4("socketpair", 'i', few, few, flags, out),
  C3("accept", 'i', fd, address, length_pointer), C4("accept4", 'i', fd, address, length_pointer, flags), C1("pipe", 'i', out),
  C2("pipe2", 'i', out, flags), C2("eventfd", 'i', small, flags), C2("memfd_create", 'i', path, flags),
  C3("read", 'l', fd, out, bytes), C4("__read_chk", 'l', fd, out, bytes, room), C4("pread", 'l', fd, out, bytes, offset),
  C4("pread64", 'l', fd, out, bytes, offset), C5("__pread_chk", 'l', fd, out, bytes, offset, room), C5("__pread64_chk", 'l', fd, out, bytes, offset, room),
  C3("readv", 'l', fd, iov, count), C4("preadv", 'l', fd, iov, count, offset), C4("preadv64", 'l', fd, iov, count, offset),
  C5("preadv2", 'l', fd, iov, count, offset, flags), C5("preadv64v2", 'l', fd, iov, count, offset, flags),
  C3("write", 'l', fd, out, bytes), C4("pwrite", 'l', fd, out, bytes, offset), C4("pwrite64", 'l', fd, out, bytes, offset),
  C3("writev", 'l', fd, iov, count), C4("pwritev", 'l', fd, iov, count, offset), C4("pwritev64", 'l', fd, iov, count, offset),
  C5("pwritev2", 'l', fd, iov, count, offset, flags), C5("pwritev64v2", 'l', fd, iov, count, offset, flags),
  C3("lseek", 'l', fd, offset, whence), C3("lseek64", 'l', fd, offset, whence), C4("sendfile", 'l', fd, fd, offset_pointer, bytes),
  C4("sendfile64", 'l', fd, fd, offset_pointer, bytes), C6("copy_file_range", 'l', fd, offset_pointer, fd, offset_pointer, bytes, flags),
  C6("splice", 'l', fd, offset_pointer, fd, offset_pointer, bytes, flags), C1("fsync", 'i', fd), C1("fdatasync", 'i', fd),
  C4("sync_file_range", 'i', fd, offset, bytes, flags), C2("ftruncate", 'i', fd, small), C2("ftruncate64", 'i', fd, small),
  C2("truncate", 'i', path, small), C2("truncate64", 'i', path, small), C4("fallocate", 'i', fd, flags, small, small),
  C4("fallocate64", 'i', fd, flags, small, small), C3("posix_fallocate", 'i', fd, small, small), C3("posix_fallocate64", 'i', fd, small, small),
  C4("posix_fadvise", 'i', fd, offset, bytes, advice), C4("posix_fadvise64", 'i', fd, offset, bytes, advice), C3("readahead", 'l', fd, offset, bytes),
  C6("mmap", 'p', mapping, bytes, protection, mflags, fd, offset), C6("mmap64", 'p', mapping, bytes, protection, mflags, fd, offset),
  C2("munmap", 'i', mapping, bytes), C3("msync", 'i', mapping, bytes, flags), C3("madvise", 'i', mapping, bytes, advice),
  C2("stat", 'i', path, out), C2("stat64", 'i', path, out), C2("lstat", 'i', path, out), C2("lstat64", 'i', path, out), C2("fstat", 'i', fd, out),
  C2("fstat64", 'i', fd, out), C4("fstatat", 'i', dirfd_, path, out, flags), C4("fstatat64", 'i', dirfd_, path, out, flags),
  C5("statx", 'i', dirfd_, path, flags, flags, out), C3("__xstat", 'i', version, path, out), C3("__xstat64", 'i', version, path, out),
  C3("__lxstat", 'i', version, path, out), C3("__lxstat64", 'i', version, path, out), C3("__fxstat", 'i', version, fd, out),
  C3("__fxstat64", 'i', version, fd, out), C5("__fxstatat", 'i', version, dirfd_, path, out, flags), C5("__fxstatat64", 'i', version, dirfd_, path, out, flags),
  C1("unlink", 'i', path), C3("unlinkat", 'i', dirfd_, path, flags), C1("remove", 'i', path), C1("rmdir", 'i', path),
  C2("rename", 'i', path, target), C4("renameat", 'i', dirfd_, path, dirfd_, target), C5("renameat2", 'i', dirfd_, path, dirfd_, target, flags),
  C2("mkdir", 'i', path, mode), C3("mkdirat", 'i', dirfd_, path, mode), C1("opendir", 'p', path), C1("fdopendir", 'p', fd),
  C1("readdir", 'p', folder_), C1("readdir64", 'p', folder_), C1("closedir", 'i', folder_),
  C4("scandir", 'i', path, names, none, none), C4("scandir64", 'i', path, names, none, none),
  C2("fopen", 'p', path, fmode), C2("fopen64", 'p', path, fmode), C2("fdopen", 'p', fd, fmode), C3("freopen", 'p', path, fmode, stream_),
  C3("freopen64", 'p', path, fmode, stream_), C1("fclose", 'i', stream_), C4("fread", 'l', out, item, items, stream_),
  C4("fread_unlocked", 'l', out, item, items, stream_), C5("__fread_chk", 'l', out, room, item, items, stream_),
  C5("__fread_unlocked_chk", 'l', out, room, item, items, stream_), C3("fgets", 'p', out, small, stream_), C3("fgets_unlocked", 'p', out, small, stream_),
  C4("__fgets_chk", 'p', out, room, small, stream_), C4("__fgets_unlocked_chk", 'p', out, room, small, stream_),
  C3("getline", 'l', line, room_pointer, stream_), C4("getdelim", 'l', line, room_pointer, small, stream_), C4("__getdelim", 'l', line, room_pointer, small, stream_),
  C4("fwrite", 'l', out, item, items, stream_), C4("fwrite_unlocked", 'l', out, item, items, stream_), C2("fputs", 'i', path, stream_),
  C2("fputs_unlocked", 'i', path, stream_), C3("fseek", 'i', stream_, offset, whence), C3("fseeko", 'i', stream_, offset, whence),
  C3("fseeko64", 'i', stream_, offset, whence), C1("rewind", 'v', stream_), C1("fflush", 'i', stream_), C1("fflush_unlocked", 'i', stream_),
  C4("recv", 'l', fd, out, bytes, flags), C5("__recv_chk", 'l', fd, out, bytes, room, flags), C6("recvfrom", 'l', fd, out, bytes, flags, address, length_pointer),
  {"__recvfrom_chk", 'l', {A(fd), A(out), A(bytes), A(room), A(flags), A(none)}, {N(fd), N(out), N(bytes), N(room), N(flags), N(none)}},
  C3("recvmsg", 'l', fd, message, flags), C4("send", 'l', fd, out, bytes, flags), C6("sendto", 'l', fd, out, bytes, flags, address, address_bytes),
  C3("sendmsg", 'l', fd, message, flags), C3("connect", 'i', fd, address, address_bytes),
  C5("getsockopt", 'i', fd, socket_level, socket_option, out, length_pointer),
  C1("pthread_cond_broadcast", 'i', condition), C2("pthread_cond_wait", 'i', none, none), C3("pthread_cond_timedwait", 'i', condition, mutex, past), C4("pthread_cond_clockwait", 'i', condition, mutex, clock, past),
  C1("pthread_mutex_lock", 'i', none), C2("pthread_join", 'i', none, none), C1("sem_wait", 'i', semaphore), C2("sem_timedwait", 'i', timed_semaphore, past),
  C3("sem_clockwait", 'i', timed_semaphore, clock, past), C3("poll", 'i', polls, few, zero), C4("ppoll", 'i', polls, few, timeout, none),
  C5("select", 'i', few, out, out, out, length), C6("pselect", 'i', few, out, out, out, timeout, none), C4("epoll_wait", 'i', fd, out, few, zero),
  C5("epoll_pwait", 'i', fd, out, few, zero, none), C5("epoll_pwait2", 'i', fd, out, few, timeout, none),
  C2("nanosleep", 'i', timeout, out), C4("clock_nanosleep", 'i', clock, zero, timeout, out), C1("usleep", 'i', zero), C1("sleep", 'i', zero),
  C1("wait", 'i', out), C3("wait3", 'i', out, options, out), C4("wait4", 'i', pid, out, options, out), C3("waitpid", 'i', pid, out, options),
  C4("waitid", 'i', idtype, pid, out, options), C4("syscall", 'l', number, word, word, word),
};
enum { CALLS = sizeof calls / sizeof *calls };

// --- the stage, set before each call by system calls alone ---------------------------------------------------------

static void place(long made, int at) {
  if (made < 0 || made == at) return;
  syscall(SYS_dup3, made, at, 0);
  syscall(SYS_close, made);
}
static long raw_open(const char* path, int flags) { return syscall(SYS_openat, AT_FDCWD, path, flags, 0644); }

static void prepare(void) {
  syscall(SYS_close_range, 3, 98, 0);
  syscall(SYS_close_range, FILE_FD, 320, 0);
  syscall(SYS_unlinkat, AT_FDCWD, "other", 0);
  syscall(SYS_unlinkat, AT_FDCWD, "other", AT_REMOVEDIR);
  syscall(SYS_unlinkat, AT_FDCWD, "nope", 0);
  syscall(SYS_unlinkat, AT_FDCWD, "nope", AT_REMOVEDIR);
  syscall(SYS_unlinkat, AT_FDCWD, "file", AT_REMOVEDIR);
  syscall(SYS_unlinkat, AT_FDCWD, last_word, 0);
  syscall(SYS_unlinkat, AT_FDCWD, last_word, AT_REMOVEDIR);
  syscall(SYS_mkdirat, AT_FDCWD, "folder", 0755);
  place(raw_open("file", O_RDWR | O_CREAT | O_TRUNC), FILE_FD);
  syscall(SYS_pwrite64, FILE_FD, "0123456789\nabcdefghi\n", 21, 0);
  syscall(SYS_fchmod, FILE_FD, 0644);
  place(raw_open("folder", O_RDONLY | O_DIRECTORY), FOLDER_FD);
  place(raw_open("/dev/null", O_RDWR), NULL_FD);
  place(syscall(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), SOCKET_FD);
  place(syscall(SYS_epoll_create1, 0), EPOLL_FD);
  syscall(SYS_umask, 022);
  memset(scratch, 0, 8192);
  scratch[2048] = 1;
  line_at = NULL, line_room = 0, zero_offset = 0, lengths[0] = 16;
  no_time.tv_sec = no_time.tv_nsec = 0;
  good_iov[0] = (struct iovec){scratch, 4}, good_iov[1] = (struct iovec){scratch + 100, 4};
  bad_iov[0] = (struct iovec){scratch, 4}, bad_iov[1] = (struct iovec){(void*)16, 4};
  good_message = (struct msghdr){.msg_iov = good_iov, .msg_iovlen = 2};
  bad_message = (struct msghdr){.msg_name = (void*)16, .msg_namelen = 16, .msg_iov = (void*)16, .msg_iovlen = 2};
  peer = (struct sockaddr_un){.sun_family = AF_UNIX, .sun_path = "nobody-listens"};
  polled = (struct pollfd){FILE_FD, POLLIN, 0};
}

// --- the calls -----------------------------------------------------------------------------------------------------

static char* told;          // shared with the children: what came of the calls so far
static struct { size_t used; long next; char doing[256]; }* progress;

static void tell(const char* text) {
  const size_t length = strlen(text);
  memcpy(told + progress->used, text, length);
  progress->used += length;
}

static long number;  // of the call about to be made, over all functions

static void perform(const Call* call, const int* chosen, int arguments) {
  if (number++ < progress->next) return;
  progress->next = number;
  int length = snprintf(progress->doing, sizeof progress->doing, "%s(", call->name);
  long values[6] = {0};
  for (int i = 0; i < arguments; ++i) {
    values[i] = call->values[i][chosen[i]].value;
    length += snprintf(progress->doing + length, sizeof progress->doing - length, "%s%s", i ? ", " : "", call->values[i][chosen[i]].name);
    // A descriptor of the file is made anew each time; a stream or folder that one call needs as well.
    if (call->values[i] == stream__values && chosen[i] == 0) {
      prepare();
      values[i] = (long)fdopen(fcntl(FILE_FD, F_DUPFD, 90), "r+");
    } else if (call->values[i] == folder__values && chosen[i] == 0) {
      prepare();
      values[i] = (long)opendir("folder");
    } else if (i == 0) {
      prepare();
    }
  }
  snprintf(progress->doing + length, sizeof progress->doing - length, ")");
  void* function = dlsym(RTLD_DEFAULT, call->name);
  char answer[96];
  if (function == NULL) {
    snprintf(answer, sizeof answer, " is not there\n");
  } else {
    errno = 0;
    const long got = ((long (*)(long, ...))function)(values[0], values[1], values[2], values[3], values[4], values[5]);
    const int error = errno;
    long shown = got;
    if (call->result == 'i') shown = (int)got;
    if (call->result == 'p') shown = got == -1 ? -1 : got != 0;
    if (call->result == 'v') shown = 0;
    if (call->values[0] == number_values && chosen[0] == 0) shown = 0;  // gettid
    // What an answer without an error leaves in errno is nobody's business but for those that tell by errno alone.
    snprintf(answer, sizeof answer, " = %ld, errno %d\n", shown, error);
    if (call->values[0] == mapping_values && call->result == 'p' && got != -1) syscall(SYS_munmap, got, values[1]);
  }
  tell(progress->doing);
  tell(answer);
}

static void perform_all(void) {
  number = 0;
  for (int c = 0; c < CALLS; ++c) {
    const Call* call = &calls[c];
    int arguments = 0;
    while (arguments < 6 && call->counts[arguments] != NULL) ++arguments;
    int chosen[6] = {0};
    perform(call, chosen, arguments);
    for (int i = 0; i < arguments; ++i)
      for (chosen[i] = 1; chosen[i] < *call->counts[i] || (chosen[i] = 0); ++chosen[i]) {
        perform(call, chosen, arguments);
        for (int j = i + 1; j < arguments; ++j)
          for (chosen[j] = 1; chosen[j] < *call->counts[j] || (chosen[j] = 0); ++chosen[j]) perform(call, chosen, arguments);
      }
  }
}

int main(int argc, char** argv) {
  if (argc < 2 || chdir(argv[1]) != 0) return 2;
  enum { ROOM = 64 << 20 };
  told = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char* pages = mmap(NULL, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  scratch = pages;
  guarded = pages + 4 * 4096;
  unmapped = (char*)0x123456789000;  // far from where the kernel puts mappings, also those of the recorder
  mprotect(guarded, 4096, PROT_NONE);
  memset(guarded - 64, 'e', 64);
  memcpy(guarded - 6, "ended", 6);
  last_word = guarded - 6;
  char* second = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(second + 4096, 4096, PROT_NONE);
  memset(second + 4096 - 64, 'e', 64);
  endless = second + 4096 - 20;
  almost = second + 4096 - 4;
  stream = NULL, folder = NULL;
  fill_kinds();
  void (*watch)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "stashtrace_watch_waits");
  for (;;) {
    const pid_t child = fork();
    if (child == 0) {
      const struct rlimit none = {0, 0};
      setrlimit(RLIMIT_CORE, &none);
      signal(SIGPIPE, SIG_IGN);
      signal(SIGXFSZ, SIG_IGN);
      if (watch != NULL) watch(1);
      alarm(300);
      perform_all();
      _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {}
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    char answer[64];
    snprintf(answer, sizeof answer, " killed by signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    tell(progress->doing);
    tell(answer);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) break;
  }
  for (size_t done = 0; done < progress->used;) {
    const ssize_t wrote = write(1, told + done, progress->used - done);
    if (wrote <= 0) return 1;
    done += wrote;
  }
  return 0;
}
