// Calls every function that hooks stand in front of, with good and bad arguments. SPDX-License-Identifier: Apache-2.0
//
// What it prints must be the same with and without the recorder; it is started in an empty folder.
#include "calls.h"

static const struct { int value; const char* name; } kFlags[] = {
    {O_RDONLY, "rdonly"}, {O_WRONLY, "wronly"}, {O_RDWR | O_CLOEXEC, "rdwr|cloexec"}, {O_RDWR | O_CREAT, "rdwr|creat"},
    {O_WRONLY | O_CREAT | O_EXCL, "creat|excl"}, {O_WRONLY | O_TRUNC, "trunc"}, {O_RDWR | O_APPEND, "append"},
    {O_DIRECTORY, "directory"}, {O_NOFOLLOW, "nofollow"}, {O_PATH, "path"}, {O_TMPFILE | O_RDWR, "tmpfile"},
    {O_TMPFILE, "tmpfile|rdonly"}, {O_CREAT | O_DIRECTORY, "creat|directory"}, {O_ACCMODE, "accmode"},
    {O_NONBLOCK | O_RDWR | O_SYNC, "nonblock|sync"}, {O_RDONLY | 0x40000000, "unknown"},
};
#define FLAGS_COUNT (int)(sizeof kFlags / sizeof *kFlags)
static char kLong[5000];
static const char* const kPaths[] = {"file", "missing", "dir", "link", "dangling", "", "file/x", "dir/", kLong, NULL};

static void scenery(void) {
  fresh("file", "0123456789abcdefghijklmnopqrstuvwxyz\nsecond line\nthird");
  fresh("other", "other content, which is longer than ten bytes");
  syscall(SYS_mkdirat, AT_FDCWD, "dir", 0755);
  syscall(SYS_symlinkat, "file", AT_FDCWD, "link");
  syscall(SYS_symlinkat, "nowhere/at/all", AT_FDCWD, "dangling");
  syscall(SYS_unlinkat, AT_FDCWD, "missing", 0);
}

static void note_open(long fd) {
  if (fd < 0) return;
  state("opened", (int)fd);
  bare_close((int)fd);
}

static void opens(void) {
  char note[160];
  const int dir = bare_open("dir", O_RDONLY | O_DIRECTORY);
  for (int p = 0; p < 10; ++p)
    for (int f = 0; f < FLAGS_COUNT; ++f) {
      const long path = kPaths[p] ? P(kPaths[p]) : BAD;
      snprintf(note, sizeof note, "%.20s, %s", kPaths[p] ? kPaths[p] : "BAD", kFlags[f].name);
      const int flags = kFlags[f].value;
      static const char* const kNames[] = {"open", "open64"};
      static const char* const kAt[] = {"openat", "openat64"};
      if (kPaths[p] == NULL) {
        IN_CHILD(CALL(INT, kNames[f % 2], note, path, flags, 0640));
        IN_CHILD(CALL(INT, kAt[f % 2], note, AT_FDCWD, path, flags, 0640));
        continue;
      }
      scenery();
      note_open(CALL(INT, kNames[f % 2], note, path, flags, 0640));
      scenery();
      note_open(CALL(INT, kNames[1 - f % 2], note, path, flags, 0600));
      scenery();
      note_open(CALL(INT, kAt[f % 2], note, AT_FDCWD, path, flags, 0640));
      scenery();
      note_open(CALL(INT, kAt[1 - f % 2], note, (f % 3 == 0) ? dir : (f % 3 == 1) ? -1 : 9999, path, flags, 0640));
      if (!(flags & O_CREAT) && (flags & O_TMPFILE) != O_TMPFILE) {
        scenery();
        note_open(CALL(INT, f % 2 ? "__open_2" : "__open64_2", note, path, flags));
        note_open(CALL(INT, f % 2 ? "__openat64_2" : "__openat_2", note, AT_FDCWD, path, flags));
      }
    }
  for (int p = 0; p < 10; ++p) {
    scenery();
    const long path = kPaths[p] ? P(kPaths[p]) : BAD;
    note_open(CALL(INT, "creat", kPaths[p] ? kPaths[p] : "BAD", path, 0600));
    note_open(CALL(INT, "creat64", kPaths[p] ? kPaths[p] : "BAD", path, 0600));
  }
  bare_close(dir);
  scenery();
}

