"""What `equipoise reproduce` can reproduce: every item with the paper's label and number."""

from equipoise.experiments import cifar_items, conversions_items, federated_items, synthetic_items
from equipoise.experiments.request import Item


def items() -> dict[str, Item]:
    """Everything that can be reproduced, by the name on the command line."""
    return {
        **synthetic_items.items(),
        **federated_items.items(),
        **cifar_items.items(),
        **conversions_items.items(),
    }
