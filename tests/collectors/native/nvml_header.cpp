// Our own numbers of NVML against its real header, by the compiler. SPDX-License-Identifier: Apache-2.0
#include <nvml.h>

#include "abi/nvml_abi.h"

namespace ours = stashtrace::abi;
#define SAME(mine, theirs) static_assert(static_cast<unsigned long long>(ours::mine) == static_cast<unsigned long long>(theirs))

static_assert(sizeof(ours::NvmlFieldValue) == sizeof(nvmlFieldValue_t));
static_assert(offsetof(ours::NvmlFieldValue, value_type) == offsetof(nvmlFieldValue_t, valueType));
static_assert(offsetof(ours::NvmlFieldValue, result) == offsetof(nvmlFieldValue_t, nvmlReturn));
static_assert(offsetof(ours::NvmlFieldValue, value) == offsetof(nvmlFieldValue_t, value));
static_assert(sizeof(ours::NvmlGpmMetric) == sizeof(nvmlGpmMetric_t));
static_assert(offsetof(ours::NvmlGpmMetric, value) == offsetof(nvmlGpmMetric_t, value));
static_assert(offsetof(ours::NvmlGpmMetrics, metrics) == offsetof(nvmlGpmMetricsGet_t, metrics));
static_assert(sizeof(ours::NvmlGpmMetrics) >= sizeof(nvmlGpmMetricsGet_t));
static_assert(sizeof(ours::NvmlGpmSupport) == sizeof(nvmlGpmSupport_t));
static_assert(sizeof(ours::NvmlMemory) == sizeof(nvmlMemory_t));
static_assert(offsetof(ours::NvmlMemory, used_bytes) == offsetof(nvmlMemory_t, used));
static_assert(sizeof(ours::NvmlUtilization) == sizeof(nvmlUtilization_t));
static_assert(ours::kNvmlMostLinks >= NVML_NVLINK_MAX_LINKS);
SAME(kNvmlSuccess, NVML_SUCCESS);
SAME(kNvmlInvalidArgument, NVML_ERROR_INVALID_ARGUMENT);
SAME(kNvmlNotSupported, NVML_ERROR_NOT_SUPPORTED);
SAME(kNvmlFunctionNotFound, NVML_ERROR_FUNCTION_NOT_FOUND);
SAME(kNvmlGpuIsLost, NVML_ERROR_GPU_IS_LOST);
SAME(kNvmlDouble, NVML_VALUE_TYPE_DOUBLE);
SAME(kNvmlUnsignedInt, NVML_VALUE_TYPE_UNSIGNED_INT);
SAME(kNvmlUnsignedLongLong, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
SAME(kNvmlSignedLongLong, NVML_VALUE_TYPE_SIGNED_LONG_LONG);
SAME(kNvmlSignedInt, NVML_VALUE_TYPE_SIGNED_INT);
SAME(kNvmlUnsignedShort, NVML_VALUE_TYPE_UNSIGNED_SHORT);
SAME(kNvmlEccSingleVolatile, NVML_FI_DEV_ECC_SBE_VOL_TOTAL);
SAME(kNvmlEccDoubleVolatile, NVML_FI_DEV_ECC_DBE_VOL_TOTAL);
SAME(kNvmlNvlinkCrcFlitErrors, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL);
SAME(kNvmlNvlinkCrcDataErrors, NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL);
SAME(kNvmlNvlinkReplayErrors, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL);
SAME(kNvmlNvlinkRecoveryErrors, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL);
SAME(kNvmlThrottlePowerNs, NVML_FI_DEV_PERF_POLICY_POWER);
SAME(kNvmlMemoryTemperature, NVML_FI_DEV_MEMORY_TEMP);
SAME(kNvmlTotalEnergy, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION);
SAME(kNvmlNvlinkSpeedCommon, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON);
SAME(kNvmlNvlinkLinkCount, NVML_FI_DEV_NVLINK_LINK_COUNT);
SAME(kNvmlPcieReplays, NVML_FI_DEV_PCIE_REPLAY_COUNTER);
SAME(kNvmlNvlinkDataTx, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX);
SAME(kNvmlNvlinkDataRx, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX);
SAME(kNvmlPcieTxBytes, NVML_FI_DEV_PCIE_COUNT_TX_BYTES);
SAME(kNvmlPcieRxBytes, NVML_FI_DEV_PCIE_COUNT_RX_BYTES);
SAME(kNvmlNvlinkXmitBytes, NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES);
SAME(kNvmlNvlinkRcvBytes, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES);
SAME(kNvmlThrottleThermalNs, NVML_FI_DEV_PERF_POLICY_THERMAL);
SAME(kNvmlClockSm, NVML_CLOCK_SM);
SAME(kNvmlClockMemory, NVML_CLOCK_MEM);
SAME(kNvmlTemperatureGpu, NVML_TEMPERATURE_GPU);
SAME(kNvmlUuidBytes, NVML_DEVICE_UUID_V2_BUFFER_SIZE);
SAME(kGpmMetricsVersion, NVML_GPM_METRICS_GET_VERSION);
SAME(kGpmSupportVersion, NVML_GPM_SUPPORT_VERSION);
SAME(kGpmSmUtilization, NVML_GPM_METRIC_SM_UTIL);
SAME(kGpmSmOccupancy, NVML_GPM_METRIC_SM_OCCUPANCY);
SAME(kGpmAnyTensor, NVML_GPM_METRIC_ANY_TENSOR_UTIL);
SAME(kGpmDramBandwidth, NVML_GPM_METRIC_DRAM_BW_UTIL);
SAME(kGpmPcieTx, NVML_GPM_METRIC_PCIE_TX_PER_SEC);
SAME(kGpmPcieRx, NVML_GPM_METRIC_PCIE_RX_PER_SEC);
SAME(kGpmNvlinkRx, NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC);
SAME(kGpmNvlinkTx, NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC);

// Every function that we call exists, and handles and results have our size.
[[maybe_unused]] static void* const kCalled[] = {
    (void*)&nvmlInitWithFlags, (void*)&nvmlDeviceGetCount_v2, (void*)&nvmlDeviceGetHandleByIndex_v2,
    (void*)&nvmlDeviceGetUUID, (void*)&nvmlDeviceGetFieldValues, (void*)&nvmlDeviceGetPowerUsage,
    (void*)&nvmlDeviceGetClockInfo, (void*)&nvmlDeviceGetTemperature, (void*)&nvmlDeviceGetMemoryInfo,
    (void*)&nvmlDeviceGetUtilizationRates, (void*)&nvmlDeviceGetCurrentClocksEventReasons,
    (void*)&nvmlGpmQueryDeviceSupport, (void*)&nvmlGpmSampleAlloc, (void*)&nvmlGpmSampleGet, (void*)&nvmlGpmMetricsGet};
static_assert(sizeof(nvmlDevice_t) == sizeof(ours::NvmlDevice) && sizeof(nvmlReturn_t) == sizeof(ours::NvmlReturn));
