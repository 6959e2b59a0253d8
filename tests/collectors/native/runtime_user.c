// A library with a kernel of its own, linked against one version of libcudart. SPDX-License-Identifier: Apache-2.0
//
// Registers the kernel with its runtime, as the code that nvcc makes does, and launches it. Compiled once per runtime by
// test_cuda_runtimes.py; NAME tells the copies apart. The calls in tail position leave no frame of this library on the stack.
#include <stddef.h>
#include <stdint.h>

typedef struct {
  unsigned x, y, z;
} dim3;
int cudaRuntimeGetVersion(int*);
int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaDeviceSynchronize(void);
int cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)

void NAMED(NAME, _kernel)(void) { __asm__ volatile(""); }

int NAMED(NAME, _free)(void* pointer) { return cudaFree(pointer); }

// Major version of the runtime that the library is bound to, or minus the error of the first call that failed.
int NAMED(NAME, _run)(void) {
  static int registered = 0;
  if (!registered) __cudaRegisterFunction(NULL, (const char*)&NAMED(NAME, _kernel), NULL, "kernel", -1, NULL, NULL, NULL, NULL, NULL);
  registered = 1;
  uint64_t ns = 1000;
  void* arguments[] = {&ns};
  const dim3 one = {1, 1, 1};
  void* pointer = NULL;
  int error = cudaMalloc(&pointer, 4096);
  if (error == 0) error = cudaLaunchKernel((const void*)&NAMED(NAME, _kernel), one, one, arguments, 0, NULL);
  if (error == 0) error = cudaDeviceSynchronize();
  if (error == 0) error = NAMED(NAME, _free)(pointer);
  int version = 0;
  if (error == 0) error = cudaRuntimeGetVersion(&version);
  return error != 0 ? -error : version / 1000;
}
