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
    "kIssuers": "ISSUERS",
    "kEndings": "ENDINGS",
    "kAddresses": "ADDRESSES",
    "kAlone": "ALONE",
    "kVocabulary": "VOCABULARY",
    "kRefusals": "REFUSALS",
    "kUsers": "USERS",
    "kProxies": "PROXIES",
    "kCookies": "COOKIES",
    "kAuthorizations": "AUTHORIZATIONS",
    "kNetrc": "NETRC",
    "kNoValues": "NO_VALUES",
    "kAwsKeys": "AWS_KEYS",
    "kSchemes": "SCHEMES",
}
_NUMBERS = {
    "kAwsKeyLength": "AWS_KEY_LENGTH",
    "kShortestToken": "SHORTEST_TOKEN",
    "kLongestName": "LONGEST_NAME",
    "kShortestValue": "SHORTEST_VALUE",
}


def secret_words() -> str:
    """The words that tell secrets, as C++; what each list means is said in ``stashtrace/scrubbing.py``."""
    lists = [_array(name, sorted(getattr(scrubbing, source))) for name, source in _LISTS.items()]
    numbers = [
        f"inline constexpr std::size_t {name} = {getattr(scrubbing, source)};\n" for name, source in _NUMBERS.items()
    ]
    return _header(
        "Words by which scrubbing.cpp tells secrets",
        "stashtrace::secret_words",
        [*lists, _shapes(), *numbers],
        "#include <cstddef>\n",
    )


def _shapes() -> str:
    """Beginnings of tokens in the order in which they are tried, and the signs that follow with letters and digits."""
    rows = textwrap.fill(", ".join(f'{{"{begin}", "{signs}"}}' for begin, signs in scrubbing.token_shapes()), 116)
    return (
        "struct Shape {\n  std::string_view begin, signs;\n};\n"
        f"inline constexpr Shape kShapes[] = {{\n{textwrap.indent(rows, '    ')}}};\n"
    )


def rank_variables() -> str:
    """Names of the variables that are stored, as C++."""
    lists = [_array("kRankVariables", sorted(scrubbing.RANK_VARIABLES))]
    return _header("Variables of launchers that identity.cpp stores", "stashtrace", lists)


def _array(name: str, words: Iterable[str]) -> str:
    quoted = textwrap.fill(", ".join(f'"{word}"' for word in words), 116, break_long_words=False)
    return f"inline constexpr std::string_view {name}[] = {{\n{textwrap.indent(quoted, '    ')}}};\n"


def _header(what: str, namespace: str, lists: Iterable[str], include: str = "") -> str:
    return (
        f"// {what}. SPDX-License-Identifier: Apache-2.0\n//\n"
        "// Generated from stashtrace/scrubbing.py by scripts/docs/generate_guest_words.py; do not edit.\n"
        f"#pragma once\n\n{include}#include <string_view>\n\n"
        f"// clang-format off\nnamespace {namespace} {{\n\n{''.join(lists)}\n}}  // namespace {namespace}\n"
    )


#: What is written -> its text.
FILES = {SECRET_WORDS: secret_words, RANK_VARIABLES: rank_variables}


if __name__ == "__main__":
    sys.exit(write_or_compare(FILES, sys.argv[1:]))
