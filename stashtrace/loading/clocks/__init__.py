"""One clock for all: offsets and drift between processes, devices and hosts, each with its error."""

# SPDX-License-Identifier: Apache-2.0
