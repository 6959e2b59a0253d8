// Double of libnvidia-ml.so.1: counters that grow at scripted rates. SPDX-License-Identifier: Apache-2.0
//
// Settings (script.h), for all devices or one (`device N KEY VALUE`):
//   devices 2               how many; nvml_order reversed: listed the other way round than CUDA lists them
//   uuid GPU-...            else GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeNN, as the double of libcuda has it
//   nvlink_tx 25GB          bytes per second, also nvlink_rx, pcie_tx, pcie_rx; spread evenly over `links` (18)
//   burst 20ms 100ms        traffic flows only in the first 20 ms of every 100 ms of CLOCK_MONOTONIC
//   pcie_bits 32            width of the PCIe counters, which then wrap; 64 without
//   power 400W  sm_clock 1980MHz  memory_clock 2619MHz  temperature 60C  memory_used 30GB  throttle 4
//   typed 82:double 83:short     fields that come as this type of value: double, int, long, short
//   reset 400ms             64-bit counters begin again so long after the first reading
//   unsupported 138 139     field numbers that answer "not supported"; `gpm 0`: no GPM on this device
//   refused 138:999 139:4   field numbers that answer with these codes; each value has its own, nvml.h 13.5, 3277
//   sm 80  occupancy 40  tensor 30  dram 50      what GPM tells, in percent
//   driver 580.65  cuda 13000  name "NVIDIA Double": what nvidia-ml-py reads of the machine and its devices
//   pcie_generation 5  pcie_width 16  pcie_most_width 16  ecc 1  ecc_errors 0  nvlink_version 4
//   nvlink_to 1:4 switch:14  where the active links of a device end; without it no link is active
//   path_0_1 50  level of the topology between two devices, NVML_TOPOLOGY_*; 10 without
// GPM samples less than 100 ms apart give no data, as the documentation threatens.
#include <algorithm>
#include <cmath>

#include "abi/nvml_abi.h"
#include "script.h"

using namespace stashtrace::abi;

namespace {

std::int64_t time_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// What the script says of one device, in numbers: read once, so that what a sampler costs is not the cost of the script.
struct Plan {
  double nvlink_tx, nvlink_rx, pcie_tx, pcie_rx, reset_ns, burst_ns = 0, burst_period_ns = 0;
  double power, sm_clock, memory_clock, temperature, memory_used, busy, throttle;
  std::uint32_t links;
  int pcie_bits;
  bool nvlink5, gpm;
  std::vector<std::uint32_t> unsupported;
  std::map<std::uint32_t, NvmlReturn> refused;
  std::map<std::uint32_t, std::string> typed;
  std::string uuid;