static int kClosed;  // a number that was open once

static void descriptors(void) {
  const int file = bare_open("file", O_RDWR);
  const int numbers[] = {file, -1, 9999, kClosed, INT_MAX};
  char note[100];
  for (int i = 0; i < 5; ++i) {
    snprintf(note, sizeof note, "%d", numbers[i]);
    const long copy = CALL(INT, "dup", note, numbers[i]);
    if (copy >= 0) CALL(INT, "close", "copy", copy), CALL(INT, "close", "copy again", copy);
    for (int j = 0; j < 4; ++j) {
      const int to[] = {50, -1, 1 << 30, numbers[i]};
      snprintf(note, sizeof note, "%d, %d", numbers[i], to[j]);
      CALL(INT, "dup2", note, numbers[i], to[j]);
      CALL(INT, "dup3", note, numbers[i], to[j], O_CLOEXEC);
      CALL(INT, "dup3", note, numbers[i], to[j], 0x7777);
    }
    bare_close(50);
    const int commands[] = {F_GETFD, F_GETFL, F_DUPFD, F_DUPFD_CLOEXEC, F_SETFD, F_SETFL, F_GETPIPE_SZ, F_GETLK, 9999};
    for (int j = 0; j < 9; ++j) {
      struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
      const long arguments[] = {0, 0, 60, 61, FD_CLOEXEC, O_APPEND | O_NONBLOCK, 0, P(&lock), 0};
      snprintf(note, sizeof note, "%d, %d", numbers[i], commands[j]);
      const long got = CALL(INT, j % 2 ? "fcntl" : "fcntl64", note, numbers[i], commands[j], arguments[j]);
      if (got >= 60) bare_close((int)got);
    }
    CALL(INT, "fcntl", "F_SETLK of a bad address", numbers[i], F_SETLK, BAD);
    CALL(INT, "fcntl64", "F_DUPFD below zero", numbers[i], F_DUPFD, -1);
    CALL(INT, "close", "a number", numbers[i] == file ? -7 : numbers[i]);
  }
  state("file", file);
  bare_close(file);
  CALL(INT, "close_range", "upside down", 70, 60, 0);
  CALL(INT, "close_range", "bad flags", 60, 70, 0x7777);
  IN_CHILD({
    const int some = bare_open("other", O_RDONLY);
    for (int i = 60; i < 70; ++i) syscall(SYS_dup3, some, i, 0);
    CALL(INT, "close_range", "60 to 64", 60, 64, 0);
    CALL(INT, "close_range", "65 to 66, cloexec", 65, 66, 4);
    for (int i = 58; i < 72; ++i) state("descriptor", i);
    CALL(NOTHING, "closefrom", "67", 67);
    for (int i = 64; i < 72; ++i) state("descriptor", i);
    CALL(INT, "close_range", "everything", 3, ~0u, 0);
    const int now = bare_open("file", O_RDONLY);
    say("  the next descriptor is %d\n", now);
    char text[8];
    CALL(LONG, "read", "after everything was closed", now, P(text), 8);
  });
  for (int i = 0; i < 6; ++i) {
    static const int kDomain[] = {AF_UNIX, AF_INET, AF_INET6, 9999, -1, AF_UNIX};
    static const int kType[] = {SOCK_STREAM, SOCK_DGRAM | SOCK_NONBLOCK, SOCK_STREAM | SOCK_CLOEXEC, SOCK_STREAM, 1, 99};
    snprintf(note, sizeof note, "case %d", i);
    long fd = CALL(INT, "socket", note, kDomain[i], kType[i], 0);
    bare_close((int)fd);
    int two[2] = {-5, -5};
    if (CALL(INT, "socketpair", note, kDomain[i], kType[i], 0, P(two)) == 0) {
      say("  %d %d\n", two[0], two[1]);
      bare_close(two[0]), bare_close(two[1]);
    }
    two[0] = two[1] = -5;
    static const int kPipe[] = {0, O_NONBLOCK, O_CLOEXEC, O_DIRECT, 0x7777, -1};
    if (CALL(INT, "pipe2", note, P(two), kPipe[i]) == 0) {
      state("read end", two[0]), state("write end", two[1]);
      bare_close(two[0]), bare_close(two[1]);
    }
    static const int kEvent[] = {0, EFD_NONBLOCK, EFD_SEMAPHORE, EFD_CLOEXEC, 0x7777, -1};
    fd = CALL(INT, "eventfd", note, i, kEvent[i]);
    bare_close((int)fd);
    static const unsigned kMemory[] = {0, MFD_CLOEXEC, MFD_ALLOW_SEALING, 0x7777, ~0u, 1};
    fd = CALL(INT, "memfd_create", note, P(i == 5 ? kLong : "memory"), kMemory[i]);
    if (fd >= 0) state("memory", (int)fd), bare_close((int)fd);
  }
  int two[2];
  if (CALL(INT, "pipe", "good", P(two)) == 0) bare_close(two[0]), bare_close(two[1]);
  CALL(INT, "pipe", "BAD", BAD);
  CALL(INT, "pipe2", "BAD", BAD, 0);
  CALL(INT, "socketpair", "BAD", AF_UNIX, SOCK_STREAM, 0, BAD);
  CALL(INT, "memfd_create", "BAD", BAD, 0);
}

