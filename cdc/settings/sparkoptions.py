"""``[spark]``: the Spark that large ranges, the warehouse and the builds of views use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr, field_validator

from cdc.settings.interpolation import holds_secret
from cdc.settings.strict import Strict

JAVA_OPTIONS: Final = "-XX:+UseSerialGC -Xms48m -XX:TieredStopAtLevel=1"
"""Rows do not go through this JVM, which waits most of the time. Left alone its heap begins with a sixty-fourth of the machine's memory, and fills that before it first looks
for garbage."""
LEAST_HEAP_MB: Final = 512
"""Spark refuses to start with less than 450 MB."""

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>[1-9]\d*|\*)(?:,(?P<attempts>[1-9]\d*))?\])?")
_CLUSTER: Final = re.compile(r"spark://[^\s/@,]+:\d+(?:,[^\s/@,]+:\d+)*|yarn|k8s://[^\s@]+")
_MEMORY: Final = re.compile(r"([1-9]\d*)([mg])")
_SECRET: Final = re.compile(r"secret|password|token|access[.-]?key", re.IGNORECASE)
"""Spark's own list of what it takes for secret by its name."""
_SECRET_OPTION: Final = re.compile(rf"(?:{_SECRET.pattern})[^\s=]*=", re.IGNORECASE)
_SEEN: Final = "Spark's settings stand on the command line of its JVM, where every user of the machine reads them"
_ROWS: Final = "what it writes can hold rows' values"
_OTHERWISE: Final = "rows would read otherwise"
_ALWAYS: Final = "it is always on"
_LOADED: Final = "what this project needs stands there"

REFUSED: Final[Mapping[str, str]] = {
    "spark.master": "set master in [spark]",
    "spark.remote": "set master in [spark]",
    "spark.api.mode": "this project needs Spark's own JVM",
    "spark.submit.deployMode": "this process is the driver",
    "spark.driver.memory": "set driver_memory in [spark]",
    "spark.driver.extraJavaOptions": "set java_options in [spark]",
    "spark.driver.defaultJavaOptions": "set java_options in [spark]",
    "spark.driver.host": "set host in [spark]",
    "spark.driver.bindAddress": "set bind in [spark]",
    "spark.pyspark.python": "set python in [spark]",
    "spark.pyspark.driver.python": "it is the Python that runs cdc",
    "spark.authenticate": _ALWAYS,
    "spark.authenticate.secret": "set secret_file in [spark]",
    "spark.authenticate.secret.file": "set secret_file in [spark]",
    "spark.network.crypto.enabled": _ALWAYS,
    "spark.network.crypto.saslFallback": "a peer without encryption is refused",
    "spark.io.encryption.enabled": _ALWAYS,
    "spark.local.dir": "it is a folder of run_dir",
    "spark.jars": _LOADED,
    "spark.driver.extraClassPath": _LOADED,
    "spark.sql.extensions": _LOADED,
    "spark.hadoop.fs.file.impl": _LOADED,
    "spark.hadoop.fs.permissions.umask-mode": "HEADWATER_UMASK says who may read what is written",
    "spark.ui.enabled": "that page lets anybody in who reaches it",
    "spark.eventLog.enabled": _ROWS,
    "spark.executor.defaultJavaOptions": "set spark.executor.extraJavaOptions",
    "spark.log.level": _ROWS,
    "spark.sql.session.timeZone": _OTHERWISE,
    "spark.sql.ansi.enabled": _OTHERWISE,
    "spark.sql.caseSensitive": _OTHERWISE,
    "spark.sql.parquet.outputTimestampType": _OTHERWISE,
}
"""Spark's settings that ``settings`` may not hold, and why."""


