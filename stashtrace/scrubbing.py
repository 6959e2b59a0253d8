"""Take secrets and parts of URLs out of command lines and file names before they are stored.

``csrc/core/scrubbing.cpp`` applies the same rules inside the job; ``tests/data/scrubbed_arguments.json`` tests both.

- The value of an option, or of NAME=VALUE, whose name ends in a word such as *password* or *token*, or in *api-key* and
  similar ones, becomes ``<scrubbed>``. A name is split into words at signs and before capitals; ``--max-tokens``,
  ``--tokenizer`` and ``--token-budget`` are not secrets, nor is a token of a vocabulary, such as ``--pad-token``.
- A URL loses user and password, and its query. Local paths stay as they are.
- An argument with blanks, such as the script of ``sh -c``, is scrubbed word by word.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Iterable

SCRUBBED = "<scrubbed>"
#: A name that ends in one of these holds a secret ...
_SECRETS = frozenset(
    [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "credential",
        "credentials",
        "apikey",
        "accesskey",
        "secretkey",
        "authtoken",
        "hftoken",
    ]
)
#: ... and one that ends in "key" after one of these.
_KEYS = frozenset(["api", "access", "secret", "auth", "private"])
#: Ignored at the end of a name: --aws-access-key-id, --token-value.
_ENDINGS = frozenset(("id", "value"))
#: Before "token": one of a vocabulary.
_VOCABULARY = frozenset(["pad", "eos", "bos", "unk", "mask", "sep", "cls", "special", "image", "stop", "per"])
_BLANKS = " \t\n\r"
_QUOTES = "'\""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")


def scrub_arguments(arguments: Iterable[str], taken: set[str] | None = None) -> list[str]:
    """Return a command line without secrets, and with URLs without users and queries.

    The values that are taken out are added to ``taken``.

    Examples
    --------
    >>> scrub_arguments(["train.py", "--api-key", "X", "--max-tokens=5", "s3://me:pw@bucket/a?sig=1"])
    ['train.py', '--api-key', '<scrubbed>', '--max-tokens=5', 's3://bucket/a']
    """
    result, value_follows = [], False
    for argument in arguments:
        scrubbed, value_follows = _scrub(argument, value_follows, set() if taken is None else taken)
        result.append(scrubbed)
    return result


def scrub_urls(text: str, taken: set[str] | None = None) -> str:
    """Return a text whose URLs have no user, password and query; values taken out are added to ``taken``."""
    out, at = [], 0
    while (scheme := _SCHEME.search(text, at)) is not None:
        begin = scheme.end()
        end = _first_of("/?#'\"", text, begin)
        begin_host = max(text.rfind("@", begin, end) + 1, begin)
        stop = _first_of("?#'\"", text, end)
        out += [text[at:begin], text[begin_host:stop]]
        at = _first_of("#'\"", text, stop) if text[stop : stop + 1] == "?" else stop
        if taken is not None:
            taken |= {text[begin : begin_host - 1].partition(":")[2], text[stop + 1 : at]} - {""}
    return "".join([*out, text[at:]])


def is_secret(name: str) -> bool:
    """Whether a name of an option or variable says that its value is a secret."""
    words = [word.lower() for word in _parts(name)]
    while words and words[-1] in _ENDINGS:
        words.pop()
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "key":
        return before in _KEYS
    return words[-1] in _SECRETS and not (words[-1] == "token" and before in _VOCABULARY)


def _parts(name: str) -> list[str]:
    """Words of a name: parted at signs, and where a capital follows a small letter or digit."""
    parts: list[str] = []
    joined = False
    for i, c in enumerate(name):
        plain = c.isascii() and c.isalnum()
        if plain and joined and not ("A" <= c <= "Z" and not "A" <= name[i - 1] <= "Z"):
            parts[-1] += c
        elif plain:
            parts.append(c)
        joined = plain
    return parts


def _scrub(argument: str, value_follows: bool, taken: set[str]) -> tuple[str, bool]:
    if value_follows and not argument.startswith("--"):
        taken |= {argument} - {"", SCRUBBED}
        return SCRUBBED if argument else "", False
    value_follows = False
    out, at = [], 0
    while at < len(argument):
        if argument[at] in _BLANKS:
            out.append(argument[at])
            at += 1
            continue
        end = _first_of(_BLANKS, argument, at)
        word = argument[at:end]
        if value_follows and not word.startswith("--"):
            end = _end_of_value(argument, at)
            taken |= {argument[at:end].strip(_QUOTES)} - {"", SCRUBBED}
            out.append(SCRUBBED)
            at, value_follows = end, False
            continue
        name, equals, _ = word.partition("=")
        value_follows = False
        if not is_secret(name) or "://" in name:
            out.append(scrub_urls(word, taken))
        elif equals:
            begin = at + len(name) + 1
            whole = at == 0 and argument.startswith("-")
            end = len(argument) if whole else _end_of_value(argument, begin)
            taken |= {argument[begin:end].strip(_QUOTES)} - {"", SCRUBBED}
            out.append(name + "=" + (SCRUBBED if end > begin else ""))
        else:
            value_follows = name.startswith("-")
            out.append(word)
        at = end
    return "".join(out), value_follows


def _end_of_value(text: str, at: int) -> int:
    """Where a value ends: behind its closing quote, or at a blank."""
    closing = text.find(text[at], at + 1) if text[at : at + 1] and text[at] in _QUOTES else -1
    return closing + 1 if closing >= 0 else _first_of(_BLANKS, text, at)


def _first_of(signs: str, text: str, at: int) -> int:
    return next((i for i in range(at, len(text)) if text[i] in signs), len(text))
