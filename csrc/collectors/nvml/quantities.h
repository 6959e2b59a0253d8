// What is asked of a device: names, units and how often. SPDX-License-Identifier: Apache-2.0
//
// Included by device_sampler.cpp alone. A name ends in its unit; a cumulative one in _total. The decoder reads both out
// of the name, so a new line here needs nothing elsewhere.
#pragma once

#include "abi/nvml_abi.h"

namespace stashtrace::nvml {

// fast: every sample. steady: at most 10 a second, since each is a call into the driver. slow: once a second.
enum class Pace : std::uint8_t { fast, steady, slow };
inline constexpr int kPaces = 3;

struct Field {
  std::uint32_t id;
  const char* name;
  double scale;  // to the unit of the name
  Pace pace;
  bool cumulative;
  bool of_links;  // scope: all links, or one
};

inline constexpr double kKib = 1024.0;
inline constexpr Field kFields[] = {
    {abi::kNvmlNvlinkDataTx, "nvlink_transmit_bytes_total", kKib, Pace::fast, true, true},
    {abi::kNvmlNvlinkDataRx, "nvlink_receive_bytes_total", kKib, Pace::fast, true, true},
    {abi::kNvmlPcieTxBytes, "pcie_transmit_bytes_total", 1, Pace::fast, true, false},
    {abi::kNvmlPcieRxBytes, "pcie_receive_bytes_total", 1, Pace::fast, true, false},
    {abi::kNvmlTotalEnergy, "energy_joules_total", 1e-3, Pace::slow, true, false},
    {abi::kNvmlMemoryTemperature, "memory_celsius", 1, Pace::slow, false, false},
    {abi::kNvmlThrottlePowerNs, "throttle_power_cap_ns_total", 1, Pace::slow, true, false},
    {abi::kNvmlThrottleThermalNs, "throttle_thermal_ns_total", 1, Pace::slow, true, false},
    {abi::kNvmlEccSingleVolatile, "ecc_corrected_count_total", 1, Pace::slow, true, false},
    {abi::kNvmlEccDoubleVolatile, "ecc_uncorrected_count_total", 1, Pace::slow, true, false},
    {abi::kNvmlPcieReplays, "pcie_replays_count_total", 1, Pace::slow, true, false},
    {abi::kNvmlNvlinkCrcFlitErrors, "nvlink_crc_flit_errors_count_total", 1, Pace::slow, true, false},
    {abi::kNvmlNvlinkCrcDataErrors, "nvlink_crc_data_errors_count_total", 1, Pace::slow, true, false},
    {abi::kNvmlNvlinkReplayErrors, "nvlink_replays_count_total", 1, Pace::slow, true, false},
    {abi::kNvmlNvlinkRecoveryErrors, "nvlink_recoveries_count_total", 1, Pace::slow, true, false},
};
inline constexpr int kFieldsCount = sizeof kFields / sizeof kFields[0];

// NVLink 5 counts bytes per link only, under other numbers: asked where the fields of the same names are refused, which
// drivers do by various codes.
inline constexpr Field kFieldsOfNvlink5[] = {
    {abi::kNvmlNvlinkXmitBytes, "nvlink_transmit_bytes_total", 1, Pace::fast, true, true},
    {abi::kNvmlNvlinkRcvBytes, "nvlink_receive_bytes_total", 1, Pace::fast, true, true},
};
inline constexpr int kNvlink5FieldsCount = sizeof kFieldsOfNvlink5 / sizeof kFieldsOfNvlink5[0];
inline constexpr int kNotOfNvlink = -1;

// Separate calls, one value each.
enum class Call : std::uint8_t { power, sm_clock, memory_clock, temperature, memory_used, busy, throttle };
struct Single {
  Call call;
  const char* name;
};
inline constexpr Single kSingles[] = {
    {Call::power, "power_watts"},
    {Call::sm_clock, "sm_clock_hz"},
    {Call::memory_clock, "memory_clock_hz"},
    {Call::temperature, "temperature_celsius"},
    {Call::memory_used, "memory_used_bytes"},
    {Call::busy, "busy_ratio"},
    {Call::throttle, "throttle_reasons_code"},
};
inline constexpr int kSinglesCount = sizeof kSingles / sizeof kSingles[0];

struct GpmMetric {
  std::uint32_t id;
  const char* name;
  double scale;
};
inline constexpr double kMib = 1048576.0;
inline constexpr double kPercent = 0.01;
inline constexpr GpmMetric kGpmMetrics[] = {
    {abi::kGpmSmUtilization, "sm_active_ratio", kPercent},
    {abi::kGpmSmOccupancy, "sm_occupancy_ratio", kPercent},
    {abi::kGpmAnyTensor, "tensor_active_ratio", kPercent},
    {abi::kGpmDramBandwidth, "dram_active_ratio", kPercent},
    {abi::kGpmPcieTx, "gpm_pcie_transmit_bytes_per_s", kMib},
    {abi::kGpmPcieRx, "gpm_pcie_receive_bytes_per_s", kMib},
    {abi::kGpmNvlinkTx, "gpm_nvlink_transmit_bytes_per_s", kMib},
    {abi::kGpmNvlinkRx, "gpm_nvlink_receive_bytes_per_s", kMib},
};
inline constexpr int kGpmMetricsCount = sizeof kGpmMetrics / sizeof kGpmMetrics[0];

}  // namespace stashtrace::nvml