class SparkOptions(Strict):
    """``[spark]``: the Spark that large ranges, the warehouse and the builds of views use."""

    master: str | None = None
    """`local[N]`: N cores of this machine; or a cluster's address, such as `spark://spark.internal:7077`, for what Spark's workers do ([spark.md](spark.md#on-a-cluster)).
    Left out: this machine, two cores of it for the stores and all of them for the build of a view."""
    secret: SecretStr | None = None
    """With `spark://…`: the secret that the cluster's own parts authenticate each other with (`spark.authenticate.secret` there). A local Spark makes itself one."""
    host: str | None = None
    """With a cluster: the name or address under which its workers reach this machine. It may be left out where the master is on this machine."""
    bind: str | None = None
    """With a cluster: the address that this process listens on for the workers, where it is not that of `host`, as in a container."""
    python: str | None = None
    """With a cluster: the workers' Python, which has this project's packages. Spark plans their tasks here with it, so this machine needs one under the same path. Left out: the path
    of the Python that runs `cdc`."""
    driver_memory: str = "1g"
    """The most heap of Spark's JVM beside a process of `cdc`, at least `512m`. The heap of a cluster's workers is Spark's own setting `spark.executor.memory`."""
    java_options: str = JAVA_OPTIONS
    """How that JVM collects and compiles, and what else its command line is to say."""
    settings: Mapping[str, bool | int | float | str] = {}
    """Spark's own settings by their names, in quotes: `"spark.executor.memory" = "4g"`. Refused are those that would break something, and secrets
    ([spark.md](spark.md#settings-of-sparks-own))."""

    @field_validator("master")
    @classmethod
    def _is_a_master(cls, master: str | None) -> str | None:
        if master is None or _LOCAL.fullmatch(master) or _CLUSTER.fullmatch(master):
            return master
        raise ValueError(
            "not a master of Spark; write local[4], spark://host:7077, yarn or k8s://https://host:6443, without credentials"
        )

    @field_validator("host", "bind", "python")
    @classmethod
    def _is_named(cls, text: str | None) -> str | None:
        if text is not None and (not text.strip() or text != text.strip()):
            raise ValueError("is empty, or has spaces around it; leave the key out if there is nothing to say")
        return text

    @field_validator("driver_memory")
    @classmethod
    def _is_a_heap(cls, memory: str) -> str:
        found = _MEMORY.fullmatch(memory)
        if found is None or int(found[1]) * (1024 if found[2] == "g" else 1) < LEAST_HEAP_MB:
            raise ValueError(f"not enough of a heap, or no heap at all; write {LEAST_HEAP_MB}m or more, such as 2g")
        return memory

    @field_validator("java_options")
    @classmethod
    def _shows_no_secret(cls, options: str) -> str:
        if _SECRET_OPTION.search(options):
            raise ValueError("holds a secret, and stands on a command line, where every user of the machine reads it")
        if re.search(r"-Xmx|\blog4j2?\.configurationFile\b", options):
            raise ValueError(
                "holds -Xmx, which is driver_memory, or log4j2.configurationFile, which keeps rows' values out of the log"
            )
        return options

    @field_validator("settings", mode="before")
    @classmethod
    def _are_named_in_quotes(cls, settings: object) -> object:
        if isinstance(settings, dict) and any(isinstance(one, dict) for one in settings.values()):
            raise ValueError('names have to stand in quotes, such as "spark.executor.memory" = "4g"')
        return settings

    @field_validator("settings")
    @classmethod
    def _can_be_passed_on(cls, settings: Mapping[str, bool | int | float | str]) -> Mapping[str, bool | int | float | str]:
        for name, value in settings.items():
            if (why := _refusal(name, str(value))) is not None:
                raise ValueError(f"{name}: {why}")
        return settings

    @property
    def cluster(self) -> bool:
        """Whether the workers are processes of a cluster."""
        return self.master is not None and _LOCAL.fullmatch(self.master) is None

    @property
    def standalone(self) -> tuple[tuple[str, int], ...]:
        """The addresses of a standalone cluster's masters; none of any other."""
        if self.master is None or not self.master.startswith("spark://"):
            return ()
        parted = (one.rpartition(":") for one in self.master.removeprefix("spark://").split(","))
        return tuple((host.removeprefix("[").removesuffix("]"), int(port)) for host, _, port in parted)

    @property
    def passed_on(self) -> Mapping[str, str]:
        """``settings`` as Spark writes them."""
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.settings.items()}

    @property
    def alone(self) -> SparkOptions:
        """The same for a JVM that gives no work to workers: no cluster has a part in it."""
        return (
            self
            if not self.cluster
            else self.model_copy(update={"master": None, "secret": None, "host": None, "bind": None, "python": None})
        )

    def locally(self, cores: int, attempts: int) -> SparkOptions:
        """The same where the workers are processes of this machine; those of a cluster as they are. ``cores``: where nothing else is said. ``attempts``: so often a task is begun
        whose worker was lost."""
        if self.cluster:
            return self
        found = _LOCAL.fullmatch(self.master) if self.master is not None else None
        said = str(cores) if found is None else found["cores"] or "1"
        tried = attempts if found is None else found["attempts"] or attempts
        return self.model_copy(update={"master": f"local[{said},{tried}]"})


def _refusal(name: str, value: str) -> str | None:
    """The reason for which a setting is not passed on; None where it is."""
    if not re.fullmatch(r"spark\.[\w.:/$*-]+", name):
        return "not a name of a setting of Spark: they begin with spark."
    if name in REFUSED:
        return REFUSED[name]
    secret = _SECRET.search(name) is not None and not name.lower().endswith("file")
    if secret or _SECRET_OPTION.search(value) or ("://" in value and holds_secret(value, address=True)):
        return f"holds a secret, and {_SEEN}; write it into spark-defaults.conf of SPARK_CONF_DIR, closed to others"
    return None
