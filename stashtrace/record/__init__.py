"""Starting traced commands and looking at the machine they run on."""
# SPDX-License-Identifier: Apache-2.0
