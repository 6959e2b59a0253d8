// Every STASHTRACE_* variable, parsed once. SPDX-License-Identifier: Apache-2.0
//
// Called by the library constructor; afterwards read-only, from any thread. The table of the variables for
// users is docs/reference/environment.md; settings.def declares them for the launcher, too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stashtrace {

// A choice, and the words of its variable.
#define ENUMERATOR(name, word) name,
#define WORD_OF(name, word) word,
#define TEXT(field, bytes, variable, initial)
#define SWITCH(field, variable)
#define NUMBER(type, field, variable, initial, lowest, highest)
#define CHOICE(Type, field, variable, WORDS)            \
  enum class Type : std::uint8_t { WORDS(ENUMERATOR) }; \
  constexpr auto words_of(Type) noexcept { return std::to_array<const char*>({WORDS(WORD_OF)}); }
#define OTHER(type, field, variable, initial)
#include "core/settings.def"
#undef ENUMERATOR
#undef WORD_OF

enum class KernelMode : std::uint8_t { off, nodes, graphs };  // graphs: one row per graph launch, not per node

// Access rights of files that we create; with STASHTRACE_SHARE the group has access too. Set once, by parse_config.
inline constinit int new_file_mode = 0600;

struct Config {
  static constexpr std::size_t kDirBytes = 3072;  // PATH_MAX minus room for our file names
  static constexpr std::size_t kRunIdBytes = 80;
  static constexpr std::size_t kStepsBytes = 64;
  static constexpr std::size_t kChainBytes = 512;

  bool active = false;       // STASHTRACE_DIR is set and usable as a path
  char dir[kDirBytes] = {};  // STASHTRACE_DIR
#define TEXT(field, bytes, variable, initial) char field[bytes] = initial;
#define SWITCH(field, variable) bool field = false;
#define NUMBER(type, field, variable, initial, lowest, highest) type field = initial;
#define CHOICE(Type, field, variable, WORDS) Type field{};
#define OTHER(type, field, variable, initial) type field = initial;
#include "core/settings.def"
  char injected_profiler[32] = {};  // the variable that injected another CUPTI user into the process

  bool collector_on(std::string_view name) const noexcept;
};

// Reads an environment in the form of `environ`. A setting with an invalid value keeps its default.
void parse_config(Config& config, const char* const* environment) noexcept;

// Returns the value of a variable in an environment block, empty if it is not there.
std::string_view variable(const char* const* environment, std::string_view name) noexcept;

// Returns the word of a choice.
template <class Choice>
constexpr const char* name_of(Choice choice) noexcept {
  return words_of(choice)[static_cast<std::size_t>(choice)];
}

}  // namespace stashtrace
