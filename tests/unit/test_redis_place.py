"""The address of Redis: what is read, what is refused, and that no error tells a password."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import BlockingConnectionPool

from tasks.contract.redis_place import RedisPlace
from tasks.settings import BrokerSettings
from tasks.store.connect import Broker, connect

pytestmark = pytest.mark.unit

SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
HOSTS = st.sampled_from(["h", "127.0.0.1", "[::1]", "queue.example"])


@given(SECRETS, SECRETS, HOSTS, st.integers(1, 65535), st.integers(0, 99), st.booleans())
def test_any_user_and_password_reach_both_clients(
    user: str, password: str, host: str, port: int, db: int, is_in_query: bool
) -> None:
    where = f"?db={db}" if is_in_query else f"/{db}"
    url = f"redis://{quote(user, safe='')}:{quote(password, safe='')}@{host}:{port}{where}"
    place = RedisPlace.parse(url)
    expected = (user, password, ((host.strip("[]"), port),), db)
    assert (place.username, place.password, place.hosts, place.db) == expected
    told = connect(url).connection_pool.connection_kwargs
    assert (told["username"], told["password"], ((told["host"], told["port"]),), told["db"]) == expected
    assert RedisPlace.parse(Broker.at(url).url.removeprefix("inference-")) == place
    assert place.shown == f"{host}:{port}/{db}"


@given(st.text(max_size=60))
def test_whatever_follows_the_scheme_is_read_or_refused(rest: str) -> None:
    for scheme in ("redis", "rediss", "unix", "redis+socket", "sentinel"):
        url = f"{scheme}://{rest}"
        try:
            place = RedisPlace.parse(url)
        except ValueError:
            continue
        client = connect(url)
        assert client.connection_pool is not None
        if isinstance(client.connection_pool, BlockingConnectionPool):
            client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # the options are known to the client
        assert Broker.at(url).url.startswith(f"inference-{place.kind}://")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://h", "must begin with redis://"),
        ("localhost:6379", "must begin with redis://"),
        ("redis:/h", "must begin with redis://"),
        ("redis://h:secret", "a host or a port that can't be read"),
        ("redis://:secret/x@h:1/0", "/ %2F"),
        ("redis://:secret#x@h:1/0", "# %23"),
        ("redis://:secret[x@h:1/0", r"\[ %5B"),
        ("redis://h:0/0", "port 0"),
        ("redis://h:99999/0", "port"),
        ("redis://h/secret", "a database that isn't a number"),
        ("redis://h/0/1", "a database that isn't a number"),
        ("redis://h/1?db=2", "two databases"),
        ("redis://h?db=-1", "a database that isn't a number"),
        ("redis://h?db=1&db=2", "twice"),
        ("redis://h?db", "a query that isn't of the form"),
        ("redis://h?socket_timeout=60", "only these may be: db, health_check_interval, client_name"),
        ("redis://h?ssl_cert_reqs=none", "only these may be"),
        ("redis://h?health_check_interval=soon", "health_check_interval .* isn't a whole number of seconds"),
        ("redis://h?client_name=a%20b", "client_name .* isn't a name"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs .* isn't required, optional or none"),
        ("rediss://h?ssl_check_hostname=2", "ssl_check_hostname .* isn't true or false"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix://", "three slashes"),
        ("unix:///" + "a" * 107, "more than 107 bytes"),
        ("sentinel://a;redis:x/0", "database|read"),
    ],
)
def test_what_is_refused_names_the_reason_and_no_secret(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        RedisPlace.parse(url)
    assert "secret" not in str(caught.value)


def test_an_error_of_the_settings_shows_no_password() -> None:
    with pytest.raises(ValueError, match=r"(?i)redis_url") as caught:
        BrokerSettings(redis_url="redis://:open-sesame@h/x")
    assert "open-sesame" not in str(caught.value)


def test_an_empty_url_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERENCE_REDIS_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "")
    settings = BrokerSettings()
    assert settings.chosen_redis_url is None
    assert settings.redis_url == "redis://127.0.0.1:6379/0"
