// Reads a file by std::ifstream. SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

int main(int, char** argv) {
  std::ifstream file(argv[1], std::ios::binary);
  std::cout << std::string(std::istreambuf_iterator<char>(file), {}).size() << '\n';
}
