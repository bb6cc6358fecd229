"""Conversions: from the trajectory of a run to its answer."""

from equipoise.conversion.adaptive import Adaptive, AdaptiveState
from equipoise.conversion.average import Average, AverageState
from equipoise.conversion.last import Last, LastState
from equipoise.conversion.ledger import Ledger, LedgerState
from equipoise.conversion.plan import Plan
from equipoise.conversion.protocol import Conversion
from equipoise.conversion.suffix import Suffix, SuffixState

__all__ = [
    "Adaptive",
    "AdaptiveState",
    "Average",
    "AverageState",
    "Conversion",
    "Last",
    "LastState",
    "Ledger",
    "LedgerState",
    "Plan",
    "Suffix",
    "SuffixState",
]
