// The pure parts of the sampler of devices: wraps, thinning, ports of sysfs. SPDX-License-Identifier: Apache-2.0
// argv[1] is a folder laid out as /sys/class/infiniband. Prints what is wrong; exit code 1 if anything is.
#include <cstdio>
#include <cstring>

#include "collectors/nvml/rdma_ports.h"
#include "collectors/nvml/series.h"

using namespace stashtrace::nvml;

namespace {
int failures = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("wrong: %s\n", what);
  ++failures;
}

void wraps() {
  Unwrap narrow;
  expect(narrow.next(0xFFFFFFF0u, 32) == 0xFFFFFFF0u, "a total starts at the first value");
  expect(narrow.next(0x10, 32) == 0x100000010u, "32 bits wrap");
  Unwrap tiny;
  tiny.next(65'000, 16);
  expect(tiny.next(100, 16) == 65'636, "16 bits wrap");
  Unwrap wide;
  wide.next(1000, 64);
  expect(wide.next(5, 64) == 1000 && wide.falls() == 1, "a 64-bit counter that falls was reset: the total stands still");
  expect(wide.next(25, 64) == 1020, "and goes on from there");
}

void thinning() {
  Series series;
  Reading keep[2];
  expect(series.next({10, 1.0}, 100, keep) == 1 && keep[0].ticks == 10, "the first is kept");
  expect(series.next({20, 1.0}, 100, keep) == 0, "a repeat is not");
  expect(series.next({30, 1.0}, 100, keep) == 0, "nor the next");
  expect(series.next({30, 7.0}, 100, keep) == 0, "one of the same time is not a reading");
  expect(series.next({40, 2.0}, 100, keep) == 2 && keep[0].ticks == 30 && keep[0].value == 1.0 && keep[1].ticks == 40,
         "a change brings the last repeat with it");
  expect(series.next({50, 3.0}, 100, keep) == 1, "a change after a change comes alone");
  expect(series.next({149, 3.0}, 100, keep) == 0 && series.next({150, 3.0}, 100, keep) == 1, "repeats are kept now and then");
}

void ports(const char* root) {
  RdmaPorts found;
  expect(found.find(root) == 2, "two ports have counters, one has none");
  for (unsigned port = 0; port < found.count(); ++port) {
    std::uint64_t transmit = 0;
    std::uint64_t receive = 0;
    expect(found.read(port, transmit, receive), "a listed port can be read");
    if (std::strcmp(found.name(port), "mlx5_0:1") == 0)
      expect(transmit == 4000 && receive == 8000, "words of four bytes");
    else
      expect(std::strcmp(found.name(port), "efa_0:1") == 0 && transmit == 70 && receive == 80, "bytes in hw_counters");
  }
  expect(found.find("/nonexistent") == 0, "no folder, no ports");
}
}  // namespace

int main(int, char** argv) {
  wraps();
  thinning();
  ports(argv[1]);
  return failures == 0 ? 0 : 1;
}
