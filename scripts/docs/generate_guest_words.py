"""Write what the recorder shares with Python: words of secrets, variables of launchers, settings.

The words stand in ``stashtrace/scrubbing/secrets.py``, the settings in ``csrc/core/settings.def``. Run it after a
change of them, then build.

python scripts/docs/generate_guest_words.py          # write
python scripts/docs/generate_guest_words.py --check  # exit 1 if a file is stale
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from generated_files import write_or_compare

from stashtrace.scrubbing import secrets

ROOT = Path(__file__).resolve().parents[2]
SECRET_WORDS = ROOT / "csrc/core/secret_words.h"
RANK_VARIABLES = ROOT / "csrc/runtime/rank_variables.h"
DECLARED_SETTINGS = ROOT / "csrc/core/settings.def"
SETTINGS = ROOT / "stashtrace/record/options.py"
#: The lines of options.py between which the settings stand.
FIRST_LINE = "# Generated from csrc/core/settings.def by scripts/docs/generate_guest_words.py; do not edit.\n"
LAST_LINE = "# End of what is generated.\n"
#: Names in C++ and in ``stashtrace/scrubbing/secrets.py``.
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
    """The words that mark secrets, as C++; what each list means is said in ``stashtrace/scrubbing/secrets.py``."""
    lists = [_array(name, sorted(getattr(secrets, source))) for name, source in _LISTS.items()]
    numbers = [
        f"inline constexpr std::size_t {name} = {getattr(secrets, source)};\n" for name, source in _NUMBERS.items()
    ]
    return _header(
        "Words by which scrubbing.cpp recognises secrets",
        "stashtrace::secret_words",
        [*lists, _shapes(), *numbers],
        "#include <cstddef>\n",
    )


def _shapes() -> str:
    """Beginnings of tokens in the order in which they are tried, and the signs that follow with letters and digits."""
    rows = textwrap.fill(", ".join(f'{{"{begin}", "{signs}"}}' for begin, signs in secrets.token_shapes()), 116)
    return (
        "struct Shape {\n  std::string_view begin, signs;\n};\n"
        f"inline constexpr Shape kShapes[] = {{\n{textwrap.indent(rows, '    ')}}};\n"
    )


def rank_variables() -> str:
    """Names of the variables that are stored, as C++."""
    lists = [_array("kRankVariables", sorted(secrets.RANK_VARIABLES))]
    return _header("Variables of launchers that identity.cpp stores", "stashtrace", lists)


def _array(name: str, words: Iterable[str]) -> str:
    quoted = textwrap.fill(", ".join(f'"{word}"' for word in words), 116, break_long_words=False)
    return f"inline constexpr std::string_view {name}[] = {{\n{textwrap.indent(quoted, '    ')}}};\n"


def _header(what: str, namespace: str, lists: Iterable[str], include: str = "") -> str:
    return (
        f"// {what}. SPDX-License-Identifier: Apache-2.0\n//\n"
        "// Generated from stashtrace/scrubbing/secrets.py by scripts/docs/generate_guest_words.py; do not edit.\n"
        f"#pragma once\n\n{include}#include <string_view>\n\n"
        f"// clang-format off\nnamespace {namespace} {{\n\n{''.join(lists)}\n}}  // namespace {namespace}\n"
    )


def settings() -> str:
    """``record/options.py`` with the settings of the recorder as ``settings.def`` declares them today."""
    declared = DECLARED_SETTINGS.read_text(encoding="utf-8")
    words = {
        name: re.findall(r'WORD\(\w+, "(\w+)"\)', of)
        for name, of in re.findall(r"^#define (\w+)\(WORD\)(.*)$", declared, re.M)
    }
    lines = []
    for kind, inside in re.findall(r"^([A-Z]+)\((.+?)\)(?: *//.*)?$", declared, re.M):
        parts = [part.strip().replace("'", "") for part in inside.split(",")]
        name = parts[1] if kind == "SWITCH" else parts[2]
        if kind == "TEXT":
            arguments = [parts[3]]
        elif kind == "NUMBER":
            arguments = [f'"{parts[3]}"', f"limits=({int(parts[4]):_}, {int(parts[5]):_})"]
        elif kind == "CHOICE":
            quoted = ", ".join(f'"{word}"' for word in words[parts[3]])
            arguments = [f'"{words[parts[3]][0]}"', f"choices=({quoted})"]
        else:
            arguments = ['"0"'] if kind == "SWITCH" else ['""']
        lines.append(f'    "STASHTRACE_{name}": Setting({", ".join(arguments)}),\n')
    before, _, rest = SETTINGS.read_text(encoding="utf-8").partition(FIRST_LINE)
    after = rest.partition(LAST_LINE)[2]
    return f"{before}{FIRST_LINE}SETTINGS = {{\n{''.join(lines)}}}\n{LAST_LINE}{after}"


#: What is written -> its text.
FILES = {SECRET_WORDS: secret_words, RANK_VARIABLES: rank_variables, SETTINGS: settings}


if __name__ == "__main__":
    sys.exit(write_or_compare(FILES, sys.argv[1:]))
