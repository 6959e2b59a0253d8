// Hooks of exec and posix_spawn: a program that cannot run with our library in front is started without it, and one
// that is given another LD_PRELOAD gets our library as well. SPDX-License-Identifier: Apache-2.0
//
// libc's system() and popen() start /bin/sh without these hooks, and the shell, which is traced, calls them for
// what it starts. Calls by number (syscall(SYS_execve)) are not seen. The hooks run in forked and vfork children and in
// signal handlers: raw system calls, memory from the kernel. Under a filter that it installed the process makes none:
// what it starts passes unchanged, or without our library where that filter would end it (hooks/sandbox.h).
#include <alloca.h>
#include <spawn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string_view>

#include "core/apart.h"
#include "core/config.h"
#include "core/large_stack.h"
#include "core/path_buffer.h"
#include "core/text_buffer.h"
#include "core/user_memory.h"
#include "hooks/exec_target.h"
#include "hooks/interpose.h"
#include "hooks/sandbox.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace real = stashtrace::real;

namespace {

using stashtrace::raw::address;

constexpr std::size_t kMostVariables = 8192;  // of an environment that is copied
constexpr std::size_t kPreloadBytes = 4096;
constexpr std::size_t kMostPath = 4096;
constexpr std::string_view kPreload = "LD_PRELOAD=";
constexpr std::string_view kPlugin = "NCCL_PROFILER_PLUGIN=";
constexpr std::string_view kChain = "STASHTRACE_NCCL_CHAIN=";  // the plugin that the job had
constexpr std::string_view kDescriptors = "/proc/self/fd/";
constexpr std::string_view kDirectory = "STASHTRACE_DIR=";
constexpr const char* kElsewhere = "in a folder that its file actions choose";
constexpr const char* kWithoutPreload = "started without LD_PRELOAD";
constexpr const char* kWithoutDirectory = "started without STASHTRACE_DIR";

// A list of file actions of this process changes the folder. The content of a list is private to libc.
constinit std::atomic<bool> folder_changes = false;

bool is_ours(std::string_view library) noexcept {
  const std::string_view name = library.substr(library.rfind('/') + 1);
  return name == "libstashtrace.so" || name == "libstashtrace_lookup.so";
}

// Calls each(entry) for the entries of a list in LD_PRELOAD.
template <class Each>
void for_each_library(std::string_view list, Each each) noexcept {
  while (!list.empty()) {
    const std::size_t end = list.find_first_of(": ");
    if (end != 0) each(list.substr(0, end));
    list = end == list.npos ? std::string_view{} : list.substr(end + 1);
  }
}

// Our entries of LD_PRELOAD as this process was started; empty if it is not traced, or loaded us in another way.
constinit char own_preload[kPreloadBytes] = {};
constinit std::size_t own_preload_bytes = 0;

__attribute__((constructor)) void remember_preload() noexcept {
  if (stashtrace::variable(environ, "STASHTRACE_DIR").empty()) return;
  stashtrace::TextBuffer own(own_preload, sizeof own_preload);
  for_each_library(stashtrace::variable(environ, "LD_PRELOAD"), [&](std::string_view library) {
    if (is_ours(library)) own.add(own.text().empty() ? "" : ":").add(library);
  });
  own_preload_bytes = own.full() ? 0 : own.text().size();
}

bool names_us(std::string_view list) noexcept {
  bool found = false;
  for_each_library(list, [&](std::string_view library) { found = found || is_ours(library); });
  return found;
}

// Under a filter that the process installed the kernel cannot be asked, so the program's pointers are taken to be good.
bool can_read(const void* address) noexcept {
  return stashtrace::sandboxed() ? address != nullptr : stashtrace::is_readable(address);
}

// Length of a vector that ends in null; kMostVariables + 1 if it is longer, or cannot be read (the kernel will say so).
std::size_t length_of(char* const* vector) noexcept {
  std::size_t count = 0;
  for (; count <= kMostVariables; ++count) {
    // One pointer of a vector may lie across two pages: its last byte is checked.
    const char* last = reinterpret_cast<const char*>(vector + count + 1) - 1;
    if (count % 512 == 0 || (reinterpret_cast<std::uintptr_t>(last) & 4095) < sizeof(char*))
      if (!can_read(vector + count) || !can_read(last)) return kMostVariables + 1;
    if (vector[count] == nullptr) return count;
  }
  return count;
}

constexpr int kAbsent = -1, kNotKnown = -2;

// Index of a variable, given by its name and '='. The kernel reports addresses that cannot be read.
int place_of(char* const* environment, std::size_t count, std::string_view name) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    // The first bytes are enough to skip most variables.
    const std::size_t begin = stashtrace::readable_length<can_read>(environment[i], name.size(), false);
    if (begin == stashtrace::kUnreadable) return kNotKnown;
    if (begin < name.size() || std::memcmp(environment[i], name.data(), begin) != 0) continue;
    const std::size_t length = stashtrace::readable_length<can_read>(environment[i], name.size() + kPreloadBytes, true);
    return length == stashtrace::kUnreadable || length == name.size() + kPreloadBytes ? kNotKnown : static_cast<int>(i);
  }
  return kAbsent;
}

