"""Checks that accepted requests were answered once: receipts against logs, and logs against their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tasks.contract.messages import Event, FinishReason, GenerateRequest, State
from tasks.engine.llama.model import Model
from tasks.store.requests import Record, RequestStore
from tests.chaos.clients import Receipt
from tests.chaos.cluster import Cluster
from tests.waiting import wait_until


class Judge:
    """Knows the store and the vocabulary. Every method raises ``AssertionError`` that says what is wrong."""

    def __init__(self, store: RequestStore, vocabulary: Model) -> None:
        self._store, self._vocabulary = store, vocabulary

    def receipt(self, receipt: Receipt) -> Record:
        """Check that an answer came whole, and that it is what was logged."""
        assert receipt.is_done, f"{receipt.id or 'unnamed'}: no answer: {receipt.error} ({receipt})"
        record, events = self.log(receipt.id)
        assert record.state is State.SUCCEEDED, f"{record.id}: answered, but {record.state}"
        end = events[-1].end
        assert end is not None
        assert end.usage is not None
        assert receipt.usage is not None, f"{record.id}: no usage"
        assert receipt.usage["completion_tokens"] == end.usage.completion_tokens, record.id
        assert receipt.usage["prompt_tokens"] == end.usage.prompt_tokens, record.id
        assert receipt.finish_reason == end.finish_reason, record.id
        self._same_text(receipt, events)
        return record

    def partial(self, receipt: Receipt) -> Record:
        """Check that what came before the client left is what was logged."""
        record, events = self.log(receipt.id)
        known = {event.seq: event.text for event in events}
        _in_order(receipt)
        for seq, text in receipt.pieces:
            assert known[seq] == text, f"{record.id}: piece {seq} is {text!r}, logged {known[seq]!r}"
        return record

    def log(self, request_id: str) -> tuple[Record, list[Event]]:
        """Check that a request ended once, and that its log is complete and fits its tokens."""
        record = self._store.fetch(request_id)
        assert record is not None, f"{request_id}: its record is gone"
        assert record.state.is_final, f"{request_id}: still {record.state}"
        events = self._store.read_log(request_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1)), f"{request_id}: a gap"
        ends = [event for event in events if event.end is not None]
        assert len(ends) == 1, f"{request_id}: {len(ends)} ends"
        assert ends[0] is events[-1], f"{request_id}: events after the end"
        assert record.seq == events[-1].seq, request_id
        self._tokens(record, events)
        return record, events

    def _tokens(self, record: Record, events: list[Event]) -> None:
        end = events[-1].end
        assert end is not None
        assert end.state == record.state, f"{record.id}: {record.state}, logged {end.state}"
        tokens = [token for event in events for token in event.tokens]
        if end.usage is not None:
            assert len(tokens) == end.usage.completion_tokens, f"{record.id}: tokens and usage differ"
        assert len(tokens) <= (record.request.max_tokens or len(tokens)), f"{record.id}: too many tokens"
        if end.finish_reason == FinishReason.LENGTH:
            assert len(tokens) == record.request.max_tokens, f"{record.id}: too few tokens"
        _same_beginning(record, "".join(e.text for e in events), self._text(tokens, record.request))

    def _text(self, tokens: Iterable[int], request: GenerateRequest) -> str:
        """The text of the tokens, by the model's vocabulary."""
        text = b"".join(map(self._vocabulary.piece, tokens)).decode(errors="replace")
        cuts = [at for stop in request.stop if (at := text.find(stop)) >= 0]
        return text[: min(cuts, default=None)]

    @staticmethod
    def _same_text(receipt: Receipt, events: list[Event]) -> None:
        logged = [(event.seq, event.text) for event in events if event.text]
        if receipt.text is not None:
            assert receipt.text == "".join(text for _, text in logged), receipt.id
            return
        _in_order(receipt)
        assert receipt.pieces == logged, f"{receipt.id}: received and logged pieces differ"


def _in_order(receipt: Receipt) -> None:
    numbers = [number for number, _ in receipt.pieces]
    repeated = [number for number, count in Counter(numbers).items() if count > 1]
    assert not repeated, f"{receipt.id}: {repeated} came more than once"
    assert numbers == sorted(numbers), f"{receipt.id}: out of order"


def _same_beginning(record: Record, text: str, by_tokens: str) -> None:
    if record.state is State.SUCCEEDED:
        assert text == by_tokens, f"{record.id}: the text isn't that of its tokens"
    else:  # half a character or half a stop string was held back and not delivered
        assert by_tokens.startswith(text), f"{record.id}: the text isn't that of its tokens"


def settled(cluster: Cluster, judge: Judge, timeout: float = 60) -> Mapping[str, Record]:
    """Wait until the cluster is quiet, and check every request that Valkey knows."""
    wait_until(cluster.is_quiet, timeout=timeout, interval=0.05)
    found = {}
    for request_id in cluster.record_ids():
        record = cluster.store.fetch(request_id)
        if record is not None:
            found[request_id] = judge.log(request_id)[0]
    return found
