"""What packets of a Perfetto trace say: texts, each sent once and referred to by number, and notes on slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.export.perfetto_wire import VARINT, Pieces, fields, numbers, tag

_AT_ONCE = 1000  # texts in a packet
_NAME, _CATEGORY, _KEY, _VALUE = (
    "event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values",
)  # fmt: skip


class TraceTexts:
    """The texts of a trace, numbered by kind, and the fields of a TrackEvent that refer to them."""

    def __init__(self, protos: Any) -> None:
        self._protos = protos
        self._known: dict[tuple[str, str], int] = {}
        self._new: list[tuple[str, str, int]] = []
        self._notes = protos.TrackEvent.DESCRIPTOR.fields_by_name["debug_annotations"].number
        self._integer = tag(protos.DebugAnnotation.DESCRIPTOR.fields_by_name["int_value"].number, VARINT)

    def named(self, name: str, category: str) -> bytes:
        """The fields of a slice's name and category."""
        numbered = self._number(_NAME, name), self._number(_CATEGORY, category)
        event = self._protos.TrackEvent(name_iid=numbered[0], category_iids=[numbered[1]])
        return bytes(event.SerializeToString())

    def noted(self, **notes: str) -> bytes:
        """The fields that say something of a slice: texts under their names; what is empty is left out."""
        event = self._protos.TrackEvent()
        for key, text in notes.items():
            if text:
                event.debug_annotations.add(
                    name_iid=self._number(_KEY, key), string_value_iid=self._number(_VALUE, text)
                )
        return bytes(event.SerializeToString())

    def counted(self, key: str, values: NDArray[np.integer]) -> Pieces:
        """A field for each row that says a whole number under that name."""
        note = self._protos.DebugAnnotation(name_iid=self._number(_KEY, key))
        return fields(self._notes, numbers(values, note.SerializeToString() + self._integer))

    def _number(self, kind: str, text: str) -> int:
        found = self._known.get((kind, text))
        if found is None:
            found = self._known[kind, text] = len(self._known) + 1
            self._new.append((kind, text, found))
        return found

    def send(self, add: Callable[..., None]) -> None:
        """Add packets with the texts that are new since the last time: they go before the packets that need them."""
        for first in range(0, len(self._new), _AT_ONCE):
            data = self._protos.InternedData()
            for kind, text, number in self._new[first : first + _AT_ONCE]:
                entry = getattr(data, kind).add(iid=number)
                if kind == _VALUE:
                    entry.str = plain(text).encode()
                else:
                    entry.name = plain(text)
            add(interned_data=data)
        self._new.clear()


def plain(text: str) -> str:
    """The text with a question mark for each half of a character: protobuf refuses those."""
    return text.encode(errors="replace").decode()
