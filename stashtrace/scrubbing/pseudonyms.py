"""Scrub the texts of a run for ``stashtrace scrub``: take out secrets, and on request replace paths and hosts.

A :class:`Survey` collects hosts, paths and secrets of the whole run, then a :class:`Scrubber` replaces each text; equal
texts get equal replacements in all files. A pseudonym is a keyed hash: without the key names cannot be tried out.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stashtrace.scrubbing.secrets import RANK_VARIABLES, SCRUBBED, is_secret, scrub_arguments, scrub_urls

_ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT")
#: A scrubbed value of this length or more is taken out wherever else it stands; a shorter one may be a common word.
_SHORTEST_VALUE = 6
#: A plain word of fewer letters is replaced as a host only where it is sure to be one.
_SHORTEST_HOST = 8
_COMMANDS = ("command", "argv")
_ENVIRONMENTS = ("env", "environment")
PATH_KEYS = ("cwd", "exe", "directory", "out")
_IPV4 = r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"
_IPV6 = r"(?<=\[)(?!::1?\])[0-9A-Fa-f]*(?::[0-9A-Fa-f.]*){2,7}(?:%\w+)?(?=\])"
_ADDRESS = re.compile(f"{_IPV4}|{_IPV6}")  # of a URL or connection; version 6 in brackets
_LOCAL = re.compile(r"(?<![\w.:/~-])/[^\s'\"`:,;|<>()\[\]{}=/][^\s'\"`:,;|<>()\[\]{}=]*")
_ANY_PATH = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+|{_LOCAL.pattern}")
_FILE_NAME = re.compile(r"[\w.+-]*\.[A-Za-z][A-Za-z0-9]{0,7}")
_ENDING = re.compile(r"(?<=[^.])(\.so(\.\d+)+|\.[A-Za-z0-9]{1,12})$")
#: Folders of the system and of Python: the same everywhere, and analysis/io/data_files.py recognises by them that a
#: file is not data.
_KEPT_PART = re.compile(
    r"|\.|\.\.|~|python[\d.]*t?|usr|local|etc|boot|lib|lib32|lib64|libx32|libexec|bin|sbin|include|share|zoneinfo|locale"
    r"|i18n|ca-certificates|fonts|site-packages|dist-packages|__pycache__"
)
#: File systems of the kernel: their names do not come from the user, except in shared memory.
_KERNEL = re.compile(r"/(?:proc|sys|dev(?!/shm/))(?:/|$)")
_NO_FILE = re.compile(r"\w+:\[\d+\]|anon_inode:.*|.*:\d+")
_STEM = re.compile(r"(?P<host>.+)(?P<rest>\.\d+(?:\.\d+)?)")


@dataclass(slots=True)
class Survey:
    """Hosts, secrets and paths of a run, which other texts of it may repeat."""

    #: Names of hosts.
    hosts: set[str] = field(default_factory=set)
    #: Values whose names say that they are secret.
    secrets: set[str] = field(default_factory=set)
    #: Texts that are paths.
    files: set[str] = field(default_factory=set)
    #: Paths that others are below.
    folders: set[str] = field(default_factory=set)

    def add_file(self, path: str) -> None:
        """Note a path."""
        self.files.add(path)
        folder = path.rpartition("/")[0]
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]

    def add_host(self, name: str) -> None:
        """Note a host, also by its short name."""
        if name and name not in ("localhost", "_") and not _ADDRESS.fullmatch(name) and not name.startswith("127."):
            self.hosts |= {name, name.partition(".")[0]}

    def add_text(self, text: str) -> None:
        """Note the secrets that a text names, as a command line would."""
        scrub_arguments([text], self.secrets)

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Note hosts, paths and secrets in the metadata of a process, a ``run.json`` or a launcher's file."""
        named = "hosts" not in (facts.get("scrubbed") or ())  # else these are pseudonyms already
        for key, value in facts.items():
            if key in _COMMANDS and isinstance(value, list):
                scrub_arguments(map(str, value), self.secrets)
            elif key in _ENVIRONMENTS and isinstance(value, dict):
                self.secrets |= {str(text) for name, text in value.items() if is_secret(name)}
                for name in _ADDRESSES if named else ():
                    self.add_host(str(value.get(name, "")).partition(":")[0])
            elif key == "host":
                self.add_host(str(value) if named else "")
            elif key == "cwd":
                self.add_file(f"{value}/")
            elif isinstance(value, str):
                self.add_text(value)
            elif isinstance(value, list):
                for part in value:
                    if isinstance(part, dict):
                        self.add_facts({"scrubbed": facts.get("scrubbed"), **part})


