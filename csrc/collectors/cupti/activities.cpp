// Implementation of activities.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/cupti/activities.h"

#include <sys/mman.h>

#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"

namespace stashtrace::cupti {

using abi::cupti::ActivityKind;
using abi::cupti::CopyKind;
using abi::cupti::SynchronizationType;
namespace codes = schema::codes;

namespace {

std::uint16_t direction_of(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::host_to_device:
    case CopyKind::host_to_array: return codes::CopyDirection::host_to_device;
    case CopyKind::device_to_host:
    case CopyKind::array_to_host: return codes::CopyDirection::device_to_host;
    case CopyKind::array_to_array:
    case CopyKind::array_to_device:
    case CopyKind::device_to_array:
    case CopyKind::device_to_device: return codes::CopyDirection::device_to_device;
    case CopyKind::host_to_host: return codes::CopyDirection::host_to_host;
    case CopyKind::peer: return codes::CopyDirection::peer;
    case CopyKind::unknown: break;
  }
  return codes::CopyDirection::unknown;
}

constexpr std::string_view kMemoryKinds[] = {"unknown", "pageable", "pinned", "device",
                                             "array",   "managed",  "device", "managed"};

std::uint32_t copy_name(std::uint8_t source, std::uint8_t target) noexcept {
  const auto name = [](std::uint8_t kind) { return kMemoryKinds[kind < std::size(kMemoryKinds) ? kind : 0]; };
  char memory[48];
  TextBuffer text(memory, sizeof memory);
  text.add("memcpy ").add(name(source)).add(" -> ").add(name(target));
  return intern(text.text());
}

std::string_view synchronization_name(SynchronizationType type) noexcept {
  switch (type) {
    case SynchronizationType::event: return "event synchronize";
    case SynchronizationType::stream_wait_event: return "stream wait event";
    case SynchronizationType::stream: return "stream synchronize";
    case SynchronizationType::context: return "context synchronize";
    case SynchronizationType::unknown: break;
  }
  return "synchronize";
}

}  // namespace

struct Activities::Work {
  std::uint64_t start_ns, end_ns, bytes, graph_key;
  std::uint32_t correlation_id, stream_id, name_id;
  std::int32_t device_index;
  std::uint16_t work_code, copy_code;
};

bool is_nccl_kernel(std::string_view name) noexcept {
  if (name.starts_with("_Z")) {
    name.remove_prefix(2);
    while (!name.empty() && name.front() >= '0' && name.front() <= '9') name.remove_prefix(1);
  }
  return name.starts_with("nccl") && name.substr(0, 24).find("Kernel") != name.npos;
}

