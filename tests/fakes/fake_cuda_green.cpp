// Green contexts of the libcuda double: shares of a device, which hold its primary context. SPDX-License-Identifier: Apache-2.0
//
// Line numbers are those of cuda.h of CUDA 13.5. A descriptor of resources is any; what a share runs on is not played.
#include "cuda_objects.h"

using namespace fake;

namespace {

struct GreenContext {
  Context* stands_for = nullptr;  // the CUcontext of it
  bool dead = false;
};

struct Resources {
  unsigned count = 0;
};

// Mutex held. Null: no handle of one.
GreenContext* find_green(void* handle) {
  return state().greens.contains(handle) ? static_cast<GreenContext*>(handle) : nullptr;
}

}  // namespace

namespace fake {
void* green_of(const Context* context) {
  for (const void* green : state().greens)
    if (static_cast<const GreenContext*>(green)->stands_for == context) return const_cast<void*>(green);
  return nullptr;
}
}  // namespace fake

FAKE_API int cuDevResourceGenerateDesc(void** description, const void* resources, unsigned count) {
  FAKE_CALL(cuDevResourceGenerateDesc);
  if (const int error = ready_error(); error != kSuccess) return error;
  if (description == nullptr || resources == nullptr || count == 0) return kInvalidValue;
  *description = new Resources{count};
  return kSuccess;
}

// 27657: retains the primary context; 27660: does not set the green one current; 27674: the flags there are.
FAKE_API int cuGreenCtxCreate(void** green, void* description, int device, unsigned flags) {
  FAKE_CALL(cuGreenCtxCreate);
  if (const int error = ready_error(); error != kSuccess) return error;
  if (green == nullptr || description == nullptr || flags > 1) return kInvalidValue;
  if (device < 0 || device >= static_cast<int>(state().primaries.size())) return kInvalidDevice;
  const std::lock_guard lock(state().mutex);
  auto* made = new GreenContext();
  made->stands_for = make_context(device, false);
  retain_primary(device, &made->stands_for->base);
  state().greens.insert(made);
  *green = made;
  return kSuccess;
}

// 27700: releases the primary context; 27703: streams stay, detached; 27708: their captures are invalid; 27717: the errors.
FAKE_API int cuGreenCtxDestroy(void* green) {
  FAKE_CALL(cuGreenCtxDestroy);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  GreenContext* ending = find_green(green);
  if (ending == nullptr) return kInvalidContext;
  if (ending->dead) return kContextDestroyed;
  ending->dead = true;
  Context* context = ending->stands_for;
  for (const CapturePtr& capture : state().captures)
    if (capture->origin->context == context) invalidate(capture, kCaptureInvalidated);
  end_life(context);
  if (!context->base->dead) release_primary(context->base);
  return kSuccess;
}

// 27743: valid as long as the green context, and destroyed with that alone.
FAKE_API int cuCtxFromGreenCtx(void** context, void* green) {
  FAKE_CALL(cuCtxFromGreenCtx);
  if (const int error = ready_error(); error != kSuccess) return error;
  if (context == nullptr) return kInvalidValue;
  const std::lock_guard lock(state().mutex);
  const GreenContext* of = find_green(green);
  if (of == nullptr || of->dead) return kInvalidContext;
  *context = of->stands_for;
  return kSuccess;
}

// 28186: the non-blocking flag must be given.
FAKE_API int cuGreenCtxStreamCreate(void** stream, void* green, unsigned flags, int priority) {
  FAKE_CALL(cuGreenCtxStreamCreate);
  if (const int error = ready_error(); error != kSuccess) return error;
  const std::lock_guard lock(state().mutex);
  const GreenContext* of = find_green(green);
  if (of == nullptr || of->dead) return kInvalidContext;
  if (stream == nullptr || flags != kStreamNonBlocking) return kInvalidValue;
  Stream* made = make_stream(of->stands_for, flags, priority);
  state().streams.insert(made);
  *stream = made;
  return kSuccess;
}
