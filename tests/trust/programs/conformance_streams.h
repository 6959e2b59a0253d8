// The second half of conformance.c: FILE, sockets, waits, limits. SPDX-License-Identifier: Apache-2.0
#pragma once
#include "calls.h"

static void position(FILE* stream) {
  say("  at %ld, end %d, error %d, number %d\n", ftell(stream), feof(stream), ferror(stream), fileno(stream));
}

static void streams(void) {
  static const char* const kModes[] = {"r", "w", "a+", "r+e", "wx", "zz", "", "rb,ccs=UTF-8"};
  char note[120], text[64];
  for (int p = 0; p < 10; ++p)
    for (int m = 0; m < 8; ++m) {
      scenery();
      snprintf(note, sizeof note, "%.20s, %s", kPaths[p] ? kPaths[p] : "BAD", kModes[m]);
      const long path = kPaths[p] ? P(kPaths[p]) : BAD;
      if (kPaths[p] == NULL) {
        IN_CHILD(CALL(POINTER, m % 2 ? "fopen" : "fopen64", note, path, P(kModes[m])));
        continue;
      }
      FILE* stream = (FILE*)CALL(POINTER, m % 2 ? "fopen" : "fopen64", note, path, P(kModes[m]));
      if (stream != NULL) {
        position(stream);
        CALL(LONG, "fread", note, P(text), 1, 5, P(stream));
        CALL(LONG, "fwrite", note, P("written"), 1, 7, P(stream));
        CALL(INT, "fflush", note, P(stream));
        position(stream);
        CALL(INT, "fclose", note, P(stream));
      }
      if (m < 4) {
        stream = fopen("other", "r");
        stream = (FILE*)CALL(POINTER, m % 2 ? "freopen" : "freopen64", note, path, P(kModes[m]), P(stream));
        if (stream != NULL) position(stream), fclose(stream);
      }
    }
  scenery();
  const int file = bare_open("file", O_RDWR), only = bare_open("file", O_RDONLY);
  const int numbers[] = {only, -1, kClosed};
  for (int i = 0; i < 3; ++i)
    for (int m = 0; m < 6; ++m) {
      snprintf(note, sizeof note, "number %d, %s", i, kModes[m]);
      FILE* stream = (FILE*)CALL(POINTER, "fdopen", note, i == 0 ? dup(only) : numbers[i], P(kModes[m]));
      if (stream != NULL) position(stream), CALL(INT, "fclose", note, P(stream));
    }
  bare_close(only);
  FILE* stream = fdopen(file, "r+");
  static const char* const kReads[] = {"fread", "fread_unlocked"};
  static const char* const kLines[] = {"fgets", "fgets_unlocked"};
  for (int i = 0; i < 2; ++i) {
    CALL(NOTHING, "rewind", "", P(stream));
    position(stream);
    memset(text, 0, sizeof text);
    CALL(LONG, kReads[i], "3 of 4", P(text), 4, 3, P(stream));
    CALL(LONG, kReads[i], "none of 4", P(text), 4, 0, P(stream));
    CALL(LONG, kReads[i], "1 of 0", P(text), 0, 1, P(stream));
    say("  %s\n", text);
    CALL(POINTER, kLines[i], "one byte", P(text), 1, P(stream));
    CALL(POINTER, kLines[i], "a line", P(text), 64, P(stream));
    say("  %s\n", text);
    CALL(LONG, i ? "__fread_unlocked_chk" : "__fread_chk", "7", P(text), sizeof text, 1, 7, P(stream));
    CALL(POINTER, i ? "__fgets_unlocked_chk" : "__fgets_chk", "a line", P(text), sizeof text, 20, P(stream));
    say("  %.7s\n", text);
    IN_CHILD(CALL(LONG, i ? "__fread_unlocked_chk" : "__fread_chk", "too many", P(text), 4, 1, 70, P(stream)));
    CALL(LONG, kReads[i], "beyond the end", P(text), 1, 64, P(stream));
    CALL(POINTER, kLines[i], "beyond the end", P(text), 64, P(stream));
    position(stream);
    for (int c = 0; c < 6; ++c) {
      static const long kAt[] = {0, 4, -1, -3, LONG_MAX, 2};
      static const int kFrom[] = {SEEK_SET, SEEK_CUR, SEEK_SET, SEEK_END, SEEK_SET, 99};
      snprintf(note, sizeof note, "case %d", c);
      static const char* const kSeeks[] = {"fseek", "fseeko", "fseeko64"};
      CALL(INT, kSeeks[(c + i) % 3], note, P(stream), kAt[c], kFrom[c]);
      position(stream);
    }
    rewind(stream);
    char* line = NULL;
    size_t room = 0;
    for (int c = 0; c < 6; ++c) {
      static const char* const kGets[] = {"getline", "getdelim", "__getdelim"};
      const int which = (c + i) % 3;
      const long got = which ? CALL(LONG, kGets[which], "up to c", P(&line), P(&room), 'c', P(stream))
                             : CALL(LONG, kGets[which], "", P(&line), P(&room), P(stream));
      if (got > 0) say("  %.*s\n", (int)got, line);
    }
    CALL(LONG, "getline", "no place for it", 0, P(&room), P(stream));
    free(line);
    fseek(stream, 0, SEEK_END);
    CALL(LONG, i ? "fwrite_unlocked" : "fwrite", "2 of 3", P("abcdef"), 3, 2, P(stream));
    CALL(LONG, i ? "fwrite_unlocked" : "fwrite", "none", P("abcdef"), 0, 2, P(stream));
    CALL(INT, i ? "fputs_unlocked" : "fputs", "text", P("put\n"), P(stream));
    CALL(INT, i ? "fputs_unlocked" : "fputs", "nothing", P(""), P(stream));
    state("before", file);
    CALL(INT, i ? "fflush_unlocked" : "fflush", "", P(stream));
    state("after", file);
  }
  CALL(INT, "fflush", "all streams", 0);
  FILE* closed_below = fopen("other", "w");
  fputs("kept back", closed_below);
  bare_close(fileno(closed_below));
  CALL(INT, "fflush", "closed below", P(closed_below));
  CALL(INT, "fclose", "closed below", P(closed_below));
  FILE* readable = fopen("other", "r");
  CALL(LONG, "fwrite", "only readable", P("x"), 1, 1, P(readable));
  CALL(INT, "fputs", "only readable", P("x"), P(readable));
  CALL(INT, "fclose", "only readable", P(readable));
  CALL(INT, "fclose", "", P(stream));
  FILE* folder = fopen("dir", "r");
  if (folder != NULL) {
    CALL(LONG, "fread", "a folder", P(text), 1, 5, P(folder));
    CALL(POINTER, "fgets", "a folder", P(text), 5, P(folder));
    CALL(INT, "fclose", "a folder", P(folder));
  }
}

