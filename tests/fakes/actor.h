// A process of a job on the doubles: state and the two halves of its statements. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actor_calls.h"
#include "actor_program.h"
#include "nccl_rendezvous.h"

namespace fake {

class Actor {
 public:
  Actor();
  void run(const std::vector<Statement>& program);
  void finish();
  void print_results() const;

 private:
  using Action = void (Actor::*)(const Statement&);
  static const std::map<std::string, Action>& actions();

  // actor_device.cpp: kernels, copies, streams, events, graphs
  void kernel(const Statement&);
  void copy(const Statement&);
  void memset(const Statement&);
  void allocate(const Statement&);
  void release(const Statement&);
  void record(const Statement&);
  void wait_event(const Statement&);
  void wait(const Statement&);
  void sync(const Statement&);
  void query(const Statement&);
  void elapsed(const Statement&);
  void stream(const Statement&);
  void capture(const Statement&);
  void launch(const Statement&);
  // actor_comms.cpp: NCCL
  void collective(const Statement&);
  void group(const Statement&);
  void comm(const Statement&);
  void simulate(const Statement&);
  void one_sided(const Statement&);
  void storm(const Statement&);
  void child(const Statement&);
  // device_actor.cpp: the host, and what the probes would tell
  void repeat(const Statement&);
  void only_rank(const Statement&);
  void thread(const Statement&);
  void sleep(const Statement&);
  void spin(const Statement&);
  void meet(const Statement&);
  void phase(const Statement&);
  void step(const Statement&);
  void batch_wait(const Statement&);
  void leave(const Statement&);
  void device(const Statement&);

  int check(const char* call, int result);
  void* stream_of(const Statement&, const char* key = "stream");
  void* stream_number(int number);
  void* event_number(int number);
  stashtrace::nccl::Comm comm_number(int number);
  stashtrace::nccl::Comm make_world(int number, const Statement* how);
  void await_comm(int number);

  int rank_, size_;
  bool left_ = false, stopped_ = false;
  std::map<int, void*> streams_, events_, graphs_, memory_;
  std::map<int, stashtrace::nccl::Comm> comms_;
  std::map<int, bool> non_blocking_;
  void *device_buffer_ = nullptr, *pinned_ = nullptr, *pageable_ = nullptr;
  std::uint64_t steps_ = 0, batches_ = 0, meetings_ = 0;
  std::map<std::string, std::uint64_t> errors_;  // "call code" -> how often
  std::vector<std::string> results_;             // JSON values
  Rendezvous* job_ = nullptr;
};

constexpr std::size_t kBufferBytes = std::size_t{1} << 30;

}  // namespace fake