class Scrubber:
    """Replaces texts of a run.

    ``survey``: of the whole run. ``key``: key of the hashes that make pseudonyms. ``paths``, ``hosts``: whether these
    get pseudonyms.
    """

    def __init__(self, survey: Survey, key: bytes, *, paths: bool = False, hosts: bool = False) -> None:
        self.survey = survey
        self.key = key
        self.paths, self.hosts = paths, hosts
        values = sorted((s for s in survey.secrets if len(s) >= _SHORTEST_VALUE), key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, values))) if values else None
        names = sorted(survey.hosts, key=len, reverse=True)
        sure = [n for n in names if len(n) >= _SHORTEST_HOST or not n.isalpha()]
        before, after = r"(?<![\w.-])", r"(?![\w-])"
        either = [f"(?:{'|'.join(map(re.escape, n))}){a}" for n, a in ((sure, after), (names, r"(?=\.\d+\.\d)")) if n]
        self._host_names = re.compile(f"{before}(?:{'|'.join(either)})") if either and hosts else None
        #: Paths of which the pattern for paths within a text would match only a part.
        odd = [f for f in survey.files if f.startswith("/") and not _LOCAL.fullmatch(f) and not _KERNEL.match(f)]
        self._odd_files = sorted(odd, key=len, reverse=True) if paths else []
        self.text = functools.lru_cache(1 << 16)(self._text)
        self.path = functools.lru_cache(1 << 16)(self._path)

    @property
    def done(self) -> list[str]:
        """Kinds of scrubbing that a file has gone through: ``secrets``, ``paths``, ``hosts``."""
        return ["secrets", *["paths"] * self.paths, *["hosts"] * self.hosts]

    def after(self, done: Iterable[str]) -> Scrubber:
        """Scrubber for a file that went through these kinds already: pseudonyms get no pseudonyms."""
        paths, hosts = self.paths and "paths" not in done, self.hosts and "hosts" not in done
        if (paths, hosts) == (self.paths, self.hosts):
            return self
        return Scrubber(self.survey, self.key, paths=paths, hosts=hosts)

    def host(self, name: str) -> str:
        """A name or address of a host."""
        if not self.hosts or name in ("", "_", "localhost"):
            return self._without_values(name)
        return "host-" + self._code("host", name)[:8]

    def stem(self, name: str) -> str:
        """Name of a file of a process or launcher: ``HOST.PID.N``."""
        match = _STEM.fullmatch(name)
        if match is not None and match["host"] in self.survey.hosts:
            return self.host(match["host"]) + match["rest"]
        return self._with_hosts(name)

    def words(self, command: Iterable[str]) -> list[str]:
        """A command line."""
        before, words = "", []
        for word in scrub_arguments(command):
            name, equals, value = word.rpartition("=")
            if self.paths and before != "-m" and self._is_file_word(value):
                words.append(name + equals + self.path(value))
            else:
                words.append(self.text(word))
            before = word
        return words

    def name(self, text: str) -> str:
        """Name of a process: that of its program."""
        return self.path(text) if self.paths and _FILE_NAME.fullmatch(text) else self.text(text)

    def environment(self, variables: Mapping[str, Any]) -> dict[str, str]:
        """Variables of an environment that are stored."""
        return {name: self.text(str(text)) for name, text in variables.items() if name in RANK_VARIABLES}

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of a process, a ``run.json`` or a launcher's file."""
        return {str(key): self._fact(str(key), value) for key, value in facts.items()}

    def _fact(self, key: str, value: Any) -> Any:
        if key in _COMMANDS and isinstance(value, list):
            return self.words(map(str, value))
        if key in _ENVIRONMENTS and isinstance(value, dict):
            return self.environment(value)
        if isinstance(value, dict):
            return self.facts(value)
        if isinstance(value, list):
            return [self._fact("", part) for part in value]
        if not isinstance(value, str):
            return value
        if is_secret(key):
            return SCRUBBED
        if key == "host":
            return self.host(value)
        return self.path(value) if key in PATH_KEYS else self.text(value)

    def _text(self, text: str) -> str:
        """Any other text, scrubbed as a command line."""
        if text in self.survey.files and ("/" in text or "." in text):  # a bare word may also be the name of a phase
            return self.path(text)
        (text,) = scrub_arguments([text])
        text = self._with_hosts(self._without_values(text))
        return self._with_paths(text) if self.paths and "/" in text else text

    def _with_paths(self, text: str) -> str:
        for file in self._odd_files:
            if file in text:
                before, _, after = text.partition(file)
                return self._with_paths(before) + self.path(file) + self._with_paths(after)
        return _ANY_PATH.sub(lambda match: self.path(match[0]), text)

    def _path(self, path: str) -> str:
        """A path; local names are kept unless paths get pseudonyms."""
        plain = self._without_values(scrub_urls(path))
        if not self.paths or _KERNEL.match(plain) or _NO_FILE.fullmatch(plain):
            return self._with_hosts(plain)
        head, scheme, rest = plain.partition("://")
        if scheme:
            folders, slash, name = head.rpartition("/")  # of a relative name, or of a local copy of what the URL names
            before = "/".join(map(self._part, folders.split("/"))) + slash if slash else ""
            server, slash, below = rest.partition("/")
            return before + name + scheme + self._server(server) + slash + (self._parts(below, plain) if below else "")
        if plain.startswith("unix:"):
            return "unix:" + self._parts(plain.removeprefix("unix:"), plain)
        if plain.startswith("/dev/shm/"):
            return "/dev/shm/" + self._parts(plain.removeprefix("/dev/shm/"), plain)
        return self._parts(plain, plain)

    def _server(self, name: str) -> str:
        """Host or bucket of a URL: a part of the path, unless it is a host of the run."""
        plain, colon, port = name.rpartition(":") if name.rpartition(":")[2].isdecimal() else (name, "", "")
        if plain in ("", "localhost") or plain in self.survey.hosts or _ADDRESS.fullmatch(plain.strip("[]")):
            return self._with_hosts(name)
        return self._part(plain) + colon + port

    def _parts(self, below: str, whole: str) -> str:
        *folders, last = below.split("/")
        ending = None if whole in self.survey.folders else _ENDING.search(last)
        named = [self._part(folder) for folder in folders]
        return "/".join([*named, self._part(last) + (ending[0] if ending and not _KEPT_PART.fullmatch(last) else "")])

    def _part(self, name: str) -> str:
        return name if _KEPT_PART.fullmatch(name) else "p" + self._code("path", name)[:12]

    def _is_file_word(self, word: str) -> bool:
        if not word or word.startswith("-") or any(c.isspace() for c in word) or "://" in word or SCRUBBED in word:
            return False
        return ("/" in word and ":" not in word) or bool(_FILE_NAME.fullmatch(word))

    def _without_values(self, text: str) -> str:
        return text if self._values is None else self._values.sub(SCRUBBED, text)

    def _with_hosts(self, text: str) -> str:
        if not self.hosts:
            return text
        if self._host_names is not None:
            text = self._host_names.sub(lambda match: self.host(match[0]), text)
        return _ADDRESS.sub(lambda match: self.host(match[0]), text)

    def _code(self, kind: str, name: str) -> str:
        data = f"{kind}\0{name}".encode("utf-8", "backslashreplace")
        return hmac.new(self.key, data, hashlib.sha256).hexdigest()
