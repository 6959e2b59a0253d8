"""Write the lists of words that the recorder shares with Python: words of secrets, variables of launchers.

They stand in ``stashtrace/scrubbing.py``. Run it after a change of them, then build.

python scripts/docs/generate_guest_words.py          # write
python scripts/docs/generate_guest_words.py --check  # exit 1 if a file is stale
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from generated_files import write_or_compare

from stashtrace import scrubbing

ROOT = Path(__file__).resolve().parents[2]
SECRET_WORDS = ROOT / "csrc/core/secret_words.h"
RANK_VARIABLES = ROOT / "csrc/runtime/rank_variables.h"
#: Names in C++ and in ``stashtrace/scrubbing.py``.
_LISTS = {
    "kSecrets": "SECRETS",
    "kSuffixes": "SUFFIXES",
    "kKeys": "KEYS",
    "kAccounts": "ACCOUNTS",
    "kSigners": "SIGNERS",
    "kEndings": "ENDINGS",
    "kVocabulary": "VOCABULARY",
    "kRefusals": "REFUSALS",
    "kUsers": "USERS",
    "kSchemes": "SCHEMES",
}


def secret_words() -> str:
    """The words that tell secrets, as C++; what each list means is said in ``stashtrace/scrubbing.py``."""
    lists = [_array(name, sorted(getattr(scrubbing, source))) for name, source in _LISTS.items()]
    return _header("Words by which scrubbing.cpp tells secrets", "stashtrace::secret_words", lists)


def rank_variables() -> str:
    """Names of the variables that are stored, as C++."""
    lists = [_array("kRankVariables", sorted(scrubbing.RANK_VARIABLES))]
    return _header("Variables of launchers that identity.cpp stores", "stashtrace", lists)


def _array(name: str, words: Iterable[str]) -> str:
    quoted = textwrap.fill(", ".join(f'"{word}"' for word in words), 116, break_long_words=False)
    return f"inline constexpr std::string_view {name}[] = {{\n{textwrap.indent(quoted, '    ')}}};\n"


def _header(what: str, namespace: str, lists: Iterable[str]) -> str:
    return (
        f"// {what}. SPDX-License-Identifier: Apache-2.0\n//\n"
        "// Generated from stashtrace/scrubbing.py by scripts/docs/generate_guest_words.py; do not edit.\n"
        "#pragma once\n\n#include <string_view>\n\n"
        f"// clang-format off\nnamespace {namespace} {{\n\n{''.join(lists)}\n}}  // namespace {namespace}\n"
    )


#: What is written -> its text.
FILES = {SECRET_WORDS: secret_words, RANK_VARIABLES: rank_variables}


if __name__ == "__main__":
    sys.exit(write_or_compare(FILES, sys.argv[1:]))
