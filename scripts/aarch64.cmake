# SPDX-License-Identifier: Apache-2.0
# Builds for aarch64 on another machine, with the cross compiler of Debian and Ubuntu (g++-aarch64-linux-gnu):
#   cmake -S . -B build/aarch64 --toolchain scripts/aarch64.cmake -DSTASHTRACE_BUILD_PYTHON=OFF -DSTASHTRACE_BUILD_TESTS=ON
# Programs run under qemu-user: qemu-aarch64 -L /usr/aarch64-linux-gnu PROGRAM. tests/native/test_aarch64.py does both.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
