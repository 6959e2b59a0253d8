"""Show the newest samples to ``prometheus_client``, which writes them in the formats of Prometheus.

A collector of our own hands over sums as they are; its own counters could only be added to.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stashtrace.live.metrics.series import Distribution, Family

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


class NewestFamilies:
    """A collector for ``prometheus_client``; ``families``: replaced as a whole, so that a reader sees one round."""

    def __init__(self) -> None:
        self.families: Sequence[Family] = ()

    def collect(self) -> Iterable[Metric]:
        """Yield the families as its classes."""
        for family in self.families:
            yield _metric(family)

    def registry(self) -> CollectorRegistry:
        """Return a registry that holds these families and nothing else."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry


def _metric(family: Family) -> Metric:
    from prometheus_client import core

    one = family.series
    if one.type == "histogram":
        histogram = core.HistogramMetricFamily(one.name, one.doc, labels=one.labels, unit=one.unit)
        for labels, value in family.samples:
            if isinstance(value, Distribution):
                histogram.add_metric(labels, value.cumulative(), value.sum)
        return histogram
    if one.type == "info":
        info = core.InfoMetricFamily(one.name, one.doc, labels=())
        for labels, _ in family.samples:
            info.add_metric((), dict(zip(one.labels, labels, strict=True)))
        return info
    kind = core.CounterMetricFamily if one.type == "counter" else core.GaugeMetricFamily
    metric = kind(one.name, one.doc, labels=one.labels, unit=one.unit)
    for labels, value in family.samples:
        if not isinstance(value, Distribution):
            metric.add_metric(labels, value)
    return metric
