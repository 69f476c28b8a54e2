"""Sums whose bits are a row's own, at the size of real vocabularies."""

from __future__ import annotations

import pytest
import torch

from octavo.sampling.sums import log_sum_exp, row_sums


@pytest.fixture
def logits() -> torch.Tensor:
    return 5 * torch.randn(40, 151_936, generator=torch.Generator().manual_seed(0))


def test_bits_do_not_depend_on_the_number_of_rows(logits: torch.Tensor) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sums, totals = row_sums(logits.exp()), log_sum_exp(logits)
        for count in (1, 2, 3, 7):
            assert torch.equal(row_sums(logits[:count].exp()), sums[:count])
            assert torch.equal(log_sum_exp(logits[:count]), totals[:count])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 5, 255, 256, 257, 300, 49_152, 65_537])
def test_near_the_exact_sum(logits: torch.Tensor, n: int) -> None:
    part = logits[:3, :n]
    torch.testing.assert_close(row_sums(part, torch.float64), part.double().sum(-1))
    exact = torch.logsumexp(part.double(), -1, keepdim=True).float()
    torch.testing.assert_close(log_sum_exp(part), exact)


def test_infinite_logits() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf], [torch.nan, 0.0]])
    totals = log_sum_exp(logits)[:, 0]
    assert totals[0] == 0
    assert totals[1] == -torch.inf
    assert totals[2].isnan()
