// A test of one program: CHECK() says what failed and goes on, the exit code says whether all held.
// SPDX-License-Identifier: Apache-2.0
//
// tests/native/test_native.py builds each test_*.cpp here and runs it. TRACED() starts the program again with the
// recorder on, writing to a directory of its own.
#pragma once

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

inline int g_failures = 0;

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);  \
      ++g_failures;                                                                       \
    }                                                                                     \
  } while (false)

#define CHECK_EQUAL(left, right)                                                                        \
  do {                                                                                                  \
    const auto left_value = (left);                                                                     \
    const auto right_value = (right);                                                                   \
    if (!(left_value == right_value)) {                                                                 \
      std::fprintf(stderr, "%s:%d: %s is %s, not %s\n", __FILE__, __LINE__, #left, shown(left_value).c_str(), \
                   shown(right_value).c_str());                                                         \
      ++g_failures;                                                                                     \
    }                                                                                                   \
  } while (false)

template <class T>
std::string shown(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return std::to_string(value);
  else return std::string(value);
}

inline int result() { return g_failures == 0 ? 0 : 1; }

// Runs this program once more with STASHTRACE_DIR set and returns its result; in that second run returns false.
inline bool started_traced(char** argv, int& exit_code) {
  if (getenv("STASHTRACE_DIR") != nullptr) return false;
  char dir[] = "/tmp/stashtrace-test-XXXXXX";
  if (mkdtemp(dir) == nullptr) {
    exit_code = 2;
    return true;
  }
  setenv("STASHTRACE_DIR", dir, 1);
  const pid_t child = fork();
  if (child == 0) {
    execv("/proc/self/exe", argv);
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  std::filesystem::remove_all(dir);
  exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

#define TRACED(argv)                                        \
  do {                                                      \
    int exit_code = 0;                                      \
    if (started_traced(argv, exit_code)) return exit_code;  \
  } while (false)

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Paths in the run directory that end with `suffix`.
inline std::vector<std::string> run_files(const std::string& suffix) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(getenv("STASHTRACE_DIR")))
    if (entry.path().string().ends_with(suffix)) found.push_back(entry.path().string());
  return found;
}