static void sockets(void) {
  char note[100], text[64];
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  strcpy(name.sun_path, "listening");
  const int server = (int)syscall(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  bind(server, (struct sockaddr*)&name, sizeof name);
  listen(server, 8);
  int pair[2], packets[2], over[2];
  socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
  socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, packets);
  socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, over);
  bare_close(over[1]);
  const int file = bare_open("file", O_RDWR);
  const int numbers[] = {pair[0], packets[0], over[0], file, -1, kClosed, server};
  for (int i = 0; i < 7; ++i) {
    const int fd = numbers[i], other = i == 0 ? pair[1] : i == 1 ? packets[1] : fd;
    for (int c = 0; c < 5; ++c) {
      static const int kHow[] = {0, MSG_PEEK, MSG_DONTWAIT | MSG_NOSIGNAL, MSG_OOB, 0x00800000};
      const long where = c == 3 ? BAD : P(text);
      snprintf(note, sizeof note, "number %d, case %d", i, c);
      struct iovec piece = {"message", 7}, into = {text, sizeof text};
      struct msghdr out = {.msg_iov = &piece, .msg_iovlen = 1}, in = {.msg_iov = &into, .msg_iovlen = 1};
      CALL(LONG, "send", note, other, P("hello"), c == 4 ? 0 : 5, kHow[c] & ~MSG_PEEK);
      CALL(LONG, "sendto", note, other, P("hello"), 5, 0, c == 4 ? P(&name) : 0, c == 4 ? 3 : 0);
      CALL(LONG, "sendmsg", note, other, c == 3 ? BAD : P(&out), 0);
      CALL(LONG, "recv", note, fd, where, 4, kHow[c]);
      CALL(LONG, "__recv_chk", note, fd, where, 4, 64, kHow[c]);
      struct sockaddr_storage from;
      socklen_t length = sizeof from;
      CALL(LONG, "recvfrom", note, fd, where, 4, 0, c == 2 ? BAD : P(&from), P(&length));
      CALL(LONG, "__recvfrom_chk", note, fd, where, 4, 64, 0, 0, 0);
      CALL(LONG, "recvmsg", note, fd, c == 3 ? BAD : P(&in), 0);
      say("  from %u, flags %x\n", (unsigned)length, in.msg_flags);
    }
    struct sockaddr_storage who;
    socklen_t length = sizeof who;
    CALL(INT, "accept", "", fd, P(&who), P(&length));
    CALL(INT, "accept4", "bad flags", fd, 0, 0, 0x7777);
    IN_CHILD(CALL(INT, "connect", "BAD", fd, BAD, sizeof name));
    CALL(INT, "connect", "too short", fd, P(&name), 1);
    int answer = -1;
    length = sizeof answer;
    CALL(INT, "getsockopt", "an error", fd, SOL_SOCKET, SO_ERROR, P(&answer), P(&length));
    CALL(INT, "getsockopt", "BAD", fd, SOL_SOCKET, SO_ERROR, BAD, P(&length));
    CALL(INT, "getsockopt", "no length", fd, SOL_SOCKET, SO_ERROR, P(&answer), 0);
    length = 1;
    CALL(INT, "getsockopt", "short", fd, SOL_SOCKET, SO_TYPE, P(&answer), P(&length));
    say("  answer %d, length %u\n", answer, (unsigned)length);
  }
  for (int c = 0; c < 4; ++c) {  // a connect that does not wait: the answer, too short, without a place for it, twice
    const int client = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const struct sockaddr_in nobody = {
        .sin_family = AF_INET, .sin_port = htons(1), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CALL(INT, "connect", "nobody", client, P(&nobody), sizeof nobody);
    struct pollfd one = {client, POLLOUT, 0};
    syscall(SYS_ppoll, &one, 1, NULL, NULL, 0);
    int answer = -1;
    socklen_t length = c == 1 ? 2 : sizeof answer;
    CALL(INT, "getsockopt", "refused", client, SOL_SOCKET, SO_ERROR, c == 2 ? BAD : P(&answer), P(&length));
    say("  answer %d, length %u\n", answer, (unsigned)length);
    if (c == 3) CALL(INT, "getsockopt", "again", client, SOL_SOCKET, SO_ERROR, P(&answer), P(&length));
    say("  answer %d\n", answer);
    bare_close(client);
  }
  IN_CHILD(CALL(LONG, "__recv_chk", "too many", pair[0], P(text), 65, 64, 0));
  for (int c = 0; c < 3; ++c) {
    const int client = (int)syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
    CALL(INT, "connect", "listening", client, P(&name), sizeof name);
    CALL(INT, "connect", "again", client, P(&name), sizeof name);
    struct sockaddr_storage who;
    socklen_t length = sizeof who;
    const long got = c ? CALL(INT, "accept4", "one waits", server, c == 2 ? BAD : P(&who), P(&length), SOCK_CLOEXEC)
                       : CALL(INT, "accept", "one waits", server, P(&who), P(&length));
    if (got >= 0) say("  length %u\n", (unsigned)length), bare_close((int)got);
    CALL(LONG, "send", "nobody there", client, P("x"), 1, 0);
    bare_close(client);
  }
  bare_close(server), bare_close(pair[0]), bare_close(pair[1]), bare_close(packets[0]), bare_close(packets[1]);
  bare_close(over[0]), bare_close(file);
  syscall(SYS_unlinkat, AT_FDCWD, "listening", 0);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int turn;
static void* wakes(void* unused) {
  pthread_mutex_lock(&mutex);
  turn = 1;
  pthread_cond_broadcast(&condition);
  pthread_mutex_unlock(&mutex);
  sem_post(&semaphore);
  return (void*)123;
}

static void with_a_thread(const char* name, clockid_t clock) {
  struct timespec later;
  clock_gettime(clock, &later);
  later.tv_sec += 600;
  pthread_t other;
  turn = 0;
  CALL(INT, "pthread_mutex_lock", "free", P(&mutex));
  pthread_create(&other, NULL, wakes, NULL);
  while (turn == 0) {
    errno = UNTOUCHED;
    ++calls_count;
    const long value = strcmp(name, "pthread_cond_clockwait") == 0
                           ? found(name)(P(&condition), P(&mutex), clock, P(&later), 0, 0, 0)
                           : found(name)(P(&condition), P(&mutex), P(&later), 0, 0, 0, 0);
    if (value != 0) say("%s = %d\n", name, (int)value);
  }
  say("%s was woken, errno %d\n", name, errno);
  pthread_mutex_unlock(&mutex);
  void* result = NULL;
  CALL(INT, "sem_wait", "posted", P(&semaphore));
  CALL(INT, "pthread_join", "", (long)other, P(&result));
  say("  returned %ld\n", P(result));
}

static void waits(void) {
  struct timespec past = {1, 0}, none = {0, 0}, bad = {0, 2000000000}, long_time = {600, 0}, left;
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_t strict;
  pthread_mutex_init(&strict, &kind);
  sem_init(&semaphore, 0, 0);
  CALL(INT, "pthread_mutex_lock", "strict", P(&strict));
  CALL(INT, "pthread_mutex_lock", "strict again", P(&strict));
  CALL(INT, "pthread_cond_timedwait", "past", P(&condition), P(&strict), P(&past));
  CALL(INT, "pthread_cond_timedwait", "bad time", P(&condition), P(&strict), P(&bad));
  CALL(INT, "pthread_cond_clockwait", "past", P(&condition), P(&strict), CLOCK_MONOTONIC, P(&past));
  CALL(INT, "pthread_cond_clockwait", "bad clock", P(&condition), P(&strict), 99, P(&past));
  pthread_mutex_unlock(&strict);
  CALL(INT, "pthread_cond_broadcast", "nobody waits", P(&condition));
  CALL(INT, "pthread_cond_wait", "not held", P(&condition), P(&strict));
  with_a_thread("pthread_cond_wait", CLOCK_REALTIME);
  with_a_thread("pthread_cond_timedwait", CLOCK_REALTIME);
  with_a_thread("pthread_cond_clockwait", CLOCK_MONOTONIC);
  CALL(INT, "pthread_join", "oneself", (long)pthread_self(), 0);
  CALL(INT, "sem_timedwait", "past", P(&semaphore), P(&past));
  CALL(INT, "sem_timedwait", "bad time", P(&semaphore), P(&bad));
  CALL(INT, "sem_clockwait", "past", P(&semaphore), CLOCK_MONOTONIC, P(&past));
  CALL(INT, "sem_clockwait", "bad clock", P(&semaphore), 99, P(&past));

  int pipe_ends[2];
  pipe2(pipe_ends, O_NONBLOCK);
  const int events = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data = {.fd = 5}}, out[4];
  epoll_ctl(events, EPOLL_CTL_ADD, pipe_ends[0], &event);
  sigset_t all;
  sigfillset(&all);
  for (int full = 0; full < 2; ++full) {
    const char* note = full ? "ready" : "nothing";
    struct pollfd list[3] = {{pipe_ends[0], POLLIN, 0}, {pipe_ends[1], POLLOUT * full, 0}, {kClosed, POLLIN, 0}};
    fd_set set;
    for (int c = 0; c < 2; ++c) {
      CALL(INT, "poll", note, P(list), 2 + c, 0);
      CALL(INT, "ppoll", note, P(list), 2 + c, P(&none), P(&all));
      say("  %d %d %d\n", list[0].revents, list[1].revents, list[2].revents);
      struct timeval now = {0, 0};
      FD_ZERO(&set);
      FD_SET(pipe_ends[0], &set);
      if (c) FD_SET(kClosed % 1024, &set);
      CALL(INT, "select", note, kClosed + 1, P(&set), 0, 0, P(&now));
      FD_ZERO(&set);
      FD_SET(pipe_ends[0], &set);
      CALL(INT, "pselect", note, c ? -1 : pipe_ends[0] + 1, P(&set), 0, 0, P(&none), P(&all));
      CALL(INT, "epoll_wait", note, c ? pipe_ends[0] : events, P(out), 4, 0);
      CALL(INT, "epoll_pwait", note, events, P(out), c ? 0 : 4, 0, P(&all));
      CALL(INT, "epoll_pwait2", note, events, P(out), 4, P(c ? &bad : &none), 0);
    }
    write(pipe_ends[1], "x", 1);
  }
  CALL(INT, "poll", "BAD", BAD, 1, 0);
  CALL(INT, "ppoll", "bad time", 0, 0, P(&bad), 0);
  CALL(INT, "pselect", "bad time", 0, 0, 0, 0, P(&bad), 0);
  CALL(INT, "epoll_wait", "BAD", events, BAD, 4, 0);
  CALL(INT, "nanosleep", "none", P(&none), 0);
  CALL(INT, "nanosleep", "bad time", P(&bad), 0);
  CALL(INT, "nanosleep", "BAD", BAD, 0);
  CALL(INT, "clock_nanosleep", "past", CLOCK_REALTIME, TIMER_ABSTIME, P(&past), 0);
  CALL(INT, "clock_nanosleep", "bad clock", 99, 0, P(&none), 0);
  CALL(INT, "usleep", "none", 0);
  CALL(INT, "sleep", "none", 0);

  // Interrupted: the timer comes again and again, so it does not matter when the call begins.
  int quiet[2], one[2];
  pipe(quiet);
  socketpair(AF_UNIX, SOCK_STREAM, 0, one);
  struct pollfd list = {quiet[0], POLLIN, 0};
  char byte;
  every_20_ms(1);
  CALL(LONG, "read", "interrupted", quiet[0], P(&byte), 1);
  CALL(LONG, "recv", "interrupted", one[0], P(&byte), 1, 0);
  CALL(LONG, "recvmsg", "interrupted", one[0],
       P(&(struct msghdr){.msg_iov = &(struct iovec){&byte, 1}, .msg_iovlen = 1}), 0);
  CALL(INT, "poll", "interrupted", P(&list), 1, 600000);
  CALL(INT, "ppoll", "interrupted", P(&list), 1, P(&long_time), 0);
  CALL(INT, "select", "interrupted", 0, 0, 0, 0, P(&((struct timeval){600, 0})));
  CALL(INT, "pselect", "interrupted", 0, 0, 0, 0, P(&long_time), 0);
  CALL(INT, "epoll_wait", "interrupted", events + 0, P(out), 0, 1);
  const int empty = epoll_create1(0);
  CALL(INT, "epoll_wait", "interrupted", empty, P(out), 4, 600000);
  CALL(INT, "epoll_pwait", "interrupted", empty, P(out), 4, 600000, 0);
  CALL(INT, "epoll_pwait2", "interrupted", empty, P(out), 4, P(&long_time), 0);
  left.tv_sec = -1;
  CALL(INT, "nanosleep", "interrupted", P(&long_time), P(&left));
  say("  something is left: %d\n", left.tv_sec > 0);
  CALL(INT, "clock_nanosleep", "interrupted", CLOCK_MONOTONIC, 0, P(&long_time), P(&left));
  CALL(INT, "usleep", "interrupted", 100000000);
  errno = UNTOUCHED;
  ++calls_count;
  say("sleep(interrupted) leaves something: %d\n", (unsigned)found("sleep")(600, 0, 0, 0, 0, 0, 0) > 500);
  CALL(INT, "sem_wait", "interrupted", P(&semaphore));
  struct timespec later;
  clock_gettime(CLOCK_REALTIME, &later);
  later.tv_sec += 600;
  CALL(INT, "sem_timedwait", "interrupted", P(&semaphore), P(&later));
  const long sleeper = syscall(SYS_fork);
  if (sleeper == 0)
    for (;;) syscall(SYS_pause);
  int status = 0;
  siginfo_t info;
  static const char* const kWaits[] = {"wait", "wait3", "wait4", "waitpid"};
  CALL(INT, "wait", "interrupted", P(&status));
  CALL(INT, "wait3", "interrupted", P(&status), 0, 0);
  CALL(INT, "wait4", "interrupted", sleeper, P(&status), 0, 0);
  CALL(INT, "waitpid", "interrupted", sleeper, P(&status), 0);
  CALL(INT, "waitid", "interrupted", P_PID, sleeper, P(&info), WEXITED);
  every_20_ms(0);
  CALL(INT, "waitpid", "no end yet", sleeper, P(&status), WNOHANG);
  CALL(INT, "waitpid", "bad options", sleeper, P(&status), 0x7777);
  CALL(INT, "waitid", "no end yet", P_PID, sleeper, P(&info), WEXITED | WNOHANG);
  CALL(INT, "waitid", "no options", P_PID, sleeper, P(&info), 0);
  syscall(SYS_kill, sleeper, SIGKILL);
  CALL(INT, "waitid", "left there", P_PID, sleeper, P(&info), WEXITED | WNOWAIT);
  say("  code %d, status %d\n", info.si_code, info.si_status);
  CALL(INT, "wait4", "BAD", sleeper, BAD, 0, 0);
  for (int i = 0; i < 4; ++i) {
    const long child = syscall(SYS_fork);
    if (child == 0) syscall(SYS_exit_group, 10 + i);
    errno = UNTOUCHED;
    ++calls_count;
    struct rusage use;
    const long got = i < 2 ? found(kWaits[i])(P(&status), 0, P(&use), 0, 0, 0, 0)
                           : found(kWaits[i])(child, P(&status), 0, P(&use), 0, 0, 0);
    say("%s = the child: %d, status %#x, errno %d\n", kWaits[i], (int)got == child, status, errno);
  }
  for (int i = 0; i < 2; ++i) CALL(INT, kWaits[i], "no child", P(&status), 0, 0);
  CALL(INT, "wait4", "no child", -1, P(&status), 0, 0);
  CALL(INT, "waitpid", "no child", 999999999, P(&status), 0);
  CALL(INT, "waitid", "no child", P_ALL, 0, P(&info), WEXITED);

  char text[16];
  CALL(LONG, "syscall", "no such call", 9999, 1, 2, 3);
  CALL(LONG, "syscall", "read of a bad number", SYS_read, -1, P(text), 5);
  CALL(LONG, "syscall", "open", SYS_openat, AT_FDCWD, P("missing"), O_RDONLY, 0);
  const long opened = CALL(LONG, "syscall", "open", SYS_openat, AT_FDCWD, P("file"), O_RDONLY, 0);
  CALL(LONG, "syscall", "read", SYS_read, opened, P(text), 5);
  CALL(LONG, "syscall", "read into a bad address", SYS_read, opened, BAD, 5);
  CALL(LONG, "syscall", "close", SYS_close, opened);
  CALL(LONG, "syscall", "a large value", SYS_lseek, quiet[0], -1, 7);
  say("  own number: %d\n", found("syscall")(SYS_getpid, 0, 0, 0, 0, 0, 0) == getpid());
  bare_close(empty), bare_close(events), bare_close(quiet[0]), bare_close(quiet[1]), bare_close(one[0]);
  bare_close(one[1]), bare_close(pipe_ends[0]), bare_close(pipe_ends[1]);
}

