"""What troubles a process has with Redis now: each is told once when it begins, and once when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from threading import Lock

from tasks.store.troubles import Kind, Trouble

logger = logging.getLogger(__name__)


class Board:
    """All troubles of one process, by who has them: its consumer, its janitor, and so on.

    Args:
        find_foreign: finds the keys of ours that have a foreign type; asked once for each such trouble.
        on_change: called after each change with the texts of all troubles.
    """

    def __init__(
        self,
        find_foreign: Callable[[], Iterable[str]] = tuple,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._find_foreign, self._on_change = find_foreign, on_change
        self._troubles: dict[str, Trouble] = {}
        self._lock = Lock()

    def note(self, who: str, error: BaseException) -> Trouble:
        """Note that ``who`` failed because of Redis, and tell it unless it was told; return what it is."""
        trouble = Trouble.of(error)
        with self._lock:
            before = self._troubles.get(who)
            if before is not None and before.kind is trouble.kind:
                return before
            if trouble.kind is Kind.WRONG_TYPE:
                trouble = Trouble(trouble.kind, trouble.text + self._foreign_keys())
            self._troubles[who] = trouble
            level = logging.ERROR if trouble.kind.needs_person else logging.WARNING
            logger.log(level, "%s: waiting and trying again: %s", who, trouble.text)
            self._on_change(self.text)
        return trouble

    def over(self, who: str) -> None:
        """Note that ``who`` succeeded; cheap if it had no trouble."""
        if who not in self._troubles:
            return
        with self._lock:
            trouble = self._troubles.pop(who, None)
            if trouble is not None:
                logger.warning("%s: going on, Redis answers again (it was: %s)", who, trouble.kind)
                self._on_change(self.text)

    def of(self, who: str) -> Trouble | None:
        """The trouble that ``who`` has now."""
        return self._troubles.get(who)

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of all troubles now."""
        return {trouble.kind for trouble in list(self._troubles.values())}

    @property
    def texts(self) -> list[str]:
        """All troubles now, each once, for people."""
        return list(dict.fromkeys(trouble.text for trouble in list(self._troubles.values())))

    @property
    def text(self) -> str:
        """All troubles now in one text; empty if there are none."""
        return "; ".join(self.texts)

    def _foreign_keys(self) -> str:
        try:
            found = list(self._find_foreign())
        except Exception as error:  # it only adds to a message
            return f" (which one can't be found out: {error})"
        return f": {', '.join(found)}" if found else ""
