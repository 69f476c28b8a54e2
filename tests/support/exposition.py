"""What a ``/metrics`` page says, as numbers."""

from __future__ import annotations

from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Samples: TypeAlias = dict[tuple[str, ...], float]
"""Values by name and labels (in the order of their names), but for the model's."""

PREFIX = "octavo:"


def samples_of(text: str, model_name: str) -> Samples:
    """Our own samples, without the prefix; all must carry the model's name."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith(PREFIX):
                assert sample.name.startswith("process_"), sample.name
                continue
            labels = dict(sample.labels)
            assert labels.pop("model_name") == model_name
            key = sample.name.removeprefix(PREFIX), *(labels[name] for name in sorted(labels))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def check_monotone(before: Samples, after: Samples) -> None:
    """Nothing that counts may have gone back, or have vanished."""
    for key, value in before.items():
        if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
            assert after[key] >= value, key


def check_histograms(samples: Samples) -> None:
    """Buckets are cumulative, and the last one holds all."""
    counts = {key: value for key, value in samples.items() if key[0].endswith("_count")}
    assert counts
    for (name, *labels), count in counts.items():
        stem = name.removesuffix("_count")
        rows = [
            (float(key[1]), value)
            for key, value in samples.items()
            if key[0] == f"{stem}_bucket" and list(key[2:]) == labels
        ]
        assert rows[-1][0] == float("inf") and rows[-1][1] == count, name
        assert [bound for bound, _ in rows] == sorted({bound for bound, _ in rows}), name
        assert [value for _, value in rows] == sorted(value for _, value in rows), name
