"""Write traces and analyses as files of other tools. The list is in ``registry.py``; nothing here prints."""

# SPDX-License-Identifier: Apache-2.0