  explicit Plan(int device) {
    const auto number = [=](const char* key, double otherwise) { return fake::device_setting(device, key, otherwise); };
    nvlink_tx = number("nvlink_tx", 0), nvlink_rx = number("nvlink_rx", 0);
    pcie_tx = number("pcie_tx", 0), pcie_rx = number("pcie_rx", 0);
    reset_ns = number("reset", 0);
    power = number("power", 300), busy = number("busy", 90), throttle = number("throttle", 0);
    sm_clock = number("sm_clock", 1980), memory_clock = number("memory_clock", 2619);
    temperature = number("temperature", 55), memory_used = number("memory_used", 10e9);
    links = static_cast<std::uint32_t>(number("links", 18));
    pcie_bits = static_cast<int>(number("pcie_bits", 64));
    nvlink5 = number("nvlink5", 0) != 0, gpm = number("gpm", 1) != 0;
    std::istringstream burst(fake::device_text(device, "burst", ""));
    std::string on, period;
    if (burst >> on >> period) burst_ns = fake::number_of(on, 1), burst_period_ns = fake::number_of(period, 1);
    std::istringstream fields(fake::device_text(device, "unsupported", ""));
    for (std::uint32_t field; fields >> field;) unsupported.push_back(field);
    std::istringstream codes(fake::device_text(device, "refused", ""));
    for (std::string word; codes >> word;)
      refused[static_cast<std::uint32_t>(std::stoul(word))] = std::stoi(word.substr(word.find(':') + 1));
    std::istringstream types(fake::device_text(device, "typed", ""));
    for (std::string word; types >> word;) {
      const std::size_t colon = word.find(':');
      if (colon != word.npos) typed[static_cast<std::uint32_t>(std::stoul(word))] = word.substr(colon + 1);
    }
    char text[64];
    snprintf(text, sizeof text, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae%02x", static_cast<unsigned>(device));
    uuid = fake::device_text(device, "uuid", text);
  }
};

// Never destroyed: a sampler may outlive main.
const std::vector<Plan>& plans() {
  static const std::vector<Plan>& all = *[] {
    auto* made = new std::vector<Plan>;
    const int count = static_cast<int>(fake::setting("devices", 1));
    for (int device = 0; device < count; ++device) made->emplace_back(device);
    return made;
  }();
  return all;
}

int devices_count() { return static_cast<int>(plans().size()); }

// Of one moment, though the thread may lose its core between two readings.
struct Moment {
  std::int64_t monotonic_ns, realtime_ns;
};
Moment moment() {
  constexpr std::int64_t kAtOnceNs = 5'000;
  for (int left = 1000;; --left) {
    const std::int64_t before = time_ns(CLOCK_MONOTONIC), realtime = time_ns(CLOCK_REALTIME);
    const std::int64_t after = time_ns(CLOCK_MONOTONIC);
    if (after - before < kAtOnceNs || left == 0) return {before + (after - before) / 2, realtime};
  }
}

NvmlDevice handle(int device) { return reinterpret_cast<NvmlDevice>(static_cast<std::uintptr_t>(device + 1)); }
int index_of(NvmlDevice device) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(device)) - 1; }
bool is_device(NvmlDevice device) { return index_of(device) >= 0 && index_of(device) < devices_count(); }
const Plan& plan_of(NvmlDevice device) { return plans().at(static_cast<std::size_t>(index_of(device))); }

// Seconds during which traffic flowed since the machine began.
double busy_seconds(const Plan& plan, std::int64_t now_ns) {
  const auto now = static_cast<double>(now_ns), period = plan.burst_period_ns;
  if (period <= 0) return now * 1e-9;
  const double whole = std::floor(now / period);
  return (whole * plan.burst_ns + std::fmin(now - whole * period, plan.burst_ns)) * 1e-9;
}

std::uint64_t moved_bytes(const Plan& plan, double rate, std::int64_t now_ns) {
  static const std::int64_t first_ns = now_ns;
  if (plan.reset_ns > 0 && static_cast<double>(now_ns - first_ns) > plan.reset_ns)
    now_ns -= first_ns + static_cast<std::int64_t>(plan.reset_ns);
  return static_cast<std::uint64_t>(rate * busy_seconds(plan, now_ns));
}

bool is_unsupported(const Plan& plan, std::uint32_t field) {
  return std::find(plan.unsupported.begin(), plan.unsupported.end(), field) != plan.unsupported.end();
}

void put(NvmlFieldValue& value, std::uint64_t number, int bits = 64) {
  value.value_type = bits == 32 ? kNvmlUnsignedInt : kNvmlUnsignedLongLong;
  value.value = {};
  if (bits == 32) {
    value.value.as_uint32 = static_cast<std::uint32_t>(number);
  } else {
    value.value.as_uint64 = number;
  }
}

NvmlReturn link_bytes(const Plan& plan, double rate, std::int64_t now_ns, std::uint32_t scope, std::uint64_t& bytes) {
  if (plan.links == 0) return kNvmlNotSupported;
  bytes = moved_bytes(plan, rate, now_ns);
  if (scope == kNvmlAllLinks) return kNvmlSuccess;
  bytes /= plan.links;
  return scope < plan.links ? kNvmlSuccess : kNvmlInvalidArgument;
}

