// Numbers, cutting and JSON quoting. SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "core/text_buffer.h"

using stashtrace::TextBuffer;

static std::string quoted(std::string_view text) {
  char memory[256];
  TextBuffer out(memory, sizeof memory);
  out.quote(text);
  return std::string(out.text());
}

int main() {
  char memory[32];
  TextBuffer out(memory, sizeof memory);
  out.add(std::int64_t{0}).add(" ").add(INT64_MIN).add(" ").add_unsigned(7);
  CHECK_EQUAL(out.text(), std::string_view("0 -9223372036854775808 7"));
  out.add("0123456789");
  CHECK(out.full());
  CHECK_EQUAL(out.text().size(), sizeof memory);

  CHECK_EQUAL(quoted("plain"), std::string("\"plain\""));
  CHECK_EQUAL(quoted("a\"b\\c\n\x01"), std::string("\"a\\\"b\\\\c\\u000a\\u0001\""));
  CHECK_EQUAL(quoted("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"), std::string("\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\""));
  CHECK_EQUAL(quoted("\xff|\xc3"), std::string("\"\\udcff|\\udcc3\""));                   // not UTF-8, cut off
  CHECK_EQUAL(quoted("\xc0\xaf"), std::string("\"\\udcc0\\udcaf\""));                     // overlong
  CHECK_EQUAL(quoted("\xed\xa0\x80"), std::string("\"\\udced\\udca0\\udc80\""));          // a surrogate
  CHECK_EQUAL(quoted("\xf4\x90\x80\x80"), std::string("\"\\udcf4\\udc90\\udc80\\udc80\""));  // above U+10FFFF
  return result();
}
