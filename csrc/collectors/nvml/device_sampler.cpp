// Queries one device and writes its rows. SPDX-License-Identifier: Apache-2.0
#include "collectors/nvml/device_sampler.h"

#include <cstring>

#include "core/clock.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "runtime/emit.h"
#include "schema/schema.h"

namespace stashtrace::nvml {

namespace {

constexpr std::int64_t kOldestUs = 1'000'000;  // a time stamp of NVML older than this is not believed
constinit abi::NvmlGpmMetrics g_metrics{};     // 20 KiB, used by the one sampler thread

unsigned bits_of(abi::NvmlValueType type) noexcept {
  switch (type) {
    case abi::kNvmlUnsignedInt:
    case abi::kNvmlSignedInt: return 32;
    case abi::kNvmlUnsignedShort: return 16;
    default: return 64;
  }
}

std::uint64_t raw_of(const abi::NvmlFieldValue& value) noexcept {
  switch (value.value_type) {
    case abi::kNvmlUnsignedInt: return value.value.as_uint32;
    case abi::kNvmlSignedInt: return static_cast<std::uint32_t>(value.value.as_int32);
    case abi::kNvmlUnsignedShort: return value.value.as_uint16;
    case abi::kNvmlDouble: return static_cast<std::uint64_t>(value.value.as_double > 0 ? value.value.as_double : 0);
    default: return value.value.as_uint64;
  }
}

// Which of the counters of bytes over NVLink.
int nvlink_place(const Field& field) noexcept {
  for (int i = 0; field.of_links && i < kNvlink5FieldsCount; ++i)
    if (std::strcmp(field.name, kFieldsOfNvlink5[i].name) == 0) return i;
  return kNotOfNvlink;
}

double plain_of(const abi::NvmlFieldValue& value) noexcept {
  if (value.value_type == abi::kNvmlDouble) return value.value.as_double;
  if (value.value_type == abi::kNvmlSignedInt) return value.value.as_int32;
  if (value.value_type == abi::kNvmlSignedLongLong) return static_cast<double>(value.value.as_int64);
  return static_cast<double>(raw_of(value));
}

}  // namespace

void DeviceSampler::begin(abi::NvmlDevice device, const char* uuid, const SampleContext& context) noexcept {
  device_ = device;
  std::memcpy(uuid_, uuid, sizeof uuid_ - 1);
  uuid_id_ = intern(uuid_);
  for (const Field& field : kFields) add_slot(field, -1);
  if (context.each_link) {
    for (const Field& field : kFields)
      for (unsigned link = 0; nvlink_place(field) != kNotOfNvlink && link < abi::kNvmlMostLinks; ++link)
        add_slot(field, static_cast<std::int32_t>(link));
  }
  begin_gpm(context);
}

void DeviceSampler::add_slot(const Field& field, std::int32_t link) noexcept {
  if (slots_count_ == kMostSlots) return;
  Slot& slot = slots_[slots_count_++];
  slot = {};  // the place may have been that of another field
  slot.field = &field;
  slot.link = link;
}

// True if a field of this name is still answered, for all links or for some.
bool DeviceSampler::counts(const Field& field) const noexcept {
  for (int i = 0; i < slots_count_; ++i)
    if (!slots_[i].off && std::strcmp(slots_[i].field->name, field.name) == 0) return true;
  return false;
}

// The reader sums over links: a sum of samples taken one after another would not be a reading.
void DeviceSampler::use_nvlink5(const Field& field) noexcept {
  int kept = 0;
  for (int i = 0; i < slots_count_; ++i)
    if (std::strcmp(slots_[i].field->name, field.name) != 0) slots_[kept++] = slots_[i];
  slots_count_ = kept;
  for (unsigned link = 0; link < abi::kNvmlMostLinks; ++link) add_slot(field, static_cast<std::int32_t>(link));
}

// Where the sum of links was refused and no single link is counted any more: asks for them as NVLink 5 counts them, and if
// that was refused as well, says so. Single links may be asked for later than their sum.
void DeviceSampler::replace_refused_links(const SampleContext& context) noexcept {
  for (int i = 0; i < kFieldsCount; ++i) {
    const int place = nvlink_place(kFields[i]);
    if (place == kNotOfNvlink || nvlink_refusals_[place] == abi::kNvmlSuccess || counts(kFields[i])) continue;
    if (!nvlink5_tried_[place]) {
      nvlink5_tried_[place] = true;
      use_nvlink5(kFieldsOfNvlink5[place]);
    } else {
      refuse(context.reported.fields, i, kFields[i].name, nvlink_refusals_[place]);
      nvlink_refusals_[place] = abi::kNvmlSuccess;
    }
  }
}

void DeviceSampler::sample(const SampleContext& context, unsigned paces, bool gpm) noexcept {
  if (!lost_) sample_fields(context, paces);
  if (!lost_ && (paces >> static_cast<int>(Pace::steady) & 1) != 0) sample_singles(context);
  if (!lost_ && gpm) sample_gpm(context);
}

void DeviceSampler::sample_fields(const SampleContext& context, unsigned paces) noexcept {
  abi::NvmlFieldValue values[kMostSlots];
  Slot* asked[kMostSlots];
  int count = 0;
  for (int i = 0; i < slots_count_; ++i) {
    Slot& slot = slots_[i];
    // Single links at the steady pace: up to 72 values of them.
    const Pace pace = slot.link >= 0 && slot.field->pace == Pace::fast ? Pace::steady : slot.field->pace;
    if (slot.off || (paces >> static_cast<int>(pace) & 1) == 0) continue;
    values[count] = {};
    values[count].field_id = slot.field->id;
    if (slot.field->of_links)
      values[count].scope_id = slot.link < 0 ? abi::kNvmlAllLinks : static_cast<unsigned>(slot.link);
    asked[count++] = &slot;
  }
  if (count == 0) return;
  const std::uint64_t before = now_ticks();
  const abi::NvmlReturn result = context.nvml.field_values == nullptr
                                     ? abi::kNvmlFunctionNotFound
                                     : context.nvml.field_values(device_, count, values);
  const std::uint64_t middle = before + (now_ticks() - before) / 2;
  const ClockReading now = read_clocks(2);
  bool nvlink_refused = false;
  for (int i = 0; i < count; ++i) {
    const abi::NvmlReturn own = result != abi::kNvmlSuccess ? result : values[i].result;
    if (own == abi::kNvmlSuccess) {
      take(context, *asked[i], values[i], middle, now);
      continue;
    }
    asked[i]->off = true;
    const Field& field = *asked[i]->field;
    const int place = nvlink_place(field);
    if (own == abi::kNvmlGpuIsLost || place == kNotOfNvlink) {
      refuse(context.reported.fields, static_cast<int>(&field - kFields), field.name, own);
      if (lost_) return;
    } else {
      // A device has fewer links than the most: of a single one that is not worth a word.
      if (asked[i]->link < 0) nvlink_refusals_[place] = own;
      nvlink_refused = true;
    }
  }
  if (nvlink_refused) replace_refused_links(context);
}

// `ticks`: of the middle of the call, for values without a time stamp.
void DeviceSampler::take(const SampleContext& context, Slot& slot, const abi::NvmlFieldValue& value,
                         std::uint64_t ticks, const ClockReading& now) noexcept {
  const std::int64_t age_us = now.realtime_ns / 1'000 - value.timestamp_us;
  if (value.timestamp_us > 0 && age_us >= 0 && age_us < kOldestUs) {
    if (value.timestamp_us == slot.timestamp_us) return;  // not refreshed since
    slot.timestamp_us = value.timestamp_us;
    // To the microsecond: the library read it a moment ago and answers now. Both clocks are read at one moment, else
    // a call that took long, or a thread that lost its core, would shift the reading.
    const std::uint64_t age = static_cast<std::uint64_t>(age_us) * (context.tick_hz / 1'000) / 1'000;
    if (age < now.ticks) ticks = now.ticks - age;
  }
  double plain;
  if (slot.field->cumulative) {
    const unsigned bits = bits_of(value.value_type);
    plain = static_cast<double>(slot.unwrap.next(raw_of(value), bits));
    if (slot.unwrap.falls() != 0 && !falls_reported_) {
      falls_reported_ = true;
      report_loss(kCollectorCode, "counter_fell", 1, slot.field->name, schema::codes::Severity::info);
    }
    if (bits == 32 && slot.field->pace == Pace::fast && slot.field->scale == 1 && !narrow_reported_) {
      narrow_reported_ = true;
      report_loss(kCollectorCode, "narrow_counter", 0,
                  "PCIe bytes are counted in 32 bits here: more than 4 GiB between two samples look like less",
                  schema::codes::Severity::info);
    }
  } else {
    plain = plain_of(value);
  }
  write(slot.series, slot.field->name, slot.link, {ticks, plain * slot.field->scale}, context.tick_hz);
}

void DeviceSampler::sample_singles(const SampleContext& context) noexcept {
  for (int i = 0; i < kSinglesCount && !lost_; ++i) {
    if (single_off_[i]) continue;
    double value = 0;
    const std::uint64_t before = now_ticks();
    const abi::NvmlReturn result = ask(context, kSingles[i].call, value);
    if (result != abi::kNvmlSuccess) {
      single_off_[i] = true;
      refuse(context.reported.singles, i, kSingles[i].name, result);
      continue;
    }
    write(single_series_[i], kSingles[i].name, -1, {before + (now_ticks() - before) / 2, value}, context.tick_hz);
  }
}

abi::NvmlReturn DeviceSampler::ask(const SampleContext& context, Call call, double& value) noexcept {
  const abi::NvmlFunctions& nvml = context.nvml;
  constexpr double kMegahertz = 1e6;
  unsigned number = 0;
  unsigned long long bits = 0;
  abi::NvmlMemory memory{};
  abi::NvmlUtilization rates{};
  abi::NvmlReturn result = abi::kNvmlFunctionNotFound;
  switch (call) {
    case Call::power:
      if (nvml.power != nullptr) result = nvml.power(device_, &number);
      value = number * 1e-3;
      break;
    case Call::sm_clock:
    case Call::memory_clock:
      if (nvml.clock != nullptr)
        result = nvml.clock(device_, call == Call::sm_clock ? abi::kNvmlClockSm : abi::kNvmlClockMemory, &number);
      value = number * kMegahertz;
      break;
    case Call::temperature:
      if (nvml.temperature != nullptr) result = nvml.temperature(device_, abi::kNvmlTemperatureGpu, &number);
      value = number;
      break;
    case Call::memory_used:
      if (nvml.memory != nullptr) result = nvml.memory(device_, &memory);
      value = static_cast<double>(memory.used_bytes);
      break;
    case Call::busy:
      if (nvml.utilization != nullptr) result = nvml.utilization(device_, &rates);
      value = rates.gpu_percent * kPercent;
      break;
    case Call::throttle:
      if (nvml.clock_reasons != nullptr) {
        result = nvml.clock_reasons(device_, &bits);
      } else if (nvml.clock_reasons_old != nullptr) {
        result = nvml.clock_reasons_old(device_, &bits);
      }
      value = static_cast<double>(bits);
      break;
  }
  return result;
}

void DeviceSampler::begin_gpm(const SampleContext& context) noexcept {
  const abi::NvmlFunctions& nvml = context.nvml;
  abi::NvmlReturn result = abi::kNvmlFunctionNotFound;
  if (nvml.gpm_support != nullptr && nvml.gpm_sample_alloc != nullptr && nvml.gpm_sample_get != nullptr &&
      nvml.gpm_metrics_get != nullptr) {
    abi::NvmlGpmSupport support{abi::kGpmSupportVersion, 0};
    result = nvml.gpm_support(device_, &support);
    if (result == abi::kNvmlSuccess && support.is_supported == 0) result = abi::kNvmlNotSupported;
  }
  for (abi::NvmlGpmSample& sample : gpm_samples_)
    if (result == abi::kNvmlSuccess) result = nvml.gpm_sample_alloc(&sample);
  gpm_on_ = result == abi::kNvmlSuccess;
  if (!gpm_on_) refuse(context.reported.gpm, 31, "gpm", result);
}

void DeviceSampler::sample_gpm(const SampleContext& context) noexcept {
  if (!gpm_on_) return;
  const std::uint64_t before = now_ticks();
  abi::NvmlReturn result = context.nvml.gpm_sample_get(device_, gpm_samples_[gpm_fresh_]);
  const std::uint64_t ticks = before + (now_ticks() - before) / 2;
  if (result == abi::kNvmlSuccess && gpm_has_first_) result = write_gpm(context, ticks);
  gpm_on_ = result == abi::kNvmlSuccess;
  if (!gpm_on_) refuse(context.reported.gpm, 31, "gpm", result);
  gpm_has_first_ = true;
  gpm_fresh_ = 1 - gpm_fresh_;
}

abi::NvmlReturn DeviceSampler::write_gpm(const SampleContext& context, std::uint64_t ticks) noexcept {
  g_metrics.version = abi::kGpmMetricsVersion;
  g_metrics.first = gpm_samples_[1 - gpm_fresh_];
  g_metrics.second = gpm_samples_[gpm_fresh_];
  int places[kGpmMetricsCount];
  unsigned count = 0;
  for (int i = 0; i < kGpmMetricsCount; ++i) {
    if (gpm_off_[i]) continue;
    g_metrics.metrics[count] = {};
    g_metrics.metrics[count].metric_id = kGpmMetrics[i].id;
    places[count++] = i;
  }
  if (count == 0) return abi::kNvmlNotSupported;
  g_metrics.metrics_count = count;
  const abi::NvmlReturn result = context.nvml.gpm_metrics_get(&g_metrics);
  if (result != abi::kNvmlSuccess) return result;
  for (unsigned i = 0; i < count; ++i) {
    const int place = places[i];
    const abi::NvmlGpmMetric& metric = g_metrics.metrics[i];
    if (metric.result != abi::kNvmlSuccess) {
      gpm_off_[place] = true;
      refuse(context.reported.gpm, place, kGpmMetrics[place].name, metric.result);
    } else if (metric.value >= 0) {  // not a number: the device did not count in between
      write(gpm_series_[place], kGpmMetrics[place].name, -1, {ticks, metric.value * kGpmMetrics[place].scale},
            context.tick_hz);
    }
  }
  return abi::kNvmlSuccess;
}

void DeviceSampler::write(Series& series, const char* name, std::int32_t link, Reading reading,
                          std::uint64_t longest) noexcept {
  Reading keep[2];
  const int count = series.next(reading, longest, keep);
  for (int i = 0; i < count; ++i)
    emit(schema::DeviceSample{keep[i].ticks, keep[i].value, uuid_id_, intern(name), link, 0});
}

// A normal refusal (not offered by this device) is reported once for the process, any other once per device.
void DeviceSampler::refuse(std::uint32_t& reported, int place, const char* name, abi::NvmlReturn result) noexcept {
  if (result == abi::kNvmlGpuIsLost) {
    lost_ = true;
    report_loss(kCollectorCode, "device_lost", 1, uuid_, schema::codes::Severity::error);
    return;
  }
  const bool normal = result == abi::kNvmlNotSupported || result == abi::kNvmlFunctionNotFound;
  const std::uint32_t bit = std::uint32_t{1} << (place & 31);
  if (normal && (reported & bit) != 0) return;
  if (normal) reported |= bit;
  char memory[192];
  TextBuffer detail(memory, sizeof memory - 1);
  detail.add(name).add(normal ? " is not offered by " : " is off: NVML refused it for ").add(uuid_);
  detail.add(" (code ").add(std::int64_t{result}).add(")");
  report_loss(kCollectorCode, normal ? "counter_not_offered" : "counter_failed", 1, detail.c_str(),
              schema::codes::Severity::info);
}

}  // namespace stashtrace::nvml
