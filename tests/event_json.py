"""An event as ``append.lua`` puts it together."""

from __future__ import annotations

from tasks.contract.messages import Event, end_json, event_body


def event_json(event: Event) -> str:
    """The entry of a log."""
    end = "" if event.end is None else f',"end":{end_json(event.end)}'
    return f'{{"s":{event.seq},{event_body(event.text, event.tokens)}{end}}}'
