/* Maps memory of its own over what the recorder has mapped, and reads on. SPDX-License-Identifier: Apache-2.0

     maps_over READS BYTE

   Ends with 0 if its memory holds what it put there, 9 if not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kMost = 64 };

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const int reads = atoi(arguments[1]), byte = atoi(arguments[2]);
  const int zero = open("/dev/zero", O_RDONLY);
  char bytes[16], line[8192];
  for (int i = 0; i < reads; ++i)
    if (read(zero, bytes, sizeof bytes) != sizeof bytes) return 3;
  char* begins[kMost];
  size_t sizes[kMost];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps) != NULL && found < kMost) {
    unsigned long begin, end;
    if (strstr(line, ".ring\n") == NULL || sscanf(line, "%lx-%lx", &begin, &end) != 2) continue;
    begins[found] = (char*)begin;
    sizes[found++] = end - begin;
  }
  fclose(maps);
  for (int i = 0; i < found; ++i) {
    void* got = mmap(begins[i], sizes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (got != begins[i]) return 4;
    memset(got, byte, sizes[i]);
  }
  for (int i = 0; i < reads; ++i)
    if (read(zero, bytes, sizeof bytes) != sizeof bytes) return 3;
  size_t changed = 0;
  for (int i = 0; i < found; ++i)
    for (size_t at = 0; at < sizes[i]; ++at) changed += begins[i][at] != (char)byte;
  printf("maps %d changed %zu\n", found, changed);
  return changed != 0 ? 9 : found == 0;
}