// Memory for an environment, which may be larger than the stack. A vfork child that replaces its program gives nothing
// back: the thread that it shares this memory with does so the next time.
class Copy {
 public:
  explicit Copy(std::size_t bytes) noexcept : bytes_(bytes) {
    const int self = stashtrace::raw::getpid();
    if (left.owner != 0 && left.owner != self && stashtrace::runtime().in_own_process()) {
      stashtrace::raw::munmap(left.start, left.bytes);
      left = {};
    }
    start_ = stashtrace::raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    noted_ = start_ != nullptr && left.owner == 0;
    if (noted_) left = {start_, bytes, self};
  }
  ~Copy() {
    if (noted_) left = {};
    if (start_ != nullptr) stashtrace::raw::munmap(start_, bytes_);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  char* start() const noexcept { return static_cast<char*>(start_); }

 private:
  struct Left {
    void* start;
    std::size_t bytes;
    int owner;
  };
  static constinit thread_local Left left;

  void* start_;
  std::size_t bytes_;
  bool noted_;
};
constinit thread_local Copy::Left Copy::left{};

// Tools of the system's administrator do no work of a job: ctypes.util.find_library() asks /sbin/ldconfig, in an
// environment of its own.
bool is_of_administrator(std::string_view path) noexcept {
  return path.starts_with("/sbin/") || path.starts_with("/usr/sbin/");
}

[[gnu::noinline]] void report_untraced(const char* path, const char* why) noexcept {
  if (stashtrace::sandboxed() || !stashtrace::recording() || is_of_administrator(path)) return;
  stashtrace::PathBuffer buffer;
  char* memory = buffer.text();
  if (memory == nullptr) return (void)stashtrace::runtime().lose_row();
  constexpr std::size_t kDetailBytes = 512, kTargetBytes = 256;
  char* target = memory + kDetailBytes;
  stashtrace::TextBuffer detail(memory, kDetailBytes - 1);
  if (std::strncmp(path, kDescriptors.data(), kDescriptors.size()) == 0) {
    const long bytes = stashtrace::raw::readlink(path, target, kTargetBytes - 1);
    if (bytes > 0) target[bytes] = '\0', path = target;
  }
  const char* slash = std::strrchr(path, '/');
  detail.add(slash != nullptr ? slash + 1 : path).add(" (").add(why).add(")");
  stashtrace::report_loss(0, "started_untraced", 1, detail.c_str(), stashtrace::schema::codes::Severity::info);
}

// As far as the kernel checks before it reads the file.
bool is_program(const char* path) noexcept {
  struct stat status{};
  return stashtrace::raw::call(SYS_newfstatat, AT_FDCWD, address(path), address(&status), 0) == 0 &&
         S_ISREG(status.st_mode) && stashtrace::raw::call(SYS_faccessat, AT_FDCWD, address(path), 1 /* X_OK */) == 0;
}

enum class Found { no, yes, elsewhere };

// The program that libc finds along PATH. `moved`: the folder may be another one by then; relative folders are unknown.
Found search(const char* name, bool moved, char (&buffer)[kMostPath]) noexcept {
  std::string_view folders = stashtrace::variable(environ, "PATH");
  if (folders.data() == nullptr) folders = "/bin:/usr/bin";
  for (;;) {
    const std::size_t end = folders.find(':');
    const std::string_view folder = folders.substr(0, end);
    if (moved && !folder.starts_with('/')) return Found::elsewhere;
    stashtrace::TextBuffer path(buffer, sizeof buffer - 1);
    path.add(folder.empty() ? std::string_view(".") : folder).add("/").add(name);
    path.c_str();
    if (is_program(buffer)) return Found::yes;
    if (end == folders.npos) return Found::no;
    folders.remove_prefix(end + 1);
  }
}

// What is known about a program before it is started.
struct Target {
  Found found = Found::no;
  bool is_program = false;
  const char* why = nullptr;  // it must be started without us
};

// Its file is opened apart (core/apart.h): another thread may put its own descriptor onto the number of ours, and the
// stack may be a small one of signal handlers.
[[gnu::noinline]] Target look_at(const char* name, bool along_path, bool moved) noexcept {
  Target target;
  if (stashtrace::readable_length(name, kMostPath, false) >= kMostPath || *name == '\0') return target;
  if (along_path && std::strchr(name, '/') != nullptr) along_path = false;
  if (!along_path) {
    target.found = moved && *name != '/' ? Found::elsewhere : Found::yes;
    target.is_program = target.found == Found::yes && is_program(name);
    if (!target.is_program) return target;
  }
  const auto look = [&]() noexcept {
    if (!along_path) {
      target.why = stashtrace::why_not_preloaded(name);
      return;
    }
    char buffer[kMostPath];
    target.found = search(name, moved, buffer);
    target.is_program = target.found == Found::yes;
    if (target.is_program) target.why = stashtrace::why_not_preloaded(buffer);
  };
  if (stashtrace::apart(look) < 0) stashtrace::on_large_stack(look);  // no thread could be started
  return target;
}

// What an environment does to our library, and what has to be done to it.
struct Changes {
  bool preload =
      false;  // the variable at `preload_at` has to be another one: without us where there is a reason, else with
  int preload_at = kAbsent;
  int plugin_at = kAbsent;         // it makes us NCCL's plugin, which has to be the job's own again
  std::string_view plugin;         // that one; empty if the job had none
  std::size_t count = 0;           // variables
  const char* untraced = nullptr;  // the program runs without us, since its environment says so
  bool any() const noexcept { return preload || plugin_at >= 0; }
};

// Where NCCL would load us into a program that has to run without us.
void look_at_plugin(char* const* environment, Changes& found) noexcept {
  const int plugin = place_of(environment, found.count, kPlugin);
  if (plugin < 0 || !is_ours(environment[plugin] + kPlugin.size())) return;
  found.plugin_at = plugin;
  const int chain = place_of(environment, found.count, kChain);
  if (chain >= 0) found.plugin = environment[chain] + kChain.size();
}

Changes look_at_environment(char* const* environment, const char* why) noexcept {
  Changes found;
  found.count = environment != nullptr ? length_of(environment) : 0;
  if (found.count > kMostVariables) return found;
  if (why != nullptr) look_at_plugin(environment, found);
  found.preload_at = place_of(environment, found.count, kPreload);
  if (found.preload_at == kNotKnown) return found;
  const std::string_view list =
      found.preload_at >= 0 ? environment[found.preload_at] + kPreload.size() : std::string_view{};
  const bool ours = names_us(list);
  if (why != nullptr) found.preload = ours;
  else if (own_preload_bytes == 0 || ours) return found;
  else if (list.empty()) found.untraced = kWithoutPreload;  // `env -i`, `env -u LD_PRELOAD`: a choice
  else if (place_of(environment, found.count, kDirectory) < 0) found.untraced = kWithoutDirectory;
  else found.preload = true;
  return found;
}

// Calls start(environment) with an environment that suits the program: `why` says that it must be without us, neither
// preloaded nor as NCCL's plugin. A call that `returns` reports the program after it has started.
template <class Start>
auto starting(const char* name, const char* why, char* const* environment, Start start, bool returns = false,
              bool is_program = false) {
  if (stashtrace::sandboxed()) why = stashtrace::sandbox_kills() ? "" : nullptr;  // nothing is reported any more
  if (why == nullptr && !is_program) return start(environment);
  const Changes changes = look_at_environment(environment, why);
  if (!changes.any()) {
    if (changes.untraced != nullptr && !returns) report_untraced(name, changes.untraced);
    const auto result = start(environment);
    if (changes.untraced != nullptr && returns && result == 0) report_untraced(name, changes.untraced);
    return result;
  }
  const std::string_view list =
      changes.preload ? environment[changes.preload_at] + kPreload.size() : std::string_view{};
  const std::size_t vector_bytes = (changes.count + 1) * sizeof(char*);
  const std::size_t preload_bytes = kPreload.size() + list.size() + own_preload_bytes + 2;
  const Copy copy(vector_bytes + preload_bytes + kPlugin.size() + changes.plugin.size() + 1);
  if (copy.start() == nullptr) return start(environment);
  char* preload = copy.start() + vector_bytes;
  std::size_t length = kPreload.size();
  std::memcpy(preload, kPreload.data(), length);
  const auto add = [&](std::string_view library) {
    if (length > kPreload.size()) preload[length++] = ':';
    std::memcpy(preload + length, library.data(), library.size());
    length += library.size();
  };
  for_each_library(list, [&](std::string_view library) {
    if (!is_ours(library)) add(library);
  });
  // Behind them: a sanitizer's library ends the process if another one was loaded before it.
  if (why == nullptr) add({own_preload, own_preload_bytes});
  preload[length] = '\0';
  char* plugin = preload + preload_bytes;
  std::memcpy(plugin, kPlugin.data(), kPlugin.size());
  std::memcpy(plugin + kPlugin.size(), changes.plugin.data(), changes.plugin.size());
  plugin[kPlugin.size() + changes.plugin.size()] = '\0';
  auto** changed = reinterpret_cast<char**>(copy.start());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < changes.count; ++i) {
    const int place = static_cast<int>(i);
    if (changes.preload && place == changes.preload_at) {
      if (length > kPreload.size()) changed[kept++] = preload;
    } else if (place == changes.plugin_at) {
      if (!changes.plugin.empty()) changed[kept++] = plugin;
    } else {
      changed[kept++] = environment[i];
    }
  }
  changed[kept] = nullptr;
  if (why != nullptr && !returns) report_untraced(name, why);
  const auto result = start(changed);
  if (why != nullptr && returns && result == 0) report_untraced(name, why);
  return result;
}