// file, empty, directory, only written, only read, closed, negative, empty pipe, pipe without writer, eventfd, path
static int ends[16], ends_count, spare[8], spare_count;
static void make_ends(void) {
  scenery();
  fresh("empty", "");
  int quiet[2], over[2];
  pipe2(quiet, O_NONBLOCK);
  pipe2(over, O_NONBLOCK);
  bare_close(over[1]);
  int list[] = {bare_open("file", O_RDWR), bare_open("empty", O_RDWR), bare_open("dir", O_RDONLY | O_DIRECTORY),
                bare_open("other", O_WRONLY), bare_open("other", O_RDONLY), kClosed, -1, quiet[0], over[0],
                (int)syscall(SYS_eventfd2, 0, O_NONBLOCK), bare_open("file", O_PATH), bare_open("/dev/zero", O_RDWR),
                quiet[1], bare_open("file", O_RDWR | O_APPEND)};
  ends_count = sizeof list / sizeof *list;
  memcpy(ends, list, sizeof list);
}
static void drop_ends(void) {
  for (int i = 0; i < ends_count; ++i)
    if (ends[i] != kClosed) bare_close(ends[i]);
}

static void moving(const char* name, int writes, int offset, int vector, int last) {
  char note[120], bytes[4096];
  make_ends();
  for (int e = 0; e < ends_count; ++e)
    for (int c = 0; c < 7; ++c) {
      static const long kSizes[] = {10, 0, 1, 4096, 10, 10, 10};
      static const long kOffsets[] = {0, 3, 30, 4000, -1, 0, 0x7ffffffffffffff0};
      memset(bytes, 'A' + c, sizeof bytes);
      struct iovec pieces[3] = {{bytes, 3}, {NULL, 0}, {bytes + 10, (size_t)kSizes[c]}};
      long where = P(bytes), size = kSizes[c];
      if (vector) where = P(pieces), size = c == 1 ? 0 : c == 4 ? -1 : 3;
      if (c == 5) where = BAD;
      const int checked = strstr(name, "_chk") != NULL;
      snprintf(note, sizeof note, "end %d, case %d", e, c);
      const long fourth = checked && !offset ? (long)sizeof bytes : kOffsets[c];
      const long fifth = checked ? (long)sizeof bytes : c == 2 ? last : 0;
      const long got = CALL(LONG, name, note, ends[e], where, size, fourth, fifth);
      if (!writes && got > 0 && e != 11) say("  %.*s\n", (int)(got > 12 ? 12 : got), vector ? pieces[0].iov_base : bytes);
      if (writes && e == 9 && got > 0) syscall(SYS_read, ends[9], bytes, 8);
      if (writes && e == 12)
        while (syscall(SYS_read, ends[7], bytes, sizeof bytes) > 0) continue;
      if (e != 11 && (got > 0 || c == 6)) state("then", ends[e]);
    }
  drop_ends();
}

