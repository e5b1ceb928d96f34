"""Counters and histograms cheap enough for every request, whose values can be merged over processes.

Recording is a dictionary access (and a bisection), a tenth of what `prometheus_client`'s locked objects cost; that
library writes the text format, from the merged values, when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
Snapshot = dict[str, list[tuple[list[str], list[float]]]]
"""Metric name -> (label values, numbers): one number for a counter; bucket counts and the sum for a histogram."""


class Counter:
    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.values: dict[Labels, list[float]] = {}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        cell = self.values.get(labels)
        if cell is None:
            cell = self.values[labels] = [0.0]
        cell[0] += by

    def family(self, values: Mapping[Labels, list[float]]) -> Metric:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for labels, numbers in values.items():
            family.add_metric(labels, numbers[0])
        return family


class Histogram:
    def __init__(self, name: str, help: str, labels: Labels, buckets: Iterable[float]) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.buckets = tuple(buckets)
        self.values: dict[Labels, list[float]] = {}

    def observe(self, value: float, *labels: str) -> None:
        cell = self.values.get(labels)
        if cell is None:
            cell = self.values[labels] = [0.0] * (len(self.buckets) + 2)
        cell[bisect_left(self.buckets, value)] += 1.0
        cell[-1] += value

    def family(self, values: Mapping[Labels, list[float]]) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = [*map(floatToGoString, self.buckets), "+Inf"]
        for labels, numbers in values.items():
            counts, reached = [], 0.0
            for bound, count in zip(bounds, numbers, strict=False):
                reached += count
                counts.append((bound, reached))
            family.add_metric(labels, counts, sum_value=numbers[-1])
        return family


class MetricStore:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Histogram] = {}

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        counter = Counter(name, help, labels)
        self._metrics[name] = counter
        return counter

    def histogram(self, name: str, help: str, *labels: str, buckets: Iterable[float]) -> Histogram:
        histogram = Histogram(name, help, labels, buckets)
        self._metrics[name] = histogram
        return histogram

    def snapshot(self) -> Snapshot:
        """Plain data, for another process."""
        return {
            name: [(list(labels), list(numbers)) for labels, numbers in metric.values.items()]
            for name, metric in self._metrics.items()
        }

    def families(self, snapshots: Iterable[Snapshot]) -> Iterable[Metric]:
        """The sum of `snapshots`, ready for the text format."""
        merged = merge(snapshots)
        for name, metric in self._metrics.items():
            yield metric.family(merged.get(name, {}))

    def forget(self, label: str, value: str) -> None:
        """Drop the series of something that is gone for good, so that their number stays bounded."""
        for metric in self._metrics.values():
            if label in metric.labels:
                at = metric.labels.index(label)
                for labels in [known for known in metric.values if known[at] == value]:
                    del metric.values[labels]


def merge(snapshots: Iterable[Snapshot]) -> dict[str, dict[Labels, list[float]]]:
    merged: dict[str, dict[Labels, list[float]]] = {}
    for snapshot in snapshots:
        for name, series in snapshot.items():
            into = merged.setdefault(name, {})
            for labels, numbers in series:
                known = into.setdefault(tuple(labels), [0.0] * len(numbers))
                into[tuple(labels)] = [a + b for a, b in zip(known, numbers, strict=True)]
    return merged


def as_snapshot(value: Any) -> Snapshot:
    """What another process sent, checked only as far as merging needs."""
    return {str(name): [(list(labels), list(numbers)) for labels, numbers in series] for name, series in value.items()}
