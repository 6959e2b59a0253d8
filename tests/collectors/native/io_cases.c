// Every hooked I/O call once, with good and bad arguments. SPDX-License-Identifier: Apache-2.0
//
//   io_cases FOLDER
//
// Each case works on its own file FOLDER/case-NAME (10,000 bytes, made by raw system calls, which are not recorded),
// so the test can say what the trace must hold for that path. Every result and errno is printed: the text must be
// the same with and without the recorder. No case may depend on descriptor numbers or addresses.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char buffer[20000];
static struct iovec two[2] = {{buffer, 100}, {buffer + 100, 50}};
static int out_fd;  // printing does not pass through the hooks

static void show(const char* call, long result) {
  char line[200];
  const int error = errno;
  const int length = snprintf(line, sizeof line, "%s %ld %d\n", call, result, result < 0 ? error : 0);
  syscall(SYS_write, out_fd, line, length);
  errno = 0;
}
#define SHOW(call) show(#call, (long)(call))
#define SHOW_GOOD(call) ((call) >= 0 ? show(#call " ok", 0) : show(#call, -1))

extern int __open_2(const char*, int), __open64_2(const char*, int);
extern int __openat_2(int, const char*, int), __openat64_2(int, const char*, int);
extern ssize_t __read_chk(int, void*, size_t, size_t), __pread_chk(int, void*, size_t, off_t, size_t);
extern ssize_t __pread64_chk(int, void*, size_t, off64_t, size_t);
extern size_t __fread_chk(void*, size_t, size_t, size_t, FILE*), __fread_unlocked_chk(void*, size_t, size_t, size_t, FILE*);
extern char *__fgets_chk(char*, size_t, int, FILE*), *__fgets_unlocked_chk(char*, size_t, int, FILE*);
extern ssize_t __getdelim(char**, size_t*, int, FILE*);
extern int __xstat(int, const char*, struct stat*), __lxstat(int, const char*, struct stat*), __fxstat(int, int, struct stat*);
extern int __xstat64(int, const char*, struct stat64*), __lxstat64(int, const char*, struct stat64*);
extern int __fxstat64(int, int, struct stat64*), __fxstatat(int, int, const char*, struct stat*, int);
extern int __fxstatat64(int, int, const char*, struct stat64*, int);

