"""Read files of other tools into event tables. One file or folder per format."""

# SPDX-License-Identifier: Apache-2.0
