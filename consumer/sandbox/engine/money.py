"""Money: whole micro-USDC inside, decimal strings outside (spec, request field `amount`; case X19)."""

from __future__ import annotations

import re

MICRO = 1_000_000
MIN_AMOUNT = 10_000
MAX_AMOUNT = 1_000_000 * MICRO

_AMOUNT = re.compile(r"[0-9]{1,1000}(\.[0-9]{1,6})?\Z")


def parse_amount(text: str) -> int | None:
    """Micro-USDC of a plain decimal string with at most 6 decimals; None for anything else."""
    if not _AMOUNT.match(text):
        return None
    whole, _, decimals = text.partition(".")
    return int(whole) * MICRO + int(decimals.ljust(6, "0") or "0")


def amount_text(micro: int) -> str:
    """`12.5` for 12,500,000: no trailing zeros, at least two decimals."""
    whole, decimals = divmod(micro, MICRO)
    return f"{whole}.{f'{decimals:06d}'.rstrip('0').ljust(2, '0')}"


def service_fee(amount: int, fee_bps: int) -> int:
    """The fee on top of `amount`, rounded down in the payer's favour (spec, What the service does, 7)."""
    return amount * fee_bps // 10_000
