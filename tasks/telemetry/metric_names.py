"""The name, meaning, labels and buckets of every metric; no other module names a metric.

The names follow vLLM's where vLLM has the same figure. Standard library only: the API and the workers both
read this module, and each builds its Prometheus metrics from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.telemetry.tally import Layout

MODEL = ("model",)

# Upper bounds in seconds (of _BATCH: in sequences), for machines that make 5 to 100 tokens a second.
_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BETWEEN = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1,
    5,
)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_QUEUE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TRIP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: a histogram if it has ``buckets`` (upper bounds), a counter if its name ends in total."""

    name: str
    text: str
    labels: Sequence[str] = MODEL
    buckets: Sequence[float] = ()


# ---- finished requests, on the API; correct across all its processes --------------------------------

FIRST_TOKEN = Metric(
    "inference_time_to_first_token_seconds", "From acceptance to the first token.", buckets=_FIRST
)
BETWEEN_TOKENS = Metric(
    "inference_inter_token_latency_seconds", "Between two tokens of a request.", buckets=_BETWEEN
)
WHOLE = Metric("inference_e2e_request_latency_seconds", "From acceptance to the end.", buckets=_WHOLE)
QUEUED = Metric("inference_request_queue_time_seconds", "From acceptance to the first claim.", buckets=_QUEUE)
PREFILL = Metric(
    "inference_request_prefill_time_seconds", "From joining the batch to the first token.", buckets=_FIRST
)
DECODE = Metric("inference_request_decode_time_seconds", "From the first token to the last.", buckets=_WHOLE)
PROMPT_TOKENS = Metric("inference_prompt_tokens_total", "Tokens of the prompts of finished requests.")
REUSED_TOKENS = Metric("inference_reused_tokens_total", "Prompt tokens that were not computed again.")
GENERATED_TOKENS = Metric("inference_generated_tokens_total", "Tokens delivered in finished requests.")
REQUESTS = Metric("inference_requests_total", "Finished requests.", ("model", "outcome"))
ATTEMPTS = Metric(
    "inference_request_attempts_total",
    "Attempts at finished requests; more than one per request after failures.",
)
REFUSED = Metric("inference_requests_refused_total", "Requests that were not accepted.", ("reason",))

#: The most common reasons, shown even at 0; the others are codes of HTTP errors.
REFUSAL_REASONS = (
    *("queue_full", "overloaded", "store_unavailable", "store_full", "shutting_down", "invalid_value"),
    "too_many_connections",
)

# ---- the whole cluster now, on the API; every API process shows the same ----------------------------

STORE_UP = Metric("inference_store_up", "Whether Redis answers.", ())
WAITING = Metric("inference_requests_waiting", "Requests that wait for a slot.")
QUEUE_LIMIT = Metric("inference_queue_limit", "Requests that may wait.")
RUNNING = Metric("inference_requests_running", "Requests that are being generated.", ())
RESULT_BYTES = Metric("inference_result_bytes", "Bytes of finished requests that are kept.", ())
SLOTS = Metric("inference_slots", "Requests that a child can run at once.", ("model", "worker", "child"))
SLOTS_BUSY = Metric("inference_slots_busy", "Requests that a child is running.", SLOTS.labels)
KERNELS = Metric(
    "inference_kernels_info",
    "Which of llama.cpp's kernels a child computes with; always 1.",
    (*SLOTS.labels, "kernels"),
)
REQUEUED = Metric(
    "inference_requests_requeued_total",
    "Requests put back into the queue after they had left it.",
    ("reason",),
)
#: Why requests were put back; the scripts in ``tasks/store/scripts`` count by these names.
REQUEUE_REASONS = ("lease_lost", "child_died", "handed_back", "found_by_janitor")
DEAD_LETTERS = Metric("inference_dead_letters_total", "Messages in the queues that no worker could read.", ())
ENGINE_WORK = Metric(
    "inference_engine_work_total", "What a child's engine has done.", ("model", "worker", "child", "what")
)

# ---- Redis, on both: the API pings, the workers write ------------------------------------------------

#: A gauge of the process that answers; the kinds are those of :mod:`tasks.store.troubles`.
STORE_TROUBLE = Metric(
    "inference_store_trouble", "1 while Redis refuses something to this process, by what is wrong.", ("kind",)
)

ROUND_TRIP = Metric(
    "inference_redis_round_trip_seconds", "From a command to its answer.", ("command",), _TRIP
)

# ---- one worker host, on the worker -------------------------------------------------------------------

#: What the worker's children count, by the name that they use for it.
WORKER_COUNTERS = {
    "steps": Metric("inference_engine_steps_total", "Steps computed."),
    "rows": Metric("inference_engine_decoded_rows_total", "Rows decoded: one per sequence and step."),
    "padding": Metric(
        "inference_engine_padding_rows_total", "Padding rows added because the larger step was quicker."
    ),
    "prefilled": Metric("inference_engine_prefilled_tokens_total", "Prompt tokens computed."),
    "generated": Metric(
        "inference_engine_generated_tokens_total", "Tokens sampled, whether or not they were delivered."
    ),
    "guessed": Metric("inference_speculation_proposed_tokens_total", "Tokens guessed and checked."),
    "right": Metric("inference_speculation_accepted_tokens_total", "Guessed tokens that were right."),
    "preemptions": Metric(
        "inference_preemptions_total", "Sequences put back to wait because the cache was full."
    ),
    "restarts": Metric("inference_children_restarted_total", "Children started to replace ended ones."),
    "hung": Metric(
        "inference_children_hung_total", "Children killed because they had work and made no progress."
    ),
}
#: What the worker's children measure, by the name that they use for it.
WORKER_HISTOGRAMS = {
    "batch": Metric("inference_engine_batch_size", "Sequences computed in a step.", buckets=_BATCH),
    "step": Metric(
        "inference_engine_decode_step_seconds", "Steps that decode, with their prefill.", buckets=_BETWEEN
    ),
    "append": ROUND_TRIP,
}
WORKER_SLOTS = Metric("inference_worker_slots", "Slots of this worker host.", ("model", "state"))
#: Layout of the children's tallies; ``starts`` counts every start of a child, the first one, too.
WORKER_LAYOUT = Layout(
    ("starts", *WORKER_COUNTERS), {word: metric.buckets for word, metric in WORKER_HISTOGRAMS.items()}
)
