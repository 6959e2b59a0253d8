"""Trace and tables in, text out; nothing here prints or looks at a terminal."""
# SPDX-License-Identifier: Apache-2.0
