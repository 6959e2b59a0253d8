"""The native scanner of trace events against Python's json: random documents, every cut, numbers to the last digit."""

from __future__ import annotations

import json
import random
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest

from stashtrace import _native

ABSENT = _native.importers.ABSENT
RULES = [("X", "kernel", "nccl", 1), ("X", "kernel", "", 0), ("X", "op", "keep", 0), ("M", "", "", 1)]
TABLES = [(["correlation", "stream"], ["shape"]), (["correlation"], ["name", "shape"])]
TEXTS = ["k", 'nccl\n"x"', "keep\\", "żółć", "\U0001f600 x", '{]}["', "a" * 200, "\x00\x1f", "/slash", ""]


def _scan(text: bytes, chunk: int = 1 << 20) -> tuple[list[list[tuple[Any, ...]]], dict[str, int], dict[str, str]]:
    scanner = _native.importers.TraceEvents(["traceEvents"], TABLES, RULES)
    for at in range(0, len(text), chunk):
        scanner.feed(text[at : at + chunk])
    scanner.finish()
    texts = scanner.texts()
    out = []
    for table in scanner.take_tables():
        named = [[texts[n] if n >= 0 else None for n in table[key].tolist()] for key in ("name", "pid", "tid")]
        ints = [column.tolist() for column in (table["begin_ns"], table["duration_ns"], *table["ints"])]
        more = [[texts[n] if n >= 0 else None for n in column.tolist()] for column in table["texts"]]
        out.append(list(zip(*ints, *named, *more, strict=True)))
    return out, scanner.counts(), scanner.top()


def _number(value: Any, power: int) -> int | None:
    if isinstance(value, bool):
        return int(value) if power == 0 else None
    if not isinstance(value, int | Decimal):
        return None
    scaled = int((Decimal(value) * 10**power).to_integral_value(ROUND_HALF_UP))
    return scaled if abs(scaled) < 2**63 else None


def _plain(value: Any) -> str | None:
    """A text column's value of a string or number; other kinds are compared as JSON."""
    return None if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _expected(events: list[Any]) -> list[list[tuple[Any, ...]]]:
    """The same extraction by Python, of events that json read with Decimal for numbers."""
    out: list[list[tuple[Any, ...]]] = [[], []]
    for event in events:
        if not isinstance(event, dict):
            continue
        phase, category, name = (event.get(k) for k in ("ph", "cat", "name"))
        known = [v if isinstance(v, str) else "" for v in (phase, category, name)]
        fits = (t for p, c, start, t in RULES if (p, c) == (known[0], known[1]) and known[2].startswith(start))
        table = next(fits, -1)
        time = _number(event.get("ts"), 3)
        if table < 0 or (time is None and "ts" in event):
            continue
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        numbers = [time, _number(event.get("dur"), 3), *(_number(args.get(k), 0) for k in TABLES[table][0])]
        texts = [name, event.get("pid"), event.get("tid"), *(args.get(k) for k in TABLES[table][1])]
        out[table].append((*(ABSENT if n is None else n for n in numbers), *(_plain(t) for t in texts)))
    return out