NvmlReturn fill(const Plan& plan, NvmlFieldValue& value, std::int64_t now_ns) {
  std::uint64_t bytes = 0;
  NvmlReturn result = kNvmlSuccess;
  switch (value.field_id) {
    case kNvmlNvlinkDataTx:
    case kNvmlNvlinkDataRx:
      result = link_bytes(plan, value.field_id == kNvmlNvlinkDataTx ? plan.nvlink_tx : plan.nvlink_rx, now_ns,
                          value.scope_id, bytes);
      put(value, bytes / 1024);
      return result;
    case kNvmlNvlinkXmitBytes:
    case kNvmlNvlinkRcvBytes:
      if (!plan.nvlink5 || value.scope_id == kNvmlAllLinks) return kNvmlNotSupported;
      result = link_bytes(plan, value.field_id == kNvmlNvlinkXmitBytes ? plan.nvlink_tx : plan.nvlink_rx, now_ns,
                          value.scope_id, bytes);
      put(value, bytes);
      return result;
    case kNvmlPcieTxBytes: put(value, moved_bytes(plan, plan.pcie_tx, now_ns), plan.pcie_bits); return kNvmlSuccess;
    case kNvmlPcieRxBytes: put(value, moved_bytes(plan, plan.pcie_rx, now_ns), plan.pcie_bits); return kNvmlSuccess;
    case kNvmlTotalEnergy:
      put(value, static_cast<std::uint64_t>(plan.power * static_cast<double>(now_ns) * 1e-6));
      return kNvmlSuccess;
    case kNvmlMemoryTemperature: put(value, 65, 32); return kNvmlSuccess;
    case kNvmlThrottlePowerNs:
    case kNvmlThrottleThermalNs:
    case kNvmlEccSingleVolatile:
    case kNvmlEccDoubleVolatile:
    case kNvmlPcieReplays:
    case kNvmlNvlinkCrcFlitErrors:
    case kNvmlNvlinkCrcDataErrors:
    case kNvmlNvlinkReplayErrors:
    case kNvmlNvlinkRecoveryErrors: put(value, 0); return kNvmlSuccess;
    default: return kNvmlNotSupported;
  }
}

// Drivers differ in the type that they tell a field as.
void retype(const Plan& plan, NvmlFieldValue& value) {
  const auto found = plan.typed.find(value.field_id);
  if (found == plan.typed.end()) return;
  const std::string& type = found->second;
  const std::uint64_t number = value.value_type == kNvmlUnsignedInt ? value.value.as_uint32 : value.value.as_uint64;
  value.value = {};
  if (type == "double") {
    value.value_type = kNvmlDouble;
    value.value.as_double = static_cast<double>(number);
  } else if (type == "int") {
    value.value_type = kNvmlSignedInt;
    value.value.as_int32 = static_cast<std::int32_t>(number);
  } else if (type == "long") {
    value.value_type = kNvmlSignedLongLong;
    value.value.as_int64 = static_cast<std::int64_t>(number);
  } else {
    value.value_type = kNvmlUnsignedShort;
    value.value.as_uint16 = static_cast<std::uint16_t>(number);
  }
}

struct Sample {
  std::int64_t taken_ns;
};

// What GPM tells, the same for all devices.
struct Gpm {
  double sm = fake::setting("sm", 80), occupancy = fake::setting("occupancy", 40), tensor = fake::setting("tensor", 30);
  double dram = fake::setting("dram", 50), pcie_tx = fake::setting("pcie_tx", 0), pcie_rx = fake::setting("pcie_rx", 0);
  double nvlink_tx = fake::setting("nvlink_tx", 0), nvlink_rx = fake::setting("nvlink_rx", 0);
};

}  // namespace

