// Version of the package; tests compare it with pyproject.toml. SPDX-License-Identifier: Apache-2.0
#pragma once

namespace stashtrace {
inline constexpr char kVersion[] = "0.1.0";
}
