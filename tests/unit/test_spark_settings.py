"""``[spark]`` of cdc.toml: what is refused of it, and what the session, doctor and the daemon make of the rest."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pydantic import SecretStr

from cdc.commands.preflight import _cluster
from cdc.errors import ConfigError, HeadwaterError
from cdc.settings.file import load
from cdc.settings.sparkoptions import JAVA_OPTIONS, REFUSED, SparkOptions
from cdc.spark import cluster, session
from sinks import options_model

SECRET = "0123456789abcdef"


def options(folder: Path, text: str) -> SparkOptions:
    config = folder / "cdc.toml"
    config.touch(0o600)
    config.write_text(f'[source]\ndsn = "dbname=shop"\n[spark]\n{text}')
    return load(config, options_model).spark


def test_without_a_section_spark_stays_as_it_is(tmp_path: Path) -> None:
    found = options(tmp_path, "")
    assert found == SparkOptions()
    assert not found.cluster
    assert found.locally(2, 1).master == "local[2,1]"
    assert found.locally(8, 3).master == "local[8,3]"
    assert (found.driver_memory, found.java_options, found.passed_on) == ("1g", JAVA_OPTIONS, {})


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", "local[1,3]"), ("local[*]", "local[*,3]"), ("local[6]", "local[6,3]"), ("local[6,9]", "local[6,9]")],
)
def test_a_local_master_counts_for_all_sessions(tmp_path: Path, master: str, cores: str) -> None:
    found = options(tmp_path, f'master = "{master}"')
    assert not found.cluster
    assert found.locally(2, 3).master == cores


def test_a_cluster_has_its_secret_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("CLUSTER", SECRET)
    for said in ('secret_file = "secret"', 'secret = "${CLUSTER}"'):
        found = options(tmp_path, f'master = "spark://one.internal:7077,[::1]:7078"\nhost = "cdc.internal"\n{said}')
        assert found.secret is not None
        assert found.secret.get_secret_value() == SECRET
        assert found.standalone == (("one.internal", 7077), ("::1", 7078))
        assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            'master = "spark://one.internal:7077"\nhost = "h"',
            "spark.master: whoever reaches a cluster without a secret runs programs there",
        ),
        ('master = "spark://127.0.0.1:7077"', "spark.master: whoever reaches a cluster without a secret"),
        (
            f'master = "spark://one.internal:7077"\nsecret = "{SECRET}"',
            "spark.host: the cluster's workers have to reach this process",
        ),
        ('master = "k8s://https://one:6443"', "spark.host: the cluster's workers have to reach"),
        (f'master = "yarn"\nhost = "h"\nsecret = "{SECRET}"', "spark.secret: only a cluster at spark://"),
        (f'secret = "{SECRET}"', "spark.secret: only a cluster at spark://"),
        ('master = "spark://127.0.0.1:7077"\nsecret = "short"', "spark.secret: is shorter than 16 characters"),
        ('host = "h"', "spark.host: counts for a cluster only"),
        ('bind = "0.0.0.0"\nmaster = "local[2]"', "spark.bind: counts for a cluster only"),
        ('python = "/usr/bin/python3"', "spark.python: counts for a cluster only"),
        ('host = ""\nmaster = "yarn"', "spark.host: is empty"),
        ('master = "spark://me:secret@one:7077"', "spark.master: not a master of Spark"),
        ('master = "local-cluster[2,1,1024]"', "spark.master: not a master of Spark"),
        ('driver_memory = "256m"', "spark.driver_memory: not enough of a heap"),
        ('driver_memory = "much"', "spark.driver_memory: not enough of a heap"),
        ('java_options = "-Xmx4g"', "spark.java_options: holds -Xmx"),
        ('java_options = "-Dtrust.password=geheim"', "spark.java_options: holds a secret"),
        ("[spark.settings]\nspark.executor.memory = '4g'", "names have to stand in quotes"),
        ('[spark.settings]\n"executor.memory" = "4g"', "not a name of a setting of Spark"),
    ],
)
def test_what_is_refused_says_why(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options(tmp_path, text)
    assert what in str(refused.value)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_would_break_us_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"spark.settings: {name}: "):
        options(tmp_path, f'[spark.settings]\n"{name}" = "x"')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "geheim"),
        ("spark.hadoop.fs.s3a.access.key", "geheim"),
        ("spark.ssl.keyPassword", "geheim"),
        ("spark.executorEnv.API_TOKEN", "geheim"),
        ("spark.executor.extraJavaOptions", "-Djavax.net.ssl.trustStorePassword=geheim"),
        ("spark.jars.repositories", "https://me:geheim@jars.internal/"),
    ],
)
def test_a_secret_among_sparks_settings_is_refused_and_not_shown(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="command line") as refused:
        options(tmp_path, f'[spark.settings]\n"{name}" = "{value}"')
    assert "geheim" not in str(refused.value)


def test_all_other_settings_are_passed_on(tmp_path: Path) -> None:
    found = options(
        tmp_path,
        '[spark.settings]\n"spark.executor.memory" = "4g"\n"spark.cores.max" = 8\n"spark.speculation" = true\n'
        '"spark.kubernetes.authenticate.driver.oauthTokenFile" = "/run/token"\n',
    )
    assert found.passed_on == {
        "spark.executor.memory": "4g",
        "spark.cores.max": "8",
        "spark.speculation": "true",
        "spark.kubernetes.authenticate.driver.oauthTokenFile": "/run/token",
    }


def on_cluster(**more: Any) -> SparkOptions:
    return SparkOptions(master="spark://127.0.0.1:1", secret=SecretStr(SECRET), **more)


def test_what_a_cluster_is_told_holds_no_secret() -> None:
    told = cluster.settings_of(on_cluster(host="cdc.internal", bind="0.0.0.0"))
    assert (told["spark.driver.host"], told["spark.driver.bindAddress"]) == ("cdc.internal", "0.0.0.0")
    assert SECRET not in str(told)
    assert cluster.settings_of(on_cluster())["spark.driver.bindAddress"] == "127.0.0.1"


def test_a_jvm_without_workers_needs_no_cluster() -> None:
    found = on_cluster(host="h", driver_memory="2g", settings={"spark.cores.max": 2}).alone
    assert found == SparkOptions(driver_memory="2g", settings={"spark.cores.max": 2})


def test_the_jvm_alone_is_lent_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_SPARK_AUTH_SECRET", raising=False)
    with cluster.secret_lent(on_cluster()):
        assert os.environ["_SPARK_AUTH_SECRET"] == SECRET
    assert "_SPARK_AUTH_SECRET" not in os.environ


def test_a_cluster_that_does_not_answer_is_an_error_and_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "running", lambda: None)
    with pytest.raises(HeadwaterError, match=r"spark://127\.0\.0\.1:1 does not answer: 127\.0\.0\.1:1: connection refused"):
        session.session(options=on_cluster(), scratch=tmp_path)
    (found,) = _cluster(on_cluster())
    assert (found.level, found.check) == ("fail", "spark")
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = SparkOptions(master=f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}", secret=SecretStr(SECRET))
        (found,) = _cluster(answering)
    assert found.level == "ok"
    (found,) = _cluster(answering.model_copy(update={"python": str(tmp_path / "python")}))
    assert (found.level, found.message) == (
        "fail",
        f"python: this machine has no {tmp_path / 'python'}, where Spark plans the workers' tasks",
    )
    assert list(_cluster(SparkOptions())) == []


class Context:
    """A session's context. ``workers`` and ``jobs``: as Spark would say."""

    def __init__(self, master: str, workers: int = 0, jobs: int = 1) -> None:
        self.master, self.workers, self.jobs = master, workers, jobs
        self._jsc = SimpleNamespace(sc=lambda: self)

    def getExecutorMemoryStatus(self) -> Any:
        return SimpleNamespace(size=lambda: self.workers + 1)

    def statusTracker(self) -> Any:
        return SimpleNamespace(getActiveJobsIds=lambda: list(range(self.jobs)))

    def isStopped(self) -> bool:
        raise Py4JError("gone")


@pytest.fixture
def watched() -> tuple[Any, list[float], cluster.WorkerWatch]:
    context: Any = Context("spark://one:7077")
    now = [time.monotonic()]
    return context, now, cluster.WorkerWatch(context, lambda: now[0])


def test_work_that_no_worker_takes_is_given_up(watched: tuple[Any, list[float], cluster.WorkerWatch]) -> None:
    context, now, watch = watched
    for workers, jobs in ((0, 1), (2, 1), (0, 1), (0, 0), (0, 1)):
        context.workers, context.jobs = workers, jobs
        now[0] += 3 * cluster.WORKERS_S  # for so long nobody asks, as whoever takes the rows has much to do with them
        watch.check()
    now[0] += 0.9 * cluster.WORKERS_S
    watch.check()
    now[0] += 0.2 * cluster.WORKERS_S
    with pytest.raises(HeadwaterError, match="has had no worker"):
        watch.check()


def test_a_local_spark_has_its_workers_with_it() -> None:
    context: Any = Context("local[2]")
    now = [0.0]
    watch = cluster.WorkerWatch(context, lambda: now[0])
    now[0] = 10 * cluster.WORKERS_S
    watch.check()
    assert not cluster.ended_by_the_cluster(context)
