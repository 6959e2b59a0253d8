"""Files of other tools -> event tables. One file or folder per format."""

# SPDX-License-Identifier: Apache-2.0
