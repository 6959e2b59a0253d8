// Status: the error style of all native guest code. SPDX-License-Identifier: Apache-2.0
//
// A reason is a text with static lifetime (snake_case, it becomes the name of a loss) plus an errno. No
// exceptions, no allocation; what failed is counted or logged once by the caller.
#pragma once

namespace stashtrace {

class [[nodiscard]] Status {
 public:
  constexpr Status() noexcept = default;
  static constexpr Status ok() noexcept { return {}; }
  // `detail` is one sentence for the user. `error_number` may be given as errno or as minus errno.
  static constexpr Status failed(const char* reason, const char* detail = "", long error_number = 0) noexcept {
    Status status;
    status.reason_ = reason;
    status.detail_ = detail;
    status.error_number_ = static_cast<int>(error_number < 0 ? -error_number : error_number);
    return status;
  }
  constexpr bool is_ok() const noexcept { return reason_ == nullptr; }
  constexpr explicit operator bool() const noexcept { return is_ok(); }
  constexpr const char* reason() const noexcept { return reason_ != nullptr ? reason_ : "ok"; }
  constexpr const char* detail() const noexcept { return detail_; }
  constexpr int error_number() const noexcept { return error_number_; }

 private:
  const char* reason_ = nullptr;
  const char* detail_ = "";
  int error_number_ = 0;
};

}  // namespace stashtrace