// The file-size limit and SIGXFSZ, and a pipe that nobody reads with SIGPIPE as it is by default.
static void limits(void) {
  static const char* const kWrites[] = {"write", "pwrite", "ftruncate", "fallocate", "posix_fallocate", "writev"};
  char many[3000];
  memset(many, 'm', sizeof many);
  struct iovec piece = {many, sizeof many};
  for (int ignored = 0; ignored < 2; ++ignored)
    for (int i = 0; i < 6; ++i) {
      scenery();
      IN_CHILD({
        signal(SIGXFSZ, ignored ? SIG_IGN : SIG_DFL);
        signal(SIGPIPE, SIG_DFL);
        struct rlimit size = {1000, 1000};
        setrlimit(RLIMIT_FSIZE, &size);
        const int fd = bare_open("file", O_RDWR);
        for (int again = 0; again < 2; ++again)
          CALL(LONG, kWrites[i], ignored ? "beyond the limit, ignored" : "beyond the limit", fd,
               i == 2   ? 3000
               : i == 3 ? 0
               : i == 4 ? 0
               : i == 5 ? P(&piece)
                        : P(many),
               i == 3   ? 0
               : i == 4 ? 3000
               : i == 5 ? 1
                        : 3000,
               i == 3 ? 3000 : 0);
        state("file", fd);
      });
      const int fd = bare_open("file", O_RDONLY);
      state("afterwards", fd);
      bare_close(fd);
    }
  IN_CHILD({
    signal(SIGPIPE, SIG_DFL);
    int over[2];
    pipe(over);
    bare_close(over[0]);
    CALL(LONG, "write", "nobody reads", over[1], P("x"), 1);
  });
  IN_CHILD({
    const struct rlimit few = {8, 8};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int i = 0; i < 8; ++i) CALL(INT, "open", "until there are too many", P("file"), O_RDONLY, 0);
    CALL(POINTER, "fopen", "too many", P("file"), P("r"));
    CALL(POINTER, "opendir", "too many", P("dir"));
    CALL(INT, "dup", "too many", 1);
    CALL(INT, "pipe", "too many", P(many));
  });
}