static void bytes(void) {
  moving("read", 0, 0, 0, 0);
  moving("__read_chk", 0, 0, 0, 0);
  moving("pread", 0, 1, 0, 0);
  moving("pread64", 0, 1, 0, 0);
  moving("__pread_chk", 0, 1, 0, 0);
  moving("__pread64_chk", 0, 1, 0, 0);
  moving("readv", 0, 0, 1, 0);
  moving("preadv", 0, 1, 1, 0);
  moving("preadv64", 0, 1, 1, 0);
  moving("preadv2", 0, 1, 1, 0x7777);
  moving("preadv64v2", 0, 1, 1, 8 /* RWF_NOWAIT */);
  moving("write", 1, 0, 0, 0);
  moving("pwrite", 1, 1, 0, 0);
  moving("pwrite64", 1, 1, 0, 0);
  moving("writev", 1, 0, 1, 0);
  moving("pwritev", 1, 1, 1, 0);
  moving("pwritev64", 1, 1, 1, 0);
  moving("pwritev2", 1, 1, 1, 0x10 /* RWF_APPEND */);
  moving("pwritev64v2", 1, 1, 1, 0x7777);
  char small[4];
  IN_CHILD(CALL(LONG, "__read_chk", "more than there is room", 0, P(small), 100, 4));
  IN_CHILD(CALL(LONG, "__pread_chk", "more than there is room", 0, P(small), 100, 0, 4));
  IN_CHILD(CALL(LONG, "__pread64_chk", "more than there is room", 0, P(small), 100, 0, 4));
}

