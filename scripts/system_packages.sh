#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what some tests need of the system (a browser, network shaping), where that is possible: as root, by apt.
# Further arguments are packages that are wanted too. Without them the tests that need them say so and skip.
set -euo pipefail

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  wanted=("$@")
  command -v chromium >/dev/null || command -v google-chrome >/dev/null || wanted+=(chromium)
  command -v tc >/dev/null || wanted+=(iproute2)
  if [ "${#wanted[@]}" -gt 0 ]; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 240 apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } \
      >/dev/null 2>&1 || echo "could not install ${wanted[*]}; the tests that need them will be skipped" >&2
  fi
fi