bool Activities::reserve() noexcept {
  if (calls_ == nullptr)
    calls_ = static_cast<Call*>(raw::mmap(nullptr, kCalls * sizeof(Call), PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return calls_ != nullptr;
}

void Activities::begin_again() noexcept {
  lock_.lock();
  readings_.begin_again();
  for (auto* number : {&begin_ns_, &end_ns_, &rows_, &dropped_, &incomplete_, &unread_buffers_})
    number->store(0, std::memory_order_relaxed);
  lock_.unlock();
}

void Activities::add_reading(const Reading& reading, std::int64_t wait_ns) noexcept {
  if (!lock_.lock_within(wait_ns)) return;
  readings_.add(reading);
  lock_.unlock();
}

void Activities::read_buffer(const Library& cupti, std::uint8_t* buffer, std::size_t valid_bytes) noexcept {
  lock_.lock();
  bool complete = reserve();
  for (int pass = 0; pass < 2 && complete; ++pass) {
    abi::cupti::Activity* record = nullptr;
    int status = abi::cupti::kSuccess;
    while ((status = cupti.cuptiActivityGetNextRecord(buffer, valid_bytes, &record)) == abi::cupti::kSuccess) {
      const bool is_call = record->kind == ActivityKind::runtime || record->kind == ActivityKind::driver;
      if (pass == 0 && is_call) keep_call(*reinterpret_cast<const abi::cupti::ActivityApi*>(record));
      if (pass == 1 && !is_call) keep_work(record);
    }
    complete = status == abi::cupti::kMaxLimitReached;
  }
  if (!complete) unread_buffers_.fetch_add(1, std::memory_order_relaxed);
  std::size_t dropped = 0;
  if (cupti.cuptiActivityGetNumDroppedRecords != nullptr &&
      cupti.cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == abi::cupti::kSuccess)
    dropped_.fetch_add(dropped, std::memory_order_relaxed);
  lock_.unlock();
}

// A runtime call and the driver call inside it have one correlation id: the outer one is kept.
void Activities::keep_call(const abi::cupti::ActivityApi& call) noexcept {
  Call& slot = calls_[call.correlation_id % kCalls];
  const bool same = slot.correlation_id == call.correlation_id && slot.end_ns != 0;
  if (same && slot.begin_ns <= call.start_ns && slot.end_ns >= call.end_ns) return;
  slot = {call.start_ns, call.end_ns, call.correlation_id, call.thread_id};
}

void Activities::learn_context(std::uint32_t context_id, std::uint32_t device_id) noexcept {
  device_of_context_[context_id % kContexts] = static_cast<std::int32_t>(device_id) + 1;
}

std::int32_t Activities::device_of(std::uint32_t context_id) const noexcept {
  return device_of_context_[context_id % kContexts] - 1;
}

void Activities::keep_work(const abi::cupti::Activity* record) noexcept {
  Work work{};
  switch (record->kind) {
    case ActivityKind::kernel:
    case ActivityKind::concurrent_kernel: {
      const auto& kernel = *reinterpret_cast<const abi::cupti::ActivityKernel*>(record);
      const std::string_view name = kernel.name != nullptr ? kernel.name : "";
      learn_context(kernel.context_id, kernel.device_id);
      work = {kernel.start_ns,
              kernel.end_ns,
              0,
              kernel.graph_node_id,
              kernel.correlation_id,
              kernel.stream_id,
              intern(name),
              static_cast<std::int32_t>(kernel.device_id),
              is_nccl_kernel(name) ? codes::DeviceWork::communication : codes::DeviceWork::kernel,
              0};
      break;
    }
    case ActivityKind::memcpy: {
      const auto& copy = *reinterpret_cast<const abi::cupti::ActivityMemcpy*>(record);
      learn_context(copy.context_id, copy.device_id);
      work = {copy.start_ns,
              copy.end_ns,
              copy.bytes,
              copy.graph_node_id,
              copy.correlation_id,
              copy.stream_id,
              copy_name(copy.source_kind, copy.target_kind),
              static_cast<std::int32_t>(copy.device_id),
              codes::DeviceWork::copy,
              direction_of(copy.copy_kind)};
      break;
    }
    case ActivityKind::memcpy_peer: {
      const auto& copy = *reinterpret_cast<const abi::cupti::ActivityMemcpyPeer*>(record);
      learn_context(copy.context_id, copy.device_id);
      work = {copy.start_ns,
              copy.end_ns,
              copy.bytes,
              copy.graph_node_id,
              copy.correlation_id,
              copy.stream_id,
              intern("memcpy peer"),
              static_cast<std::int32_t>(copy.device_id),
              codes::DeviceWork::copy,
              codes::CopyDirection::peer};
      break;
    }
    case ActivityKind::memset: {
      const auto& set = *reinterpret_cast<const abi::cupti::ActivityMemset*>(record);
      learn_context(set.context_id, set.device_id);
      work = {set.start_ns,
              set.end_ns,
              set.bytes,
              set.graph_node_id,
              set.correlation_id,
              set.stream_id,
              intern("memset"),
              static_cast<std::int32_t>(set.device_id),
              codes::DeviceWork::memset,
              0};
      break;
    }
    case ActivityKind::graph_trace: {
      const auto& graph = *reinterpret_cast<const abi::cupti::ActivityGraphTrace*>(record);
      learn_context(graph.context_id, graph.device_id);
      work = {graph.start_ns,
              graph.end_ns,
              0,
              graph.graph_id,
              graph.correlation_id,
              graph.stream_id,
              intern("graph"),
              static_cast<std::int32_t>(graph.device_id),
              codes::DeviceWork::graph,
              0};
      break;
    }
    case ActivityKind::synchronization: {
      const auto& wait = *reinterpret_cast<const abi::cupti::ActivitySynchronization*>(record);
      work = {wait.start_ns,
              wait.end_ns,
              0,
              0,
              wait.correlation_id,
              wait.stream_id,
              intern(synchronization_name(wait.type)),
              device_of(wait.context_id),
              codes::DeviceWork::synchronization,
              0};
      break;
    }
    default: return;
  }
  write(work);
}

void Activities::write(const Work& work) noexcept {
  const std::uint64_t window_begin = begin_ns_.load(std::memory_order_relaxed);
  const std::uint64_t window_end = end_ns_.load(std::memory_order_relaxed);
  if (work.start_ns == 0 || work.end_ns == 0) {  // flushed by force before the device was done with it
    incomplete_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (window_begin == 0 || work.end_ns <= window_begin || (window_end != 0 && work.start_ns >= window_end)) return;
  schema::KernelRow row{};
  const Call& call = calls_[work.correlation_id % kCalls];
  if (call.end_ns != 0 && call.correlation_id == work.correlation_id) {
    row.launch_ticks = readings_.to_ticks(static_cast<std::int64_t>(call.begin_ns));
    row.return_ticks = readings_.to_ticks(static_cast<std::int64_t>(call.end_ns));
    row.tid = call.tid;
  }
  row.begin_device_ns = static_cast<std::int64_t>(work.start_ns);
  row.end_device_ns = static_cast<std::int64_t>(work.end_ns);
  row.size_bytes = static_cast<std::int64_t>(work.bytes);
  row.correlation_id = work.correlation_id;
  row.graph_key = work.graph_key;
  row.stream_index = work.stream_id;
  row.name_id = work.name_id;
  row.device_index = work.device_index;
  row.work_code = work.work_code;
  row.copy_code = work.copy_code;
  readings_.see(work.device_index);
  emit(row);
  rows_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace stashtrace::cupti
