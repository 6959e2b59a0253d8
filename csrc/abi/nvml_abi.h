// NVML as we call it: numbers, layouts and signatures written down from its public documentation.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: collectors/nvml and the double of libnvidia-ml.so.1 in tests/fakes. No NVIDIA header is included; a test
// compares these numbers with the real nvml.h where one is found. Types only: finding the library is the caller's.
// Every function may be missing in an old library and may fail at any call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::abi {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

using NvmlReturn = int;  // nvmlReturn_t
inline constexpr NvmlReturn kNvmlSuccess = 0;
inline constexpr NvmlReturn kNvmlInvalidArgument = 2;
inline constexpr NvmlReturn kNvmlNotSupported = 3;
inline constexpr NvmlReturn kNvmlFunctionNotFound = 13;
inline constexpr NvmlReturn kNvmlGpuIsLost = 15;

using NvmlDevice = struct NvmlDeviceOpaque*;        // nvmlDevice_t
using NvmlGpmSample = struct NvmlGpmSampleOpaque*;  // nvmlGpmSample_t

// nvmlValueType_t: which member of the value is filled, so also the width in which a counter wraps.
enum NvmlValueType : int {
  kNvmlDouble = 0,
  kNvmlUnsignedInt = 1,
  kNvmlUnsignedLong = 2,
  kNvmlUnsignedLongLong = 3,
  kNvmlSignedLongLong = 4,
  kNvmlSignedInt = 5,
  kNvmlUnsignedShort = 6,
};

union NvmlValue {  // nvmlValue_t
  double as_double;
  std::int32_t as_int32;
  std::uint32_t as_uint32;
  std::uint64_t as_uint64;
  std::int64_t as_int64;
  std::uint16_t as_uint16;
};
static_assert(sizeof(NvmlValue) == 8);

struct NvmlFieldValue {  // nvmlFieldValue_t
  std::uint32_t field_id;
  std::uint32_t scope_id;     // NVLink: link, kNvmlAllLinks for their sum
  std::int64_t timestamp_us;  // since 1970
  std::int64_t latency_us;
  NvmlValueType value_type;
  NvmlReturn result;  // of this field; the call itself may succeed while each field fails
  NvmlValue value;
};
static_assert(sizeof(NvmlFieldValue) == 40 && offsetof(NvmlFieldValue, value) == 32);

inline constexpr std::uint32_t kNvmlAllLinks = 0xFFFFFFFFu;
inline constexpr unsigned kNvmlMostLinks = 36;  // NVML_NVLINK_MAX_LINKS of 13.5; older headers say 18

// NVML_FI_DEV_*
enum NvmlField : std::uint32_t {
  kNvmlEccSingleVolatile = 3,
  kNvmlEccDoubleVolatile = 4,
  kNvmlNvlinkCrcFlitErrors = 38,
  kNvmlNvlinkCrcDataErrors = 45,
  kNvmlNvlinkReplayErrors = 52,
  kNvmlNvlinkRecoveryErrors = 59,
  kNvmlThrottlePowerNs = 74,    // ns, cumulative: power cap
  kNvmlThrottleThermalNs = 75,  // not CLOCKS_EVENT_REASON_*: 251-253 in CUDA 12.9, 269-271 in 13.0
  kNvmlMemoryTemperature = 82,  // degrees Celsius
  kNvmlTotalEnergy = 83,        // mJ, cumulative
  kNvmlNvlinkSpeedCommon = 90,  // MB/s
  kNvmlNvlinkLinkCount = 91,
  kNvmlPcieReplays = 94,
  kNvmlNvlinkDataTx = 138,  // KiB of payload, cumulative
  kNvmlNvlinkDataRx = 139,
  kNvmlPcieTxBytes = 197,  // bytes, cumulative, may wrap
  kNvmlPcieRxBytes = 198,
  kNvmlNvlinkXmitBytes = 202,  // bytes per link, NVLink 5 only
  kNvmlNvlinkRcvBytes = 204,
};

enum NvmlClock : int { kNvmlClockSm = 1, kNvmlClockMemory = 2 };  // nvmlClockType_t
inline constexpr int kNvmlTemperatureGpu = 0;                     // nvmlTemperatureSensors_t
inline constexpr unsigned kNvmlUuidBytes = 96;                    // NVML_DEVICE_UUID_V2_BUFFER_SIZE

struct NvmlMemory {  // nvmlMemory_t
  std::uint64_t total_bytes;
  std::uint64_t free_bytes;
  std::uint64_t used_bytes;
};

struct NvmlUtilization {         // nvmlUtilization_t
  std::uint32_t gpu_percent;     // share of time with a kernel
  std::uint32_t memory_percent;  // share of time with memory traffic
};

