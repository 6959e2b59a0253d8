// The text that tells the doubles what machine to play and when to fail. SPDX-License-Identifier: Apache-2.0
//
// Included by every double; each library has its own copy of the state and reads the file named by FAKE_SCRIPT at
// its first use. One statement a line, "#" begins a comment:
//   KEY VALUE                      a setting; sizes, times and rates take a unit: 64MB 3ms 25GB (bytes per second)
//   device N KEY VALUE             the same for one device, rank N KEY VALUE for the process with RANK=N
//   fail CALL CODE [every|after|first|at N]   the call returns CODE; without more, always
//   delay CALL TIME                the call takes that much longer
// With FAKE_CALLS=DIR each library writes DIR/LIBRARY-PID.txt at exit: one "call count" line each.
#pragma once

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace fake {

// "3ms" is 3e6 (ns), "64MB" is 64e6, "4KiB" is 4096, "25GB" is 25e9 (also as a rate per second), "7" is 7.
inline double number_of(const std::string& text, double otherwise) {
  char* rest = nullptr;
  const double value = strtod(text.c_str(), &rest);
  if (rest == text.c_str()) return otherwise;
  static const auto& units = *new std::map<std::string, double>{  // never destroyed: worker threads outlive main
      {"", 1},     {"ns", 1},    {"us", 1e3},  {"ms", 1e6},        {"s", 1e9},           {"ppm", 1},
      {"B", 1},    {"KB", 1e3},  {"MB", 1e6},  {"GB", 1e9},        {"TB", 1e12},         {"%", 1},
      {"KiB", 1024}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"W", 1}, {"MHz", 1}, {"C", 1}};
  const auto unit = units.find(rest);
  return unit == units.end() ? otherwise : value * unit->second;
}

struct FailRule {
  int code = 0;
  char when = 'a';  // a: always, e: every, f: from the (n+1)th on, b: the first n, o: only the nth
  std::uint64_t n = 0;
};

struct Script {
  std::map<std::string, std::string> settings;
  std::map<std::string, FailRule> fails;
  std::map<std::string, double> delays_ns;

  Script() {
    const char* path = getenv("FAKE_SCRIPT");
    if (path == nullptr) return;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) read_line(line.substr(0, line.find('#')));
  }

  void read_line(const std::string& line) {
    std::istringstream words(line);
    std::string first, key, value;
    if (!(words >> first)) return;
    if (first == "fail") {
      FailRule rule;
      std::string when;
      words >> key >> rule.code >> when >> rule.n;
      if (when == "every") rule.when = 'e';
      if (when == "after") rule.when = 'f';
      if (when == "first") rule.when = 'b';
      if (when == "at") rule.when = 'o';
      fails[key] = rule;
    } else if (first == "delay") {
      words >> key >> value;
      delays_ns[key] = number_of(value, 0);
    } else if (first == "device" || first == "rank") {
      std::string index;
      words >> index >> key;
      settings[first + " " + index + " " + key] = remainder(words);
    } else {
      settings[first] = remainder(words);
    }
  }

  static std::string remainder(std::istringstream& words) {
    std::string text;
    std::getline(words >> std::ws, text);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.pop_back();
    return text;
  }
};

inline const Script& script() {
  static const Script* const read = new Script();  // never destroyed: worker threads outlive main
  return *read;
}

inline int own_rank() {
  const char* rank = getenv("RANK");
  return rank == nullptr ? 0 : atoi(rank);
}

inline std::string text_setting(const std::string& key, const std::string& otherwise) {
  const auto& settings = script().settings;
  const auto own = settings.find("rank " + std::to_string(own_rank()) + " " + key);
  if (own != settings.end()) return own->second;
  const auto found = settings.find(key);
  return found == settings.end() ? otherwise : found->second;
}

inline double setting(const std::string& key, double otherwise) {
  const std::string text = text_setting(key, "");
  return text.empty() ? otherwise : number_of(text, otherwise);
}

inline std::string device_text(int device, const std::string& key, const std::string& otherwise) {
  const auto& settings = script().settings;
  const auto own = settings.find("device " + std::to_string(device) + " " + key);
  return own != settings.end() ? own->second : text_setting(key, otherwise);
}

inline double device_setting(int device, const std::string& key, double otherwise) {
  const std::string text = device_text(device, key, "");
  return text.empty() ? otherwise : number_of(text, otherwise);
}

inline void pause_ns(double ns) {
  timespec time = {static_cast<time_t>(ns / 1e9), static_cast<long>(static_cast<std::int64_t>(ns) % 1'000'000'000)};
  nanosleep(&time, nullptr);
}

// One per call site of the double: counts the calls and says which of them fail.
class Call {
 public:
  explicit Call(const char* name) : name_(name), next_(list().load()) {
    const auto rule = script().fails.find(name);
    if (rule != script().fails.end()) rule_ = rule->second;
    const auto delay = script().delays_ns.find(name);
    if (delay != script().delays_ns.end()) delay_ns_ = delay->second;
    while (!list().compare_exchange_weak(next_, this)) {}
  }

  int next() {
    const std::uint64_t number = count_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (delay_ns_ > 0) pause_ns(delay_ns_);
    if (rule_.code == 0) return 0;
    const bool fails = rule_.when == 'a' || (rule_.when == 'e' && rule_.n > 0 && number % rule_.n == 0) ||
                       (rule_.when == 'f' && number > rule_.n) || (rule_.when == 'b' && number <= rule_.n) ||
                       (rule_.when == 'o' && number == rule_.n);
    return fails ? rule_.code : 0;
  }

  static void write_counts(const char* library) {
    const char* folder = getenv("FAKE_CALLS");
    if (folder == nullptr) return;
    std::ofstream out(std::string(folder) + "/" + library + "-" + std::to_string(getpid()) + ".txt");
    for (Call* call = list().load(); call != nullptr; call = call->next_) {
      out << call->name_ << " " << call->count_.load() << "\n";
    }
  }

 private:
  static std::atomic<Call*>& list() {
    static std::atomic<Call*> head{nullptr};
    return head;
  }

  const char* name_;
  Call* next_;
  FailRule rule_;
  double delay_ns_ = 0;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace fake

// First line of each entry point that returns a result code. The object is leaked: calls come after main has returned.
#define FAKE_CALL(name)                                                 \
  static fake::Call& call_of_##name = *new fake::Call(#name);           \
  if (const int injected = call_of_##name.next(); injected != 0) return injected

#define FAKE_COUNTS_AT_EXIT(library) \
  __attribute__((destructor)) static void write_counts_at_exit() { fake::Call::write_counts(library); }