// File actions run in the child before it looks for the program. If one changes the folder, a relative name is another
// file than here, perhaps one that cannot run with us: it starts without. Such actions are known by the functions that
// add them; libc may have others (POSIX.1-2024 names some): then a file that is missing here shows it.
template <class Start>
int spawning(const char* name, bool along_path, const posix_spawn_file_actions_t* actions, char* const* environment,
             Start start) {
  if (stashtrace::sandboxed()) return starting(name, nullptr, environment, start, true);
  const bool moved = actions != nullptr && folder_changes.load(std::memory_order_relaxed);
  const Target target = look_at(name, along_path, moved);
  const bool elsewhere = target.found == Found::elsewhere ||
                         (target.found == Found::yes && actions != nullptr && !target.is_program && *name != '/' &&
                          stashtrace::raw::call(SYS_faccessat, AT_FDCWD, address(name), F_OK) != 0);
  return starting(name, elsewhere ? kElsewhere : target.why, environment, start, true, target.is_program);
}

// The same for calls that replace this process's program: its ring is removed before, and put back if the call returns.
template <class Execute>
int replacing(const char* name, const Target& target, char* const* environment, Execute execute) {
  const auto replace = [&](char* const* in) {
    stashtrace::Runtime& runtime = stashtrace::runtime();
    const std::uint32_t number = target.is_program && runtime.has_files() ? runtime.begin_exec() : 0;
    const auto filter = stashtrace::leave_child_filter();
    const int result = execute(in);
    stashtrace::put_child_filter_back(filter);
    if (number == 0) return result;
    const int error = errno;
    runtime.exec_failed(number);
    errno = error;
    return result;
  };
  return starting(name, target.why, environment, replace, false, target.is_program);
}

