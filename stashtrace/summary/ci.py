"""The verdict of a gate in the forms that CI systems read: JUnit XML, and the workflow commands of GitHub."""

from __future__ import annotations

from xml.etree import ElementTree

from stashtrace.analysis.compare.gate_verdict import Gate
from stashtrace.summary.between_runs_text import functions_of_gate
from stashtrace.summary.gate_text import condition_sentence, gate_lines, sentences
from stashtrace.text.visible import visible

_SUITE = "stashtrace check"
#: Verdict -> level of an annotation; none where nothing is to be looked at.
_LEVELS = {"worse": "error", "not comparable": "error", "inconclusive": "warning"}


def junit_xml(gate: Gate) -> str:
    """Return a test suite with one case per condition.

    A condition that is worse is a failure, an inconclusive one is skipped with its reason, and jobs that cannot be
    compared are one case in error.
    """
    cases = [(str(one.condition), one.verdict, condition_sentence(gate, one)) for one in gate.judged]
    cases = cases or [("comparable", gate.verdict, sentences(gate)[0])]
    counts = {tag: sum(_TAGS.get(verdict) == tag for _, verdict, _ in cases) for tag in ("failure", "error", "skipped")}
    suite = ElementTree.Element(
        "testsuite",
        name=_SUITE,
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    for name, verdict, text in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="stashtrace.check", name=name)
        if verdict in _TAGS:
            ElementTree.SubElement(case, _TAGS[verdict], message=visible(text))
    ElementTree.SubElement(suite, "system-out").text = visible("\n".join(gate_lines(gate)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=False) + "\n"


#: Verdict -> element of a test case.
_TAGS = {"worse": "failure", "not comparable": "error", "inconclusive": "skipped"}


def annotation_lines(gate: Gate) -> list[str]:
    """Return a workflow command for each condition that is worse or inconclusive, or for jobs that do not compare.

    Those that are worse hold the functions too in which times changed, one a line.
    """
    if gate.refused:
        return [_command("error", "stashtrace check: not comparable", sentences(gate)[0])]
    functions = functions_of_gate(gate)
    return [
        _command(
            _LEVELS[one.verdict],
            f"stashtrace check: {one.condition.words} {one.verdict}",
            "\n".join([condition_sentence(gate, one), *functions * (one.verdict == "worse")]),
        )
        for one in gate.judged
        if one.verdict in _LEVELS
    ]


def _command(level: str, title: str, message: str) -> str:
    """Return a workflow command, escaped as the runner reads it back: properties more than the message.

    >>> _command("error", "a: b, c", "50 % more")
    '::error title=a%3A b%2C c::50 %25 more'
    """
    text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{text}"