FAKE_API NvmlReturn nvmlInitWithFlags(unsigned) {
  FAKE_CALL(nvmlInitWithFlags);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlInit_v2() {
  FAKE_CALL(nvmlInit_v2);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlShutdown() {
  FAKE_CALL(nvmlShutdown);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetCount_v2(unsigned* count) {
  FAKE_CALL(nvmlDeviceGetCount_v2);
  *count = static_cast<unsigned>(devices_count());
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice* device) {
  FAKE_CALL(nvmlDeviceGetHandleByIndex_v2);
  const int count = devices_count();
  if (static_cast<int>(index) >= count) return kNvmlInvalidArgument;
  const bool reversed = fake::text_setting("nvml_order", "") == "reversed";
  *device = handle(reversed ? count - 1 - static_cast<int>(index) : static_cast<int>(index));
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetUUID(NvmlDevice device, char* uuid, unsigned bytes) {
  FAKE_CALL(nvmlDeviceGetUUID);
  if (!is_device(device)) return kNvmlInvalidArgument;
  snprintf(uuid, bytes, "%s", plan_of(device).uuid.c_str());
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetFieldValues(NvmlDevice device, int count, NvmlFieldValue* values) {
  FAKE_CALL(nvmlDeviceGetFieldValues);
  if (!is_device(device)) return kNvmlInvalidArgument;
  const Plan& plan = plan_of(device);
  const auto [now_ns, realtime_ns] = moment();
  const std::int64_t now_us = realtime_ns / 1'000;
  for (int i = 0; i < count; ++i) {
    NvmlFieldValue& value = values[i];
    value.timestamp_us = now_us;
    value.latency_us = 0;
    value.result = is_unsupported(plan, value.field_id) ? kNvmlNotSupported : fill(plan, value, now_ns);
    if (const auto refusal = plan.refused.find(value.field_id); refusal != plan.refused.end()) value.result = refusal->second;
    if (value.result == kNvmlSuccess) retype(plan, value);
  }
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetPowerUsage(NvmlDevice device, unsigned* milliwatts) {
  FAKE_CALL(nvmlDeviceGetPowerUsage);
  *milliwatts = static_cast<unsigned>(plan_of(device).power * 1e3);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetClockInfo(NvmlDevice device, int clock, unsigned* megahertz) {
  FAKE_CALL(nvmlDeviceGetClockInfo);
  const Plan& plan = plan_of(device);
  *megahertz = static_cast<unsigned>(clock == kNvmlClockMemory ? plan.memory_clock : plan.sm_clock);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetTemperature(NvmlDevice device, int, unsigned* celsius) {
  FAKE_CALL(nvmlDeviceGetTemperature);
  *celsius = static_cast<unsigned>(plan_of(device).temperature);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetMemoryInfo(NvmlDevice device, NvmlMemory* memory) {
  FAKE_CALL(nvmlDeviceGetMemoryInfo);
  const auto used = static_cast<std::uint64_t>(plan_of(device).memory_used);
  *memory = {150'000'000'000, 150'000'000'000 - used, used};
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetUtilizationRates(NvmlDevice device, NvmlUtilization* rates) {
  FAKE_CALL(nvmlDeviceGetUtilizationRates);
  *rates = {static_cast<std::uint32_t>(plan_of(device).busy), 40};
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetCurrentClocksEventReasons(NvmlDevice device, unsigned long long* reasons) {
  FAKE_CALL(nvmlDeviceGetCurrentClocksEventReasons);
  *reasons = static_cast<unsigned long long>(plan_of(device).throttle);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetCurrentClocksThrottleReasons(NvmlDevice device, unsigned long long* reasons) {
  FAKE_CALL(nvmlDeviceGetCurrentClocksThrottleReasons);
  *reasons = static_cast<unsigned long long>(plan_of(device).throttle);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlGpmQueryDeviceSupport(NvmlDevice device, NvmlGpmSupport* support) {
  FAKE_CALL(nvmlGpmQueryDeviceSupport);
  if (support->version != kGpmSupportVersion) return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
  support->is_supported = plan_of(device).gpm;
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlGpmSampleAlloc(NvmlGpmSample* sample) {
  FAKE_CALL(nvmlGpmSampleAlloc);
  *sample = reinterpret_cast<NvmlGpmSample>(new Sample{0});
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlGpmSampleFree(NvmlGpmSample sample) {
  FAKE_CALL(nvmlGpmSampleFree);
  delete reinterpret_cast<Sample*>(sample);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlGpmSampleGet(NvmlDevice, NvmlGpmSample sample) {
  FAKE_CALL(nvmlGpmSampleGet);
  reinterpret_cast<Sample*>(sample)->taken_ns = time_ns(CLOCK_MONOTONIC);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlGpmMetricsGet(NvmlGpmMetrics* metrics) {
  FAKE_CALL(nvmlGpmMetricsGet);
  if (metrics->version != kGpmMetricsVersion) return 25;
  static const Gpm gpm;
  const std::int64_t apart_ns = reinterpret_cast<Sample*>(metrics->second)->taken_ns -
                                reinterpret_cast<Sample*>(metrics->first)->taken_ns;
  for (unsigned i = 0; i < metrics->metrics_count; ++i) {
    NvmlGpmMetric& metric = metrics->metrics[i];
    metric.result = apart_ns < 100'000'000 ? 21 : kNvmlSuccess;  // NVML_ERROR_NO_DATA
    switch (metric.metric_id) {
      case kGpmSmUtilization: metric.value = gpm.sm; break;
      case kGpmSmOccupancy: metric.value = gpm.occupancy; break;
      case kGpmAnyTensor: metric.value = gpm.tensor; break;
      case kGpmDramBandwidth: metric.value = gpm.dram; break;
      case kGpmPcieTx: metric.value = gpm.pcie_tx / 1048576; break;
      case kGpmPcieRx: metric.value = gpm.pcie_rx / 1048576; break;
      case kGpmNvlinkTx: metric.value = gpm.nvlink_tx / 1048576; break;
      case kGpmNvlinkRx: metric.value = gpm.nvlink_rx / 1048576; break;
      default: metric.result = kNvmlInvalidArgument;
    }
  }
  return kNvmlSuccess;
}

// What nvidia-ml-py asks for an inventory; our own code does not call these.

namespace {

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  std::uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

constexpr int kSwitchEnd = -1;
constexpr NvmlReturn kNvmlInsufficientSize = 7;

PciInfo pci_info(int device) {
  PciInfo info{};
  info.bus = static_cast<std::uint32_t>(0x19 + device);
  snprintf(info.bus_id, sizeof info.bus_id, "00000000:%02X:00.0", info.bus);
  snprintf(info.bus_id_legacy, sizeof info.bus_id_legacy, "0000:%02X:00.0", info.bus);
  return info;
}

// Where each active link of a device ends: a device or a switch.
std::vector<int> link_ends(int device) {
  std::vector<int> ends;
  std::istringstream words(fake::device_text(device, "nvlink_to", ""));
  for (std::string word; words >> word;) {
    const std::size_t colon = word.find(':');
    const int end = word.compare(0, colon, "switch") == 0 ? kSwitchEnd : std::stoi(word.substr(0, colon));
    ends.insert(ends.end(), std::stoul(word.substr(colon + 1)), end);
  }
  return ends;
}

NvmlReturn put_text(const std::string& text, char* out, unsigned bytes) {
  if (text.size() >= bytes) return kNvmlInsufficientSize;
  memcpy(out, text.c_str(), text.size() + 1);
  return kNvmlSuccess;
}

NvmlReturn put_number(NvmlDevice device, const char* key, double otherwise, unsigned* out) {
  if (!is_device(device)) return kNvmlInvalidArgument;
  const double value = fake::device_setting(index_of(device), key, otherwise);
  if (value < 0) return kNvmlNotSupported;
  *out = static_cast<unsigned>(value);
  return kNvmlSuccess;
}

}  // namespace

FAKE_API NvmlReturn nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  FAKE_CALL(nvmlSystemGetDriverVersion);
  return put_text(fake::text_setting("driver", "580.65.06"), version, bytes);
}
FAKE_API NvmlReturn nvmlSystemGetCudaDriverVersion_v2(int* version) {
  FAKE_CALL(nvmlSystemGetCudaDriverVersion_v2);
  *version = static_cast<int>(fake::setting("cuda", 13000));
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetName(NvmlDevice device, char* name, unsigned bytes) {
  FAKE_CALL(nvmlDeviceGetName);
  if (!is_device(device)) return kNvmlInvalidArgument;
  return put_text(fake::device_text(index_of(device), "name", "NVIDIA Double"), name, bytes);
}
FAKE_API NvmlReturn nvmlDeviceGetPciInfo_v3(NvmlDevice device, PciInfo* info) {
  FAKE_CALL(nvmlDeviceGetPciInfo_v3);
  if (!is_device(device)) return kNvmlInvalidArgument;
  *info = pci_info(index_of(device));
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetMaxPcieLinkGeneration(NvmlDevice device, unsigned* generation) {
  FAKE_CALL(nvmlDeviceGetMaxPcieLinkGeneration);
  return put_number(device, "pcie_generation", 5, generation);
}
FAKE_API NvmlReturn nvmlDeviceGetCurrPcieLinkWidth(NvmlDevice device, unsigned* width) {
  FAKE_CALL(nvmlDeviceGetCurrPcieLinkWidth);
  return put_number(device, "pcie_width", 16, width);
}
FAKE_API NvmlReturn nvmlDeviceGetMaxPcieLinkWidth(NvmlDevice device, unsigned* width) {
  FAKE_CALL(nvmlDeviceGetMaxPcieLinkWidth);
  return put_number(device, "pcie_most_width", 16, width);
}
FAKE_API NvmlReturn nvmlDeviceGetEccMode(NvmlDevice device, unsigned* current, unsigned* pending) {
  FAKE_CALL(nvmlDeviceGetEccMode);
  const NvmlReturn result = put_number(device, "ecc", 1, current);
  if (result == kNvmlSuccess) *pending = *current;
  return result;
}
FAKE_API NvmlReturn nvmlDeviceGetTotalEccErrors(NvmlDevice device, unsigned type, unsigned counter,
                                                unsigned long long* count) {
  FAKE_CALL(nvmlDeviceGetTotalEccErrors);
  if (type > 1 || counter > 1) return kNvmlInvalidArgument;
  unsigned ecc = 0;
  const NvmlReturn result = put_number(device, "ecc", 1, &ecc);
  if (result != kNvmlSuccess || ecc == 0) return kNvmlNotSupported;
  const bool uncorrected = type == 1, since_made = counter == 1;
  *count = uncorrected && since_made
               ? static_cast<unsigned long long>(fake::device_setting(index_of(device), "ecc_errors", 0))
               : 0;
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetNvLinkState(NvmlDevice device, unsigned link, unsigned* active) {
  FAKE_CALL(nvmlDeviceGetNvLinkState);
  if (!is_device(device) || link >= kNvmlMostLinks) return kNvmlInvalidArgument;
  const std::size_t count = link_ends(index_of(device)).size();
  if (count == 0) return kNvmlNotSupported;
  *active = link < count;
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetNvLinkVersion(NvmlDevice device, unsigned link, unsigned* version) {
  FAKE_CALL(nvmlDeviceGetNvLinkVersion);
  if (!is_device(device)) return kNvmlInvalidArgument;
  if (link >= link_ends(index_of(device)).size()) return kNvmlNotSupported;
  return put_number(device, "nvlink_version", 4, version);
}
FAKE_API NvmlReturn nvmlDeviceGetNvLinkRemoteDeviceType(NvmlDevice device, unsigned link, unsigned* type) {
  FAKE_CALL(nvmlDeviceGetNvLinkRemoteDeviceType);
  if (!is_device(device)) return kNvmlInvalidArgument;
  const std::vector<int> ends = link_ends(index_of(device));
  if (link >= ends.size()) return kNvmlNotSupported;
  *type = ends[link] == kSwitchEnd ? 2 : 0;  // NVML_NVLINK_DEVICE_TYPE_SWITCH, _GPU
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetNvLinkRemotePciInfo_v2(NvmlDevice device, unsigned link, PciInfo* info) {
  FAKE_CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2);
  if (!is_device(device)) return kNvmlInvalidArgument;
  const std::vector<int> ends = link_ends(index_of(device));
  if (link >= ends.size() || ends[link] == kSwitchEnd) return kNvmlNotSupported;
  *info = pci_info(ends[link]);
  return kNvmlSuccess;
}
FAKE_API NvmlReturn nvmlDeviceGetTopologyCommonAncestor(NvmlDevice first, NvmlDevice second, unsigned* level) {
  FAKE_CALL(nvmlDeviceGetTopologyCommonAncestor);
  if (!is_device(first) || !is_device(second)) return kNvmlInvalidArgument;
  const std::string key = "path_" + std::to_string(index_of(first)) + "_" + std::to_string(index_of(second));
  *level = static_cast<unsigned>(fake::setting(key, 10));
  return kNvmlSuccess;
}

FAKE_COUNTS_AT_EXIT("nvml")