// Nothing is known where no system call may be made.
Target look_to_replace(const char* name, bool along_path = false) noexcept {
  return stashtrace::sandboxed() ? Target{} : look_at(name, along_path, false);
}

int execute(const char* path, char* const* arguments, char* const* environment) {
  return replacing(path, look_to_replace(path), environment,
                   [&](char* const* in) { return real::execve(path, arguments, in); });
}

int execute_found(const char* name, char* const* arguments, char* const* environment) {
  return replacing(name, look_to_replace(name, true), environment,
                   [&](char* const* in) { return real::execvpe(name, arguments, in); });
}

// The path in /proc/self/fd, for calls that name the program by a descriptor.
const char* descriptor_path(int fd, char (&buffer)[64]) noexcept {
  stashtrace::TextBuffer path(buffer, sizeof buffer - 1);
  path.add(kDescriptors).add(std::int64_t{fd});
  return path.c_str();
}

}  // namespace

STASHTRACE_HOOK(int, execve, const char* path, char* const* arguments, char* const* environment) {
  return execute(path, arguments, environment);
}
STASHTRACE_HOOK(int, execv, const char* path, char* const* arguments) { return execute(path, arguments, environ); }
STASHTRACE_HOOK(int, execvpe, const char* name, char* const* arguments, char* const* environment) {
  return execute_found(name, arguments, environment);
}
STASHTRACE_HOOK(int, execvp, const char* name, char* const* arguments) {
  return execute_found(name, arguments, environ);
}
STASHTRACE_HOOK(int, fexecve, int fd, char* const* arguments, char* const* environment) {
  char buffer[64];
  const char* path = descriptor_path(fd, buffer);
  return replacing(path, look_to_replace(path), environment,
                   [&](char* const* in) { return real::fexecve(fd, arguments, in); });
}
STASHTRACE_HOOK(int, execveat, int dirfd, const char* path, char* const* arguments, char* const* environment,
                int flags) {
  char buffer[64];
  const auto start = [&](char* const* in) { return real::execveat(dirfd, path, arguments, in, flags); };
  if (stashtrace::sandboxed()) return replacing(path, Target{}, environment, start);
  const bool empty = stashtrace::readable_length(path, 4096, false) == 0;
  const bool plain = dirfd == AT_FDCWD || (!empty && stashtrace::is_readable(path) && path[0] == '/');
  const char* known = empty && (flags & AT_EMPTY_PATH) != 0 ? descriptor_path(dirfd, buffer) : plain ? path : nullptr;
  return replacing(known, look_to_replace(known), environment, start);
}
// Only if libc has them: a program that finds them absent has another way, and must find them absent with us in front.
#if __GLIBC_PREREQ(2, 29)
STASHTRACE_HOOK(int, posix_spawn_file_actions_addchdir_np, posix_spawn_file_actions_t* actions, const char* path) {
  folder_changes.store(true, std::memory_order_relaxed);
  return real::posix_spawn_file_actions_addchdir_np(actions, path);
}
STASHTRACE_HOOK(int, posix_spawn_file_actions_addfchdir_np, posix_spawn_file_actions_t* actions, int fd) {
  folder_changes.store(true, std::memory_order_relaxed);
  return real::posix_spawn_file_actions_addfchdir_np(actions, fd);
}
#endif
STASHTRACE_HOOK(int, posix_spawn, pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  return spawning(path, false, actions, environment,
                  [&](char* const* in) { return real::posix_spawn(pid, path, actions, attributes, arguments, in); });
}
STASHTRACE_HOOK(int, posix_spawnp, pid_t* pid, const char* name, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  return spawning(name, true, actions, environment,
                  [&](char* const* in) { return real::posix_spawnp(pid, name, actions, attributes, arguments, in); });
}

