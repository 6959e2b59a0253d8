// Plays what NCCL does with the profiler plugin argv[2] in the scene argv[1], up to its unloading. SPDX-License-Identifier: Apache-2.0
//
// NCCL loads it at the first communicator with dlopen(RTLD_NOW | RTLD_LOCAL) and, at the end of the last one, closes it:
// ncclProfilerPluginLoad() and ncclProfilerPluginUnload() in NCCL's src/plugin/profiler.cc, ncclOpenLib() and
// ncclClosePluginLib() in src/plugin/plugin_open.cc (2.28.9).
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int ncclGroupStart(void);
int ncclGroupEnd(void);

// ncclProfiler_v5_t of NCCL's src/include/plugin/profiler/profiler_v5.h.
struct plugin {
  const char* name;
  int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, void*);
  int (*finalize)(void*);
};

static const char* path;
static void* library;
static pthread_barrier_t barrier;

static int open_and_use(uint64_t id, const char* name) {
  void* context = NULL;
  int mask = 0;
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\n", dlerror());
  const struct plugin* plugin = dlsym(library, "ncclProfiler_v5");
  return plugin->init(&context, id, &mask, name, 1, 2, 0, NULL) + plugin->finalize(context);
}

// The thread has used the recorder, which wants to know of its end.
static void* live_longer(void* unused) {
  const int refused = open_and_use(7, "first");
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  printf("used %d\n", refused);
  return unused;
}

static void end_a_thread_afterwards(void) {
  pthread_t thread;
  pthread_barrier_init(&barrier, NULL, 2);
  pthread_create(&thread, NULL, live_longer, NULL);
  pthread_barrier_wait(&barrier);
  dlclose(library);
  pthread_barrier_wait(&barrier);
  pthread_join(thread, NULL);
}

// Without the preload, the plugin makes import tables lead to the recorder.
static void call_nccl_afterwards(void) {
  ncclGroupStart();
  ncclGroupEnd();
  const int refused = open_and_use(7, "first");
  dlclose(library);
  printf("used %d\n", refused + ncclGroupStart() + ncclGroupEnd());
}

int main(int count, char** arguments) {
  if (count != 3) return 2;
  path = arguments[2];
  if (strcmp(arguments[1], "thread") == 0) end_a_thread_afterwards();
  else call_nccl_afterwards();
  return open_and_use(8, "second");
}
