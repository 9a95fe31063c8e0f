"""The places' health, kept in Redis so that a restart forgets no cool-down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import structlog

from flashd.adapters.store import Store
from flashd.adapters.store_types import Notes
from flashd.core import cooling
from flashd.core.cooling import PlaceHealth
from flashd.core.places import Offer
from flashd.errors import StoreError

log = structlog.get_logger(__name__)

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(PlaceHealth)


class PlaceBook:
    """What is known of every place that a launch was tried at. Changes are written at the next `save`."""

    def __init__(self) -> None:
        self._places: dict[str, PlaceHealth] = {}
        self._changed: set[str] = set()

    def load(self, notes: Mapping[str, str]) -> None:
        """Take over what an earlier leader knew; what cannot be read is forgotten, with a line."""
        self._places.clear()
        self._changed.clear()  # of an earlier term of this process: others have led since
        for key, text in notes.items():
            try:
                self._places[key] = _DECODER.decode(text)
            except msgspec.MsgspecError as error:
                log.warning("place_note_unreadable", place=key, error=str(error))

    async def save(self, store: Store) -> None:
        """Write what changed; a write that fails is tried again with the next one. Raises FencedError."""
        if not self._changed:
            return
        changed = {key: _ENCODER.encode(self._places[key]).decode() for key in sorted(self._changed)}
        self._changed.clear()
        try:
            await store.note(Notes.PLACES, changed)
        except StoreError:
            self._changed |= set(changed)
            raise

    def of(self, key: str) -> PlaceHealth:
        return self._places.get(key, PlaceHealth())

    def set(self, key: str, health: PlaceHealth) -> None:
        if health != self.of(key):
            self._places[key] = health
            self._changed.add(key)

    def restocked(self, provider: str, offers: Iterable[Offer], read_began_at: float) -> None:
        """A whole stock read of a provider, which began at `read_began_at`."""
        shown = {offer.place.key for offer in offers if offer.available}
        for key in sorted(shown):
            self.set(key, cooling.restocked(self.of(key), read_began_at))
        for key in sorted(self._places.keys() - shown):
            if key.startswith(f"{provider}/"):
                self.set(key, cooling.sold_out(self.of(key)))

    def cooling(self, now: float) -> dict[str, float]:
        """Places that cool for everybody, and until when."""
        return {key: health.cooling_until for key, health in self._places.items() if health.cooling_until > now}