static void case_open(const char* p) { SHOW_GOOD(open(p, O_RDONLY)); }
static void case_open64(const char* p) { SHOW_GOOD(open64(p, O_RDONLY)); }
static void case_openat(const char* p) { SHOW_GOOD(openat(AT_FDCWD, p, O_RDONLY)); }
static void case_openat64(const char* p) { SHOW_GOOD(openat64(AT_FDCWD, p, O_RDONLY)); }
static void case_open_fortified(const char* p) {
  SHOW_GOOD(__open_2(p, O_RDONLY));
  SHOW_GOOD(__open64_2(p, O_RDONLY));
  SHOW_GOOD(__openat_2(AT_FDCWD, p, O_RDONLY));
  SHOW_GOOD(__openat64_2(AT_FDCWD, p, O_RDONLY));
}
static void case_creat(const char* p) {
  SHOW_GOOD(creat(p, 0640));
  SHOW_GOOD(creat64(p, 0640));
}
static void case_create_mode(const char* p) {
  struct stat status;
  syscall(SYS_unlinkat, AT_FDCWD, p, 0);
  umask(0);
  SHOW_GOOD(open(p, O_CREAT | O_EXCL | O_WRONLY, 0751));
  syscall(SYS_newfstatat, AT_FDCWD, p, &status, 0);
  show("mode", status.st_mode & 07777);
  SHOW(open(p, O_CREAT | O_EXCL | O_WRONLY, 0751));
}
static void case_absent(const char* p) {
  syscall(SYS_unlinkat, AT_FDCWD, p, 0);
  SHOW(open(p, O_RDONLY));
  SHOW(stat(p, &(struct stat){0}));
  SHOW(unlink(p));
  SHOW(fopen(p, "r") == NULL);
  SHOW(opendir(p) == NULL);
}
static void case_bad_pointers(const char* p) {
  const int fd = open(p, O_RDONLY);
  SHOW(read(fd, (void*)8, 100));
  SHOW(pread(fd, (void*)8, 100, 0));
  SHOW(readv(fd, (const struct iovec*)8, 2));
  SHOW(open((const char*)8, O_RDONLY));
  SHOW(stat((const char*)8, &(struct stat){0}));
  SHOW(fstat(fd, (struct stat*)8));
  SHOW(read(-1, buffer, 1));
  SHOW(pread(987654, buffer, 1, 0));
  SHOW(close(-1));
  SHOW(lseek(-1, 0, SEEK_SET));
  SHOW(close(fd));
}
static void case_read(const char* p) {
  const int fd = open(p, O_RDONLY);
  SHOW(read(fd, buffer, 100));
  SHOW(__read_chk(fd, buffer, 50, sizeof buffer));
  SHOW(lseek(fd, 5000, SEEK_SET));
  SHOW(read(fd, buffer, 20000));
  SHOW(read(fd, buffer, 100));
  SHOW(lseek64(fd, -10, SEEK_END));
  SHOW(read(fd, buffer, 100));
  SHOW(close(fd));
}
static void case_pread(const char* p) {
  const int fd = open(p, O_RDONLY);
  SHOW(pread(fd, buffer, 100, 200));
  SHOW(pread64(fd, buffer, 100, 300));
  SHOW(__pread_chk(fd, buffer, 100, 400, sizeof buffer));
  SHOW(__pread64_chk(fd, buffer, 100, 500, sizeof buffer));
  SHOW(pread(fd, buffer, 100, -5));
  SHOW(close(fd));
}
static void case_readv(const char* p) {
  const int fd = open(p, O_RDONLY);
  SHOW(readv(fd, two, 2));
  SHOW(preadv(fd, two, 2, 1000));
  SHOW(preadv64(fd, two, 2, 2000));
  SHOW(preadv2(fd, two, 2, 3000, 0));
  SHOW(preadv64v2(fd, two, 2, -1, 0));
  SHOW(read(fd, buffer, 1));
  SHOW(close(fd));
}
static void case_write(const char* p) {
  const int fd = open(p, O_RDWR);
  SHOW(write(fd, buffer, 100));
  SHOW(pwrite(fd, buffer, 100, 200));
  SHOW(pwrite64(fd, buffer, 100, 300));
  SHOW(writev(fd, two, 2));
  SHOW(pwritev(fd, two, 2, 1000));
  SHOW(pwritev64(fd, two, 2, 2000));
  SHOW(pwritev2(fd, two, 2, 3000, 0));
  SHOW(pwritev64v2(fd, two, 2, -1, 0));
  SHOW(write(fd, buffer, 1));
  SHOW(close(fd));
}
static void case_append(const char* p) {
  const int fd = open(p, O_WRONLY | O_APPEND);
  SHOW(write(fd, buffer, 100));
  SHOW(close(fd));
}
static void case_sync(const char* p) {
  const int fd = open(p, O_RDWR);
  SHOW(fsync(fd));
  SHOW(fdatasync(fd));
  SHOW(sync_file_range(fd, 0, 100, 0));
  SHOW(close(fd));
}
static void case_length(const char* p) {
  const int fd = open(p, O_RDWR);
  SHOW(ftruncate(fd, 5000));
  SHOW(ftruncate64(fd, 6000));
  SHOW(truncate(p, 7000));
  SHOW(truncate64(p, 8000));
  SHOW(fallocate(fd, 0, 0, 9000));
  SHOW(fallocate64(fd, 0, 0, 9100));
  SHOW(posix_fallocate(fd, 0, 9200));
  SHOW(posix_fallocate64(fd, 0, 9300));
  SHOW(posix_fallocate(fd, -1, 1));
  SHOW(close(fd));
}
static void case_advice(const char* p) {
  const int fd = open(p, O_RDONLY);
  SHOW(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED));
  SHOW(posix_fadvise64(fd, 0, 0, POSIX_FADV_NORMAL));
  SHOW(posix_fadvise(fd, 0, 0, 99));
  SHOW(readahead(fd, 0, 4096));
  SHOW(close(fd));
}
static void case_stat(const char* p) {
  struct stat s;
  struct stat64 s64;
  struct statx sx;
  const int fd = open(p, O_RDONLY);
  SHOW(stat(p, &s));
  SHOW(stat64(p, &s64));
  SHOW(lstat(p, &s));
  SHOW(lstat64(p, &s64));
  SHOW(fstat(fd, &s));
  SHOW(fstat64(fd, &s64));
  SHOW(fstatat(AT_FDCWD, p, &s, 0));
  SHOW(fstatat64(AT_FDCWD, p, &s64, 0));
  SHOW(statx(AT_FDCWD, p, 0, STATX_SIZE, &sx));
  SHOW(fstatat(fd, "", &s, AT_EMPTY_PATH));
  SHOW(close(fd));
}
#if defined(__x86_64__)
enum { kVersion = 1 };  // of struct stat
#else
enum { kVersion = 0 };
#endif
static void case_xstat(const char* p) {
  struct stat s;
  struct stat64 s64;
  const int fd = open(p, O_RDONLY);
  SHOW(__xstat(kVersion, p, &s));
  SHOW(__xstat64(kVersion, p, &s64));
  SHOW(__lxstat(kVersion, p, &s));
  SHOW(__lxstat64(kVersion, p, &s64));
  SHOW(__fxstat(kVersion, fd, &s));
  SHOW(__fxstat64(kVersion, fd, &s64));
  SHOW(__fxstatat(kVersion, AT_FDCWD, p, &s, 0));
  SHOW(__fxstatat64(kVersion, AT_FDCWD, p, &s64, 0));
  SHOW(close(fd));
}
static void case_mmap(const char* p) {
  const int fd = open(p, O_RDWR);
  char* a = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char* b = mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 4096);
  show("maps", a != MAP_FAILED && b != MAP_FAILED);
  SHOW(madvise(a, 10000, MADV_SEQUENTIAL));
  SHOW(msync(a, 10000, MS_SYNC));
  SHOW(munmap(a, 10000));
  SHOW(munmap(b, 4096));
  SHOW(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 17) == MAP_FAILED);
  SHOW(close(fd));
}
static void case_between(const char* p) {
  const int in = open(p, O_RDONLY), out = memfd_create("copy", 0);
  off_t at = 100;
  loff_t from = 300;
  int pair[2];
  show("pipe", pipe(pair));
  SHOW(sendfile(out, in, &at, 200));
  SHOW(sendfile64(out, in, NULL, 150));
  SHOW(read(in, buffer, 10));
  SHOW(splice(in, &from, pair[1], NULL, 500, 0));
  SHOW(splice(pair[0], NULL, out, NULL, 500, 0));
  SHOW(close(in));
  close(out), close(pair[0]), close(pair[1]);
}
static void case_copy_range(const char* p) {
  char target[4200];
  snprintf(target, sizeof target, "%s-to", p);
  const int in = open(p, O_RDONLY), out = open(target, O_RDWR | O_CREAT, 0600);
  loff_t from = 50;
  SHOW(copy_file_range(in, &from, out, NULL, 200, 0));
  SHOW(copy_file_range(in, NULL, out, NULL, 300, 0));
  SHOW(read(in, buffer, 1));
  SHOW(close(in));
  close(out);
}
static void case_stdio_read(const char* p) {
  char* line = NULL;
  size_t room = 0;
  FILE* f = fopen(p, "r");
  SHOW(fread(buffer, 10, 30, f));
  SHOW(fread_unlocked(buffer, 1, 100, f));
  SHOW(__fread_chk(buffer, sizeof buffer, 1, 100, f));
  SHOW(__fread_unlocked_chk(buffer, sizeof buffer, 1, 100, f));
  SHOW(fseek(f, 0, SEEK_SET));
  SHOW(fgets(buffer, 50, f) != NULL);
  SHOW(fgets_unlocked(buffer, 50, f) != NULL);
  SHOW(__fgets_chk(buffer, sizeof buffer, 50, f) != NULL);
  SHOW(__fgets_unlocked_chk(buffer, sizeof buffer, 50, f) != NULL);
  SHOW(getline(&line, &room, f));
  SHOW(getdelim(&line, &room, '\n', f));
  SHOW(__getdelim(&line, &room, '\n', f));
  SHOW(fseeko(f, 10, SEEK_SET));
  SHOW(fseeko64(f, 20, SEEK_SET));
  rewind(f);
  SHOW(fseek(f, 0, SEEK_END));
  SHOW(fgets(buffer, 50, f) != NULL);
  SHOW(fseek(f, -1, SEEK_SET));
  SHOW(fclose(f));
  free(line);
}
static void case_stdio_write(const char* p) {
  FILE* f = fopen64(p, "r+");
  SHOW(fwrite(buffer, 10, 30, f));
  SHOW(fwrite_unlocked(buffer, 1, 30, f));
  SHOW(fputs("twelve bytes", f) >= 0);
  SHOW(fputs_unlocked("five!", f) >= 0);
  SHOW(fflush(f));
  SHOW(fflush_unlocked(f));
  SHOW(fclose(f));
}
static void case_stdio_descriptor(const char* p) {
  const int fd = open(p, O_RDONLY);
  FILE* f = fdopen(fd, "r");
  SHOW(fread(buffer, 1, 10, f));
  SHOW(fclose(f));
  f = fopen("/dev/null", "w");
  f = freopen(p, "r", f);
  SHOW(fread(buffer, 1, 20, f));
  SHOW(fclose(f));
}
static void case_memory_stream(const char* p) {
  (void)p;
  FILE* f = fmemopen(buffer, 100, "w+");
  SHOW(fwrite("abc", 1, 3, f));
  SHOW(fclose(f));
}
static void case_unlink(const char* p) { SHOW(unlink(p)); }
static void case_unlinkat(const char* p) { SHOW(unlinkat(AT_FDCWD, p, 0)); }
static void case_remove(const char* p) { SHOW(remove(p)); }
static void case_folder(const char* p) {
  struct dirent** names;
  char inner[4200];
  syscall(SYS_unlinkat, AT_FDCWD, p, 0);
  SHOW(mkdir(p, 0755));
  snprintf(inner, sizeof inner, "%s/inner", p);
  syscall(SYS_mkdirat, AT_FDCWD, inner, 0755);
  DIR* d = opendir(p);
  int entries = 0;
  errno = 0;
  while (readdir(d) != NULL) ++entries;
  show("entries", entries);
  show("errno", errno);
  rewinddir(d);
  SHOW(readdir64(d) != NULL);
  SHOW(closedir(d));
  const int fd = open(p, O_RDONLY | O_DIRECTORY);
  d = fdopendir(fd);
  SHOW(readdir(d) != NULL);
  SHOW(closedir(d));
  SHOW(scandir(p, &names, NULL, alphasort));
  SHOW(scandir64(p, (struct dirent64***)&names, NULL, NULL));
  SHOW(rmdir(p));
  syscall(SYS_unlinkat, AT_FDCWD, inner, AT_REMOVEDIR);
  SHOW(rmdir(p));
}
static void case_rename(const char* p) {
  char other[4200];
  snprintf(other, sizeof other, "%s-renamed", p);
  SHOW(rename(p, other));
  syscall(SYS_renameat, AT_FDCWD, other, AT_FDCWD, p);
  SHOW(renameat(AT_FDCWD, p, AT_FDCWD, other));
  syscall(SYS_renameat, AT_FDCWD, other, AT_FDCWD, p);
  SHOW(renameat2(AT_FDCWD, p, AT_FDCWD, other, 0));
}
static void case_mkdirat(const char* p) {
  syscall(SYS_unlinkat, AT_FDCWD, p, 0);
  SHOW(mkdirat(AT_FDCWD, p, 0700));
  SHOW(mkdirat(AT_FDCWD, p, 0700));
}
static void case_relative(const char* p) {
  const char* name = strrchr(p, '/') + 1;
  char dotted[300];
  snprintf(dotted, sizeof dotted, "./%s", name);
  const int here = open(".", O_RDONLY | O_DIRECTORY);
  const int a = open(name, O_RDONLY), b = open(dotted, O_RDONLY), c = openat(here, name, O_RDONLY);
  SHOW(read(a, buffer, 11));
  SHOW(read(b, buffer, 12));
  SHOW(read(c, buffer, 13));
  SHOW(unlinkat(here, name, 0));
  close(a), close(b), close(c), close(here);
}
// Copies share one position, so it is unknown; lseek tells it again.
static void case_copies(const char* p) {
  const int a = open(p, O_RDONLY);
  const int b = dup(a), c = dup2(a, 900), d = dup3(a, 901, O_CLOEXEC), e = fcntl(a, F_DUPFD, 902);
  SHOW(read(a, buffer, 1));
  SHOW(read(b, buffer, 2));
  SHOW(read(c, buffer, 3));
  SHOW(read(d, buffer, 4));
  SHOW(read(e, buffer, 5));
  SHOW(lseek(e, 0, SEEK_CUR));
  SHOW(fcntl(a, F_GETFD));
  show("dup2 same", dup2(a, a) == a);
  close(a), close(b), close(c), close(d), close(e);
}
// Descriptors 1024 apart are two files (a table that folds numbers would take one for the other).
static void case_high(const char* p) {
  const int low = dup2(open(p, O_RDONLY), 700);
  const int null = open("/dev/null", O_RDONLY);
  const int high = dup2(null, 1724);
  SHOW(pread(low, buffer, 7, 0));
  SHOW(pread(high, buffer, 7, 0));
  SHOW(pread(low, buffer, 8, 0));
  SHOW(close_range(1700, 1800, 0));
  SHOW(pread(high, buffer, 7, 0));
  closefrom(690);
  SHOW(pread(low, buffer, 9, 0));
}
// A descriptor no hook saw being opened: its name is found at the first use.
static void case_inherited(const char* p) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, p, O_RDONLY);
  SHOW(read(fd, buffer, 10));
  SHOW(pread(fd, buffer, 20, 40));
  SHOW(close(fd));
}

