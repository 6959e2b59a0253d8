// Parsing of kernel texts, also cut short and malformed. SPDX-License-Identifier: Apache-2.0
#include "collectors/proc/proc_text.h"

#include <cstdio>

using namespace stashtrace::proc;

static int failures = 0;
static void check(const char* what, long found, long wanted) {
  if (found == wanted) return;
  std::printf("%s: %ld, expected %ld\n", what, found, wanted);
  ++failures;
}

int main() {
  std::string_view cpu = "cpu  10 20 30\ncpu0 1 2 3\n";
  check("first", take_number(cpu), 10);
  check("second", take_number(cpu), 20);
  check("third", take_number(cpu), 30);
  check("no further on the line", take_number(cpu), -1);
  check("label", number_after("rchar: 5\nread_bytes: 77\n", "read_bytes:"), 77);
  check("label is not a suffix", number_after("xread_bytes: 77\n", "read_bytes:"), -1);
  check("empty", number_after("", "read_bytes:"), -1);
  check("cut", number_after("read_bytes:", "read_bytes:"), -1);
  const char* pressure = "some avg10=0.00 avg60=1.50 avg300=0.00 total=1234\nfull avg10=0.00 total=99\n";
  check("some", pressure_total_us(pressure, "some"), 1234);
  check("full", pressure_total_us(pressure, "full"), 99);
  check("no pressure file", pressure_total_us("", "some"), -1);
  const char* snmp = "Ip: A B\nIp: 1 2\nTcp: RtoMax MaxConn RetransSegs InErrs\nTcp: 120 -1 42 0\n";
  check("retransmits", snmp_value(snmp, "Tcp:", "RetransSegs"), 42);
  check("unknown name", snmp_value(snmp, "Tcp:", "Nothing"), -1);
  check("values missing", snmp_value("Tcp: RetransSegs\n", "Tcp:", "RetransSegs"), -1);
  return failures;
}
