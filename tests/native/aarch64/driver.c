// A function under a name of CUDA's driver, for look_up.c. SPDX-License-Identifier: Apache-2.0
int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* status);
int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* status) {
  (void)symbol, (void)function, (void)version, (void)flags, (void)status;
  return 500;
}