static const struct {
  const char* name;
  void (*run)(const char*);
} cases[] = {
#define CASE(name) {#name, case_##name}
    CASE(open), CASE(open64), CASE(openat), CASE(openat64), CASE(open_fortified), CASE(creat), CASE(create_mode),
    CASE(absent), CASE(bad_pointers), CASE(read), CASE(pread), CASE(readv), CASE(write), CASE(append), CASE(sync),
    CASE(length), CASE(advice), CASE(stat), CASE(xstat), CASE(mmap), CASE(between), CASE(copy_range),
    CASE(stdio_read), CASE(stdio_write), CASE(stdio_descriptor), CASE(memory_stream), CASE(unlink), CASE(unlinkat),
    CASE(remove), CASE(folder), CASE(rename), CASE(mkdirat), CASE(relative), CASE(copies), CASE(high), CASE(inherited),
};

int main(int argc, char** argv) {
  if (argc != 2 || chdir(argv[1]) != 0) return 2;
  out_fd = (int)syscall(SYS_dup, 1);
  memset(buffer, '\n', sizeof buffer);
  for (size_t i = 10; i < sizeof buffer; ++i) buffer[i] = i % 20 == 0 ? '\n' : 'x';
  char path[4096];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    snprintf(path, sizeof path, "%s/case-%s", argv[1], cases[i].name);
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    syscall(SYS_write, fd, buffer, 10000);
    syscall(SYS_close, fd);
    show(cases[i].name, 0);
    cases[i].run(path);
  }
  return 0;
}
