// Which library dlsym's answers lie in, by all kinds of handle. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char* library_of(const void* address) {
  Dl_info info;
  if (address == NULL || dladdr(address, &info) == 0) return "";
  const char* slash = strrchr(info.dli_fname, '/');
  return slash != NULL ? slash + 1 : info.dli_fname;
}

// A program's own function in front of libc's: only RTLD_NEXT, which looks at the caller, passes it.
int atoi(const char* text) { return text[0]; }

int main(void) {
  if (dlsym(RTLD_DEFAULT, "puts") != (void*)&puts) return 1;
  if (strcmp(library_of(dlsym(RTLD_NEXT, "atoi")), "libc.so.6") != 0) return 2;
  if (dlsym(RTLD_DEFAULT, "no_such_function") != NULL || strstr(dlerror(), "no_such_function") == NULL) return 3;
  if (dlsym(RTLD_NEXT, "cu_no_such_function") != NULL || dlerror() == NULL) return 4;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL || dlsym(driver, "cuNothing") != NULL) return 5;
  printf("driver: %s\n", library_of(dlsym(driver, "cuGetProcAddress_v2")));
  return 0;
}