static void files(void) {
  char note[100];
  make_ends();
  for (int e = 0; e < ends_count; ++e) {
    if (e == 11) continue;
    for (int c = 0; c < 8; ++c) {
      static const long kAt[] = {0, 5, -1, 100, LONG_MAX, 3, -2, 1};
      static const int kFrom[] = {SEEK_SET, SEEK_CUR, SEEK_SET, SEEK_END, SEEK_SET, SEEK_DATA, SEEK_END, 99};
      snprintf(note, sizeof note, "end %d, case %d", e, c);
      CALL(LONG, c % 2 ? "lseek" : "lseek64", note, ends[e], kAt[c], kFrom[c]);
      CALL(INT, "posix_fadvise", note, ends[e], 0, kAt[c], c);
      CALL(INT, "posix_fadvise64", note, ends[e], kAt[c], 0, c - 1);
      CALL(INT, "sync_file_range", note, ends[e], kAt[c], c, c);
      if (c < 5) CALL(LONG, "readahead", note, ends[e], kAt[c], 4096);
      static const long kSizes[] = {10, 60, -1, 0, LONG_MAX, 2, -2, 100};
      CALL(INT, c % 2 ? "ftruncate" : "ftruncate64", note, ends[e], kSizes[c]);
      if (kSizes[c] < 1000) {
        CALL(INT, c % 2 ? "fallocate" : "fallocate64", note, ends[e], c == 3 ? 0x7777 : c == 5 ? 1 : 0, kAt[c] % 1000, kSizes[c]);
        CALL(INT, c % 2 ? "posix_fallocate" : "posix_fallocate64", note, ends[e], kAt[c] % 1000, kSizes[c]);
      }
    }
    CALL(INT, "fsync", note, ends[e]);
    CALL(INT, "fdatasync", note, ends[e]);
    state("then", ends[e]);
  }
  for (int from = 0; from < 9; ++from)
    for (int to = 0; to < ends_count; to += 3) {
      int64_t at = from, until = 2;
      snprintf(note, sizeof note, "%d to %d", from, to);
      CALL(LONG, from % 2 ? "sendfile" : "sendfile64", note, ends[to], ends[from], from % 3 ? P(&at) : 0, 7);
      CALL(LONG, "copy_file_range", note, ends[from], P(&at), ends[to], P(&until), 5, to == 3 ? 0x7777 : 0);
      CALL(LONG, "splice", note, ends[from], 0, ends[to], 0, 5, 2 /* NONBLOCK */);
      say("  at %ld, %ld\n", (long)at, (long)until);
      state("to", ends[to] == ends[11] ? -1 : ends[to]);
    }
  CALL(LONG, "sendfile", "BAD offset", ends[1], ends[0], BAD, 5);
  CALL(LONG, "copy_file_range", "BAD offset", ends[0], BAD, ends[1], 0, 5, 0);
  CALL(LONG, "splice", "BAD offset", ends[0], BAD, ends[12], 0, 5, 2);
  drop_ends();
  for (int p = 0; p < 10; ++p)
    for (int c = 0; c < 4; ++c) {
      static const long kSizes[] = {5, 0, -1, 2000};
      scenery();
      snprintf(note, sizeof note, "%.20s, %ld", kPaths[p] ? kPaths[p] : "BAD", kSizes[c]);
      const long path = kPaths[p] ? P(kPaths[p]) : BAD;
      IN_CHILD(CALL(INT, c % 2 ? "truncate" : "truncate64", note, path, kSizes[c]));
      const int file = bare_open("file", O_RDONLY);
      if (kPaths[p]) state("then", file);
      bare_close(file);
    }
}

static void memory(void) {
  char note[100];
  scenery();
  const int file = bare_open("file", O_RDWR), readable = bare_open("file", O_RDONLY);
  for (int c = 0; c < 12; ++c) {
    static const long kSizes[] = {4096, 0, 4096, 4096, 1, 4096, 4096, -1, 65536, 4096, 4096, 100};
    const int protect = c == 3 ? PROT_NONE : PROT_READ | PROT_WRITE;
    const int flags = c == 2 ? MAP_SHARED : c == 5 ? 0 : c == 6 ? MAP_SHARED | MAP_ANONYMOUS : c < 4 ? MAP_PRIVATE | MAP_ANONYMOUS : c == 9 ? MAP_SHARED : MAP_PRIVATE;
    const int fd = c < 2 || c == 3 || c == 6 ? -1 : c == 9 ? readable : c == 10 ? kClosed : file;
    const long offset = c == 4 ? 3 : c == 8 ? 4096 : 0;
    snprintf(note, sizeof note, "case %d", c);
    const long at = CALL(POINTER, c % 2 ? "mmap" : "mmap64", note, 0, kSizes[c], protect, flags, fd, offset);
    const long length = kSizes[c] > 0 ? kSizes[c] : 4096;
    const long place = at == -1 ? BAD : at;
    CALL(INT, "msync", note, place, length, c % 3 == 0 ? MS_SYNC : c % 3 == 1 ? MS_ASYNC : 0x7777);
    CALL(INT, "madvise", note, place, length, c % 4 == 0 ? MADV_WILLNEED : c % 4 == 1 ? MADV_DONTNEED : c % 4 == 2 ? 9999 : MADV_SEQUENTIAL);
    CALL(INT, "munmap", note, at == -1 ? 16 : at, length);
    CALL(INT, "munmap", "zero bytes", at == -1 ? 16 : at, 0);
  }
  const long page = CALL(POINTER, "mmap", "shared", 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page != -1) memcpy((void*)page, "through the mapping", 19);
  CALL(INT, "msync", "shared", page, 4096, MS_SYNC);
  CALL(INT, "munmap", "shared", page, 4096);
  state("file", file);
  bare_close(file), bare_close(readable);
}