// The lists of execl, execlp and execle end in a null pointer; behind it execle has the environment.
#define STASHTRACE_COLLECT(first, arguments, rest, after)                                          \
  va_list rest;                                                                                    \
  va_start(rest, first);                                                                           \
  std::size_t count = 1;                                                                           \
  if (first != nullptr)                                                                            \
    while (va_arg(rest, char*) != nullptr) ++count;                                                \
  va_end(rest);                                                                                    \
  auto** arguments = static_cast<char**>(alloca((count + 1) * sizeof(char*)));                     \
  arguments[0] = const_cast<char*>(first);                                                         \
  va_start(rest, first);                                                                           \
  for (std::size_t i = 1; first != nullptr && i <= count; ++i) arguments[i] = va_arg(rest, char*); \
  after;                                                                                           \
  va_end(rest)

STASHTRACE_HOOK(int, execl, const char* path, const char* first, ...) {
  STASHTRACE_COLLECT(first, arguments, rest, (void)0);
  return execute(path, arguments, environ);
}
STASHTRACE_HOOK(int, execlp, const char* name, const char* first, ...) {
  STASHTRACE_COLLECT(first, arguments, rest, (void)0);
  return execute_found(name, arguments, environ);
}
STASHTRACE_HOOK(int, execle, const char* path, const char* first, ...) {
  char* const* environment = nullptr;
  STASHTRACE_COLLECT(first, arguments, rest, environment = va_arg(rest, char* const*));
  return execute(path, arguments, environment);
}
