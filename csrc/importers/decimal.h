// Decimal text -> int64, exactly. SPDX-License-Identifier: Apache-2.0
//
// Used by trace_events for time stamps: microseconds since 1970 with three decimals have 19 digits, a double holds 15.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stashtrace::importers {

// Returns `text` times 10^power, rounded half away from zero; nothing if it is not a number or does not fit. Takes what
// JSON allows and a little more: a leading plus, a bare fraction, surrounding blanks.
[[nodiscard]] std::optional<std::int64_t> scaled_decimal(std::string_view text, int power);

}  // namespace stashtrace::importers