static void show(const struct stat* facts) {
  say("  mode %o, links %ld, size %ld\n", facts->st_mode, (long)facts->st_nlink, (long)facts->st_size);
}

static void names(void) {
  char note[120];
  scenery();
  const int dir = bare_open("dir", O_RDONLY | O_DIRECTORY), file = bare_open("file", O_RDWR);
  static const char* const kBy[] = {"stat", "stat64", "lstat", "lstat64"};
  static const char* const kAt[] = {"fstatat", "fstatat64"};
  static const char* const kOld[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"};
  for (int p = 0; p < 10; ++p) {
    const long path = kPaths[p] ? P(kPaths[p]) : BAD;
    const char* name = kPaths[p] ? kPaths[p] : "BAD";
    struct stat facts;
    snprintf(note, sizeof note, "%.20s", name);
    for (int i = 0; i < 4; ++i) {
      if (CALL(INT, kBy[i], note, path, P(&facts)) == 0) show(&facts);
      IN_CHILD(if (CALL(INT, kOld[i], note, i == 3 ? 3 : 1, path, P(&facts)) == 0) show(&facts));
      IN_CHILD(CALL(INT, kOld[i], note, 99, path, P(&facts)));
      IN_CHILD(CALL(INT, kBy[i], "into a bad address", path, BAD));
      if (i < 2)
        for (int c = 0; c < 4; ++c) {
          static const int kHow[] = {0, AT_SYMLINK_NOFOLLOW, 0x7fff0000, AT_EMPTY_PATH};
          const int from = c == 2 ? -1 : c == 1 ? dir : AT_FDCWD;
          IN_CHILD(if (CALL(INT, kAt[i], note, from, path, P(&facts), kHow[c]) == 0 && path != P("")) show(&facts));
          IN_CHILD(if (CALL(INT, i ? "__fxstatat64" : "__fxstatat", note, 1, from, path, P(&facts), kHow[c]) == 0) show(&facts));
          struct statx more;
          IN_CHILD(if (CALL(INT, "statx", note, from, path, kHow[c], c == 3 ? 0x80000000u : STATX_BASIC_STATS, P(&more)) == 0)
                       say("  size %ld\n", (long)more.stx_size));
        }
    }
    IN_CHILD(CALL(INT, "unlink", note, path));
    scenery();
    IN_CHILD(CALL(INT, "remove", note, path));
    scenery();
    IN_CHILD(CALL(INT, "rmdir", note, path));
    scenery();
    for (int c = 0; c < 4; ++c) {
      static const int kHow[] = {0, AT_REMOVEDIR, 0x7fff0000, 0};
      IN_CHILD(CALL(INT, "unlinkat", note, c == 3 ? -1 : AT_FDCWD, path, kHow[c]));
      scenery();
    }
    for (int q = 0; q < 10; ++q) {
      const long other = kPaths[q] ? P(kPaths[q]) : BAD;
      snprintf(note, sizeof note, "%.20s, %.20s", name, kPaths[q] ? kPaths[q] : "BAD");
      IN_CHILD(CALL(INT, "rename", note, path, other));
      scenery();
      IN_CHILD(CALL(INT, "renameat", note, q % 2 ? AT_FDCWD : dir, path, q % 3 ? AT_FDCWD : -1, other));
      scenery();
      IN_CHILD(CALL(INT, "renameat2", note, AT_FDCWD, path, AT_FDCWD, other, q < 5 ? 1 << (q % 3) : q == 5 ? 3 : q == 6 ? 0x7777 : 0));
      scenery();
    }
    snprintf(note, sizeof note, "%.20s", name);
    IN_CHILD(CALL(INT, "mkdir", note, path, 0711));
    IN_CHILD(CALL(INT, "mkdirat", note, p % 2 ? dir : -1, path, 0711));
    scenery();
    IN_CHILD(CALL(POINTER, "opendir", note, path));
    DIR* list = kPaths[p] ? (DIR*)CALL(POINTER, "opendir", note, path) : NULL;
    if (list != NULL) {
      int entries = 0;
      errno = 0;
      while (found("readdir")(P(list), 0, 0, 0, 0, 0, 0) != 0) ++entries, ++calls_count;
      say("readdir = %d entries, errno %d\n", entries, errno);
      rewinddir(list);
      CALL(POINTER, "readdir64", "first", P(list));
      CALL(INT, "closedir", note, P(list));
    }
    struct dirent** entries = NULL;
    IN_CHILD({
      const long got = CALL(INT, p % 2 ? "scandir" : "scandir64", note, path, P(&entries), 0, P(alphasort));
      for (long i = 0; i < got; ++i) say("  %s\n", entries[i]->d_name);
    });
  }
  struct stat facts;
  const int numbers[] = {file, dir, -1, kClosed, 9999};
  for (int i = 0; i < 5; ++i) {
    snprintf(note, sizeof note, "number %d", i);
    static const char* const kOf[] = {"fstat", "fstat64"};
    for (int c = 0; c < 2; ++c) {
      if (CALL(INT, kOf[c], note, numbers[i], P(&facts)) == 0 && i == 0) show(&facts);
      IN_CHILD(CALL(INT, kOf[c], "into a bad address", numbers[i], BAD));
      if (CALL(INT, c ? "__fxstat64" : "__fxstat", note, 1, numbers[i], P(&facts)) == 0 && i == 0) show(&facts);
      CALL(INT, c ? "__fxstat64" : "__fxstat", "another version", 99, numbers[i], P(&facts));
    }
    DIR* list = (DIR*)CALL(POINTER, "fdopendir", note, i == 1 ? dup(dir) : numbers[i]);
    if (list != NULL) CALL(INT, "closedir", note, P(list));
  }
  IN_CHILD(CALL(INT, "closedir", "NULL", 0));
  // A file without a name, and a name that is a folder by now.
  syscall(SYS_unlinkat, AT_FDCWD, "file", 0);
  state("unlinked", file);
  CALL(INT, "fstat", "unlinked", file, P(&facts));
  show(&facts);
  CALL(LONG, "write", "unlinked", file, P("more"), 4);
  state("unlinked", file);
  bare_close(dir), bare_close(file);
  scenery();
}

#include "conformance_programs.h"
#include "conformance_streams.h"

int main(void) {
  memset(kLong, 'n', sizeof kLong - 1);
  signal(SIGPIPE, SIG_IGN);
  umask(022);
  kClosed = bare_open("/dev/null", O_RDONLY);
  bare_close(kClosed);
  kClosed += 40;
  static const struct { const char* name; void (*run)(void); } kGroups[] = {
      {"opens", opens}, {"descriptors", descriptors}, {"bytes", bytes}, {"files", files}, {"memory", memory},
      {"names", names}, {"streams", streams}, {"sockets", sockets}, {"waits", waits}, {"limits", limits},
      {"programs", programs}, {"sandboxes", sandboxes}};
  for (size_t i = 0; i < sizeof kGroups / sizeof *kGroups; ++i) {
    say("== %s\n", kGroups[i].name);
    scenery();
    kGroups[i].run();
  }
  say("== %ld calls\n", calls_count);
  return 0;
}
