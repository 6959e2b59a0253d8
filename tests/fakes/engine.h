// What the doubles share: streams as FIFOs of work. SPDX-License-Identifier: Apache-2.0
//
// Lives in the double of libcuda; the doubles of NCCL and CUPTI find it there by dlsym("fake_engine"), so that, as with
// the real libraries, none of their work passes a symbol that could be interposed. Any thread may call.
//
//   host thread ──submit──▶ stream queue ──worker thread──▶ begin = max(submitted, end of the work before, dependencies)
//                                                           end   = work->run(begin), then its completion is told
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fake {

// A piece of work on a stream. A captured one runs once for each launch of its graph.
struct Work {
  virtual ~Work() = default;
  // Returns the end. With the real clock it returns when that moment has come.
  virtual std::int64_t run(std::int64_t begin_ns) = 0;
  // On an idle stream it is run by the thread that submits it: takes next to no time, and calls nothing of the engine.
  virtual bool instant() const { return false; }
};

enum class RanKind { kernel, copy, memset, communication, graph, event };

// One piece of work that has run, for those who keep records (CUPTI).
struct Ran {
  Ran() = default;
  explicit Ran(RanKind of) : kind(of) {}
  RanKind kind = RanKind::kernel;
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;  // of Engine::now()
  std::int64_t size_bytes = 0;
  int copy_code = 0;  // 1 host to device, 2 device to host, 3 within a device, 4 peer, 5 host to host
  bool pageable = false;
  std::uint64_t correlation = 0;    // of the call that launched it, 0 if unknown
  std::int64_t launched_ns = 0;
  unsigned launch_tid = 0;
  std::uint64_t stream_id = 0;
  std::uint64_t graph_id = 0;
  int device = 0;
};

using RanObserver = void (*)(const Ran&);  // called on a worker's thread, without locks of the engine

struct Engine {
  virtual std::int64_t now() = 0;
  virtual void work_until(std::int64_t ns) = 0;
  virtual std::int64_t event_time(int device, std::int64_t ns) = 0;   // the device's event clock at that moment
  virtual std::int64_t globaltimer(int device, std::int64_t ns) = 0;  // the same for %globaltimer
  virtual int current_device() = 0;                                   // of the calling thread, -1 without context
  virtual int stream_device(void* stream) = 0;
  virtual bool capturing(void* stream) = 0;
  // Runs when all streams have come to it and holds them all until it ends, as an NCCL kernel does.
  virtual int submit(const std::vector<void*>& streams, std::shared_ptr<Work> work, const Ran& description) = 0;
  virtual void observe(RanObserver observer) = 0;  // nullptr: nobody looks
  virtual std::uint64_t next_correlation() = 0;

 protected:
  ~Engine() = default;
};

}  // namespace fake

extern "C" fake::Engine* fake_engine();
