// The text that a device_actor runs. SPDX-License-Identifier: Apache-2.0
//
// One statement a line or between ";", "#" begins a comment, a statement may own a block in braces:
//   repeat 10 { kernel 3ms stream=0; allreduce 10MB stream=2 }
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "script.h"
#include "clock.h"

namespace fake {

struct Statement {
  std::vector<std::string> words;
  std::vector<Statement> body;

  const std::string& name() const { return words.front(); }
  std::string word(std::size_t at) const { return at < words.size() ? words[at] : std::string(); }
  bool has(const std::string& flag) const {
    for (const std::string& one : words) {
      if (one == flag) return true;
    }
    return false;
  }
  // The value of key=value.
  std::string text(const std::string& key, const std::string& otherwise) const {
    for (const std::string& one : words) {
      if (one.rfind(key + "=", 0) == 0) return one.substr(key.size() + 1);
    }
    return otherwise;
  }
  int number(const std::string& key, int otherwise) const {
    return static_cast<int>(number_of(text(key, ""), otherwise));
  }
  // The first word that is a quantity: 3ms, 64MB, 10.
  double quantity() const {
    for (std::size_t at = 1; at < words.size(); ++at) {
      const double value = number_of(words[at], -1);
      if (value >= 0) return value;
    }
    return 0;
  }
};

class Parser {
 public:
  explicit Parser(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::string spaced;
      for (const char letter : line.substr(0, line.find('#'))) {
        if (letter == '{' || letter == '}' || letter == ';') spaced += std::string(" ") + letter + ' ';
        else spaced += letter;
      }
      std::istringstream words(spaced + " ;");
      for (std::string word; words >> word;) words_.push_back(word);
    }
  }
  std::vector<Statement> block() {
    std::vector<Statement> statements;
    while (at_ < words_.size() && words_[at_] != "}") {
      if (words_[at_] == ";") {
        ++at_;
        continue;
      }
      Statement one;
      while (at_ < words_.size() && words_[at_] != ";" && words_[at_] != "{" && words_[at_] != "}") {
        one.words.push_back(words_[at_++]);
      }
      // A brace may stand on the line after its statement only if nothing else does: "repeat 3 {".
      if (at_ < words_.size() && words_[at_] == "{") {
        ++at_;
        one.body = block();
        ++at_;
      }
      statements.push_back(std::move(one));
    }
    return statements;
  }

 private:
  std::vector<std::string> words_;
  std::size_t at_ = 0;
};

inline std::vector<Statement> read_program(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return Parser(text.str()).block();
}

}  // namespace fake
