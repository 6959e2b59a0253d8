// crc32() is zlib's, by both ways of computing it. SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "core/crc32.h"

int main() {
  using stashtrace::crc32, stashtrace::crc32_by_table;
  CHECK_EQUAL(crc32(0, "123456789", 9), 0xcbf43926u);  // the check value of the standard
  CHECK_EQUAL(crc32(0, "", 0), 0u);
  std::vector<unsigned char> data(3000);
  unsigned state = 1;
  for (auto& byte : data) byte = static_cast<unsigned char>((state = state * 1664525 + 1013904223) >> 24);
  for (std::size_t offset = 0; offset < 17; ++offset)
    for (std::size_t bytes = 0; bytes + offset < data.size(); bytes += bytes < 300 ? 1 : 97)
      CHECK_EQUAL(crc32(state, data.data() + offset, bytes), crc32_by_table(state, data.data() + offset, bytes));
  for (std::size_t cut = 0; cut < 200; ++cut)  // in two pieces as in one
    CHECK_EQUAL(crc32(crc32(0, data.data(), cut), data.data() + cut, 400 - cut), crc32(0, data.data(), 400));
  return result();
}
