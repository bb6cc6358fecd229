"""From `store=` to a record: the slots that it asks for, and a courier where the host must not wait for a device."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.conversion import Conversion
from equipoise.conversion.planned import is_planned
from equipoise.host import beside_the_host
from equipoise.train.archive import Archive, Direct, Record
from equipoise.train.courier import Aside, Courier, ToHost
from equipoise.train.disk import OnDisk
from equipoise.train.slots import Slots, on_device, on_host

__all__ = ["new_courier", "new_record"]

_Store = str | os.PathLike[str]
"""Where copies live: "device", "host", or a folder."""


def new_record(
    conversion: Conversion[Any],
    params: Mapping[str, Tensor],
    losses: Tensor,
    store: _Store,
    on_error: Literal["raise", "keep"],
    *,
    apart: bool,
) -> Record:
    """A record of nothing yet.

    Args:
        conversion: The conversion.
        params: θ at the start; of sharded parameters this rank's parts.
        losses: Of shape (m,); looked at for dtype and device only.
        store: Where its copies live.
        on_error: What a store that cannot be written to does, see `Archive`.
        apart: Whether parameters are shards, see `Layout`.
    """
    if not is_planned(conversion) or conversion.copies is None:
        return Direct(conversion, params, losses)
    slots = _open_slots(store, params, conversion.copies, apart=apart)
    courier = new_courier(store, losses.device, apart=apart)
    return Archive(conversion, params, losses, slots, courier, on_error=on_error)


def new_courier(store: _Store, device: torch.device, *, apart: bool) -> Courier | None:
    """The courier from a device to a store; None where the host does not wait for a device."""
    if not beside_the_host(device):
        return None
    return Aside(apart=apart) if store == "device" else ToHost(device, apart=apart)


def _open_slots(store: _Store, params: Mapping[str, Tensor], number: int, *, apart: bool) -> Slots:
    if store == "device":
        return on_device(params, number, apart=apart)
    return on_host(params, number, apart=apart) if store == "host" else OnDisk(store, params, number)