// NVML_GPM_METRIC_*: averages between two samples, which lie at least 100 ms apart. Hopper and newer.
enum NvmlGpmMetricId : std::uint32_t {
  kGpmSmUtilization = 2,   // percent
  kGpmSmOccupancy = 3,     // percent
  kGpmAnyTensor = 5,       // percent
  kGpmDramBandwidth = 10,  // percent
  kGpmPcieTx = 20,         // MiB/s
  kGpmPcieRx = 21,
  kGpmNvlinkRx = 60,  // MiB/s, all links
  kGpmNvlinkTx = 61,
};

struct NvmlGpmMetric {  // nvmlGpmMetric_t
  std::uint32_t metric_id;
  NvmlReturn result;
  double value;
  char* short_name;
  char* long_name;
  char* unit;
};
static_assert(sizeof(NvmlGpmMetric) == 40);

// The library's own array has grown from 98 to 477 entries without a new version number; it writes the first
// metrics_count of them, and might clear all that it knows. So we have room for more.
inline constexpr unsigned kGpmMostMetrics = 512;
inline constexpr std::uint32_t kGpmMetricsVersion = 1;
inline constexpr std::uint32_t kGpmSupportVersion = 1;

struct NvmlGpmMetrics {  // nvmlGpmMetricsGet_t
  std::uint32_t version;
  std::uint32_t metrics_count;
  NvmlGpmSample first;
  NvmlGpmSample second;
  NvmlGpmMetric metrics[kGpmMostMetrics];
};

struct NvmlGpmSupport {  // nvmlGpmSupport_t
  std::uint32_t version;
  std::uint32_t is_supported;
};

// Every function that we look up: NVML(member, symbol, arguments). All return nvmlReturn_t.
#define STASHTRACE_NVML_FUNCTIONS(NVML)                                                                                \
  NVML(init, "nvmlInitWithFlags", unsigned flags)                                                                      \
  NVML(init_v2, "nvmlInit_v2", void)                                                                                   \
  NVML(shutdown, "nvmlShutdown", void)                                                                                 \
  NVML(device_count, "nvmlDeviceGetCount_v2", unsigned* count)                                                         \
  NVML(handle_by_index, "nvmlDeviceGetHandleByIndex_v2", unsigned index, NvmlDevice* device)                           \
  NVML(uuid, "nvmlDeviceGetUUID", NvmlDevice device, char* uuid, unsigned bytes)                                       \
  NVML(field_values, "nvmlDeviceGetFieldValues", NvmlDevice device, int count, NvmlFieldValue* values)                 \
  NVML(power, "nvmlDeviceGetPowerUsage", NvmlDevice device, unsigned* milliwatts)                                      \
  NVML(clock, "nvmlDeviceGetClockInfo", NvmlDevice device, int clock, unsigned* megahertz)                             \
  NVML(temperature, "nvmlDeviceGetTemperature", NvmlDevice device, int sensor, unsigned* celsius)                      \
  NVML(memory, "nvmlDeviceGetMemoryInfo", NvmlDevice device, NvmlMemory* memory)                                       \
  NVML(utilization, "nvmlDeviceGetUtilizationRates", NvmlDevice device, NvmlUtilization* rates)                        \
  NVML(clock_reasons, "nvmlDeviceGetCurrentClocksEventReasons", NvmlDevice device, unsigned long long* reasons)        \
  NVML(clock_reasons_old, "nvmlDeviceGetCurrentClocksThrottleReasons", NvmlDevice device, unsigned long long* reasons) \
  NVML(gpm_support, "nvmlGpmQueryDeviceSupport", NvmlDevice device, NvmlGpmSupport* support)                           \
  NVML(gpm_sample_alloc, "nvmlGpmSampleAlloc", NvmlGpmSample* sample)                                                  \
  NVML(gpm_sample_free, "nvmlGpmSampleFree", NvmlGpmSample sample)                                                     \
  NVML(gpm_sample_get, "nvmlGpmSampleGet", NvmlDevice device, NvmlGpmSample sample)                                    \
  NVML(gpm_metrics_get, "nvmlGpmMetricsGet", NvmlGpmMetrics* metrics)

// Pointers to them, null where the library has none. Without library all are null.
struct NvmlFunctions {
#define STASHTRACE_NVML_POINTER(member, symbol, ...) NvmlReturn (*member)(__VA_ARGS__) = nullptr;
  STASHTRACE_NVML_FUNCTIONS(STASHTRACE_NVML_POINTER)
#undef STASHTRACE_NVML_POINTER
};

}  // namespace stashtrace::abi
