// One device, asked again and again. SPDX-License-Identifier: Apache-2.0
//
// Caller: nvml.cpp, on the sampler's thread only. A refused quantity is reported once and never asked for again; a
// lost device is left alone. No allocation except NVML's GPM buffers, two per device.
#pragma once

#include <cstdint>

#include "abi/nvml_abi.h"
#include "collectors/nvml/libraries.h"
#include "collectors/nvml/quantities.h"
#include "collectors/nvml/series.h"
#include "core/clock.h"

namespace stashtrace::nvml {

inline constexpr std::uint16_t kCollectorCode = 10;  // COLLECTOR(nvml, ...) of device_records.def

// Which quantities were reported as missing, so that eight equal devices make one row and not eight.
struct Reported {
  std::uint32_t fields, singles, gpm;
};

struct SampleContext {
  const abi::NvmlFunctions& nvml;
  std::uint64_t tick_hz;
  bool each_link;
  Reported& reported;
};

class DeviceSampler {
 public:
  void begin(abi::NvmlDevice device, const char* uuid, const SampleContext& context) noexcept;
  // `paces`: bit Pace of what is due; `gpm`: a GPM sample is due too.
  void sample(const SampleContext& context, unsigned paces, bool gpm) noexcept;
  const char* uuid() const noexcept { return uuid_; }

 private:
  struct Slot {
    const Field* field;
    std::int32_t link;  // -1: whole device
    bool off;
    std::int64_t timestamp_us;
    Unwrap unwrap;
    Series series;
  };
  static constexpr int kMostSlots = kFieldsCount + kNvlink5FieldsCount * static_cast<int>(abi::kNvmlMostLinks);

  void add_slot(const Field& field, std::int32_t link) noexcept;
  bool counts(const Field& field) const noexcept;
  void use_nvlink5(const Field& field) noexcept;
  void replace_refused_links(const SampleContext& context) noexcept;
  void sample_fields(const SampleContext& context, unsigned paces) noexcept;
  void take(const SampleContext& context, Slot& slot, const abi::NvmlFieldValue& value, std::uint64_t ticks,
            const ClockReading& now) noexcept;
  void sample_singles(const SampleContext& context) noexcept;
  abi::NvmlReturn ask(const SampleContext& context, Call call, double& value) noexcept;
  void begin_gpm(const SampleContext& context) noexcept;
  void sample_gpm(const SampleContext& context) noexcept;
  abi::NvmlReturn write_gpm(const SampleContext& context, std::uint64_t ticks) noexcept;
  void write(Series& series, const char* name, std::int32_t link, Reading reading, std::uint64_t longest) noexcept;
  void refuse(std::uint32_t& reported, int place, const char* name, abi::NvmlReturn result) noexcept;

  abi::NvmlDevice device_ = nullptr;
  char uuid_[kUuidTextBytes] = {};
  std::uint32_t uuid_id_ = 0;
  bool lost_ = false;
  bool falls_reported_ = false;
  bool narrow_reported_ = false;
  bool nvlink5_tried_[kNvlink5FieldsCount] = {};
  abi::NvmlReturn nvlink_refusals_[kNvlink5FieldsCount] = {};  // of the sums of links, until links are tried one by one
  int slots_count_ = 0;
  Slot slots_[kMostSlots] = {};
  bool single_off_[kSinglesCount] = {};
  Series single_series_[kSinglesCount];
  abi::NvmlGpmSample gpm_samples_[2] = {};
  bool gpm_on_ = false;
  bool gpm_has_first_ = false;
  int gpm_fresh_ = 0;  // which of the two is filled next
  bool gpm_off_[kGpmMetricsCount] = {};
  Series gpm_series_[kGpmMetricsCount];
};

}  // namespace stashtrace::nvml