class _Documents:
    """Random JSON, written in every way that JSON allows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def space(self) -> str:
        return "".join(self.random.choices([" ", "\n", "\t", "\r", ""], k=self.random.randrange(3)))

    def text(self, value: str) -> str:
        if self.random.random() < 0.8:
            return json.dumps(value, ensure_ascii=self.random.random() < 0.5)
        return f'"{"".join(map(self._character, value))}"'

    def _character(self, c: str) -> str:
        return f"\\u{ord(c):04x}" if ord(c) < 0x10000 and self.random.random() < 0.3 else json.dumps(c)[1:-1]

    def number(self) -> str:
        pick = self.random.random
        if pick() < 0.4:
            return str(self.random.randrange(-(10**6), 10**6))
        if pick() < 0.5:
            return f"{1_700_000_000_000_000 + self.random.randrange(10**9)}.{self.random.randrange(1000):03d}"
        exponent = "".join(self.random.choice(part) for part in (("e", "E"), ("", "+", "-"), "012345"))
        return f"{self.random.randrange(10**6)}{self.random.choice(['.5', ''])}{exponent}"

    def value(self, depth: int = 0) -> str:
        pick = self.random.random()
        if pick < 0.35:
            return self.number()
        if pick < 0.65 or depth > 3:
            return self.text(self.random.choice(TEXTS))
        if pick < 0.75:
            return self.random.choice(["true", "false", "null"])
        if pick < 0.87:
            return (
                "["
                + ",".join(self.space() + self.value(depth + 1) + self.space() for _ in range(self.random.randrange(4)))
                + "]"
            )
        return self.object({f"k{n}": self.value(depth + 1) for n in range(self.random.randrange(4))})

    def object(self, members: dict[str, str]) -> str:
        keys = list(members)
        self.random.shuffle(keys)
        parts = [f"{self.space()}{self.text(k)}{self.space()}:{self.space()}{members[k]}{self.space()}" for k in keys]
        return "{" + ",".join(parts) + "}"

    def event(self) -> str:
        pick = self.random.random
        if pick() < 0.05:
            return self.value()
        members = {
            "ph": self.text(self.random.choice(["X", "X", "X", "M", "s"])),
            "cat": self.text(self.random.choice(["kernel", "op", "other"])),
            "name": self.text(self.random.choice(TEXTS)),
            "ts": self.number(),
            "dur": self.number(),
            "pid": self.random.choice(["0", '"Spans"', "17"]),
            "tid": self.random.choice(["7", '"stream 7"']),
            "args": self.object(
                {
                    "correlation": self.number(),
                    "stream": self.random.choice(["true", "7", "null", "[1]"]),
                    "shape": self.text(self.random.choice(TEXTS)),
                    "name": self.text(self.random.choice(TEXTS)),
                    "x": self.value(),
                }
            ),
        }
        for key in list(members):
            if pick() < 0.1:
                del members[key]
        return self.object(members)

    def document(self) -> str:
        events = (
            "[" + ",".join(self.space() + self.event() + self.space() for _ in range(self.random.randrange(12))) + "]"
        )
        if self.random.random() < 0.2:
            return self.space() + events
        members = {f"top{n}": self.value() for n in range(self.random.randrange(3))}
        return self.space() + self.object({**members, "traceEvents": events}) + self.space()


@pytest.mark.parametrize("seed", range(150))
def test_random_documents(seed: int) -> None:
    made = _Documents(seed)
    text = made.document()
    read = json.loads(text, parse_float=Decimal)
    events = read["traceEvents"] if isinstance(read, dict) else read
    rows, counts, top = _scan(text.encode(), made.random.choice([1, 3, 17, 1 << 20]))
    assert rows == _expected(events)
    assert (counts["damaged"], counts["truncated"]) == (0, 0)
    assert counts["events"] == sum(isinstance(e, dict) for e in events)
    if isinstance(read, dict):
        assert {k: json.loads(v, parse_float=Decimal) for k, v in top.items()} == {
            k: v for k, v in read.items() if k != "traceEvents"
        }


@pytest.mark.parametrize("seed", range(3))
def test_every_cut(seed: int) -> None:
    text = _Documents(1000 + seed).document().encode()
    whole, _, _ = _scan(text)
    before = [0, 0]
    for at in range(len(text)):
        rows, counts, _ = _scan(text[:at])
        assert counts["truncated"] or text[at:].strip() == b""
        for n in (0, 1):
            assert rows[n] == whole[n][: len(rows[n])]
            assert len(rows[n]) >= before[n]
        before = [len(r) for r in rows]


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_survived(seed: int) -> None:
    chance = random.Random(seed)
    text = bytearray(_Documents(2000 + seed).document().encode())
    for _ in range(chance.randrange(1, 6)):
        text[chance.randrange(len(text))] = chance.choice(b'"\\{}[],:x0 \xff')
    _scan(bytes(text), chance.choice([1, 5, 1 << 20]))


@pytest.mark.parametrize(
    ("text", "power", "value"),
    [
        ("1700000000000000.001", 3, 1_700_000_000_000_000_001),
        ("9007199254740993.127", 3, 9_007_199_254_740_993_127),
        ("1.5e3", 0, 1500),
        ("-0.0005", 3, -1),
        ("0.00049999", 3, 0),
        ("1e18", 0, 10**18),
        ("9223372036854775807", 0, 2**63 - 1),
        ("9223372036854775808", 0, None),
        ("1e400", 0, None),
        ("1e-400", 3, 0),
        ("12345678901234567890123456789012345678901e-30", 0, 12345678901),
        *(("1" + tail, 0, None) for tail in ("e", ".2.3", "x10")),
        *((odd, 3, None) for odd in ("", "-", "NaN", ".")),
        (" 7 ", 0, 7),
        ("+7", 0, 7),
    ],
)
def test_decimals(text: str, power: int, value: int | None) -> None:
    assert _native.importers.scaled_decimal(text, power) == value


def test_damaged_event_costs_itself() -> None:
    good = '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{}}'
    bad = '{"ph":"X","cat":"kernel","name":"quote " inside","ts":2,"dur":1,"args":{}}'
    rows, counts, _ = _scan(f'{{"traceEvents":[{good}, {bad} , {good}], "after": 1}}'.encode())
    assert len(rows[0]) == 2
    assert counts["damaged"] == 1


def test_surrogates_alone() -> None:
    assert _native.importers.unescape(rb"a\ud800b\udc00\ud83d\ude00\q\u12") == "a�b�\U0001f600qu12"
