"""pass@k and pass^k: unbiased, in log space, for any number of samples a prompt."""

from __future__ import annotations

import math
from functools import lru_cache


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"passed samples must be between 0 and n={n!r}, got {c!r}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the number of samples {n!r}, got {k!r}")


@lru_cache(maxsize=65536)
def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples passes, drawn without replacement from n of which c passed.

    `1 - C(n-c, k) / C(n, k)`, the unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code". The quotient is a product of `1 - k/(n-i)` over the passed samples, or the same with k and c exchanged.
    """
    _check(n, c, k)
    if n - c < k:
        return 1.0
    few, many = min(c, k), max(c, k)
    return -math.expm1(math.fsum(math.log1p(-many / (n - i)) for i in range(few)))


@lru_cache(maxsize=65536)
def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k samples pass, drawn without replacement from n of which c passed.

    `C(c, k) / C(n, k)`, as in tau-bench (Yao et al. 2024): how reliable an agent is.
    """
    _check(n, c, k)
    if c < k:
        return 0.0
    if c == n:
        return 1.0
    few, many = min(n - c, k), max(n - c, k)
    return math.exp(math.fsum(math.log1p(-many / (n - i)) for i in range(few)))
