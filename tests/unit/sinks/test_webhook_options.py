"""What a webhook's options refuse, and that nothing of them is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.settings.file import SettingsError, load
from sinks import options_model
from sinks.events.webhook import Options

BARE = {"kind": "webhook", "url": "https://billing.internal/hooks"}


def options(**more: Any) -> Options:
    return Options.model_validate({**BARE, **more})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://billing.internal/t0ken"}, "url is http, so anybody on the way may read along"),
        ({"url": "https://{key}.internal/t0ken"}, "an event must not choose the receiver"),
        ({"secret": "whsec_t0ken!"}, "is not base64"),
        ({"secret": ["good", ""]}, "is empty"),
        ({"headers": {"Webhook-Id": "t0ken"}}, "written by Headwater itself"),
        ({"headers": {"Host": "t0ken"}}, "written by Headwater itself"),
        ({"headers": {"X-A": "a\r\nHost: t0ken"}}, "no header can hold"),
        ({"headers": {"a b": "t0ken"}}, "no header can have"),
        ({"retry": {"first_s": 9, "most_s": 3}}, "most_s is shorter than first_s"),
        ({"batch": 0}, "greater than or equal to 1"),
        ({"in_flight": 1000}, "less than or equal to 256"),
        ({"order": "topic"}, "'key' or 'none'"),
        ({"schema": "pause"}, "apply"),
        ({"tables": {"public.orders": {"where": "id > 3"}}}, "where"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**given)
    messages = " ".join(one["msg"] for one in caught.value.errors(include_input=False))
    assert said in messages
    assert "t0ken" not in messages


def test_a_secret_is_one_text_or_several() -> None:
    assert [one.get_secret_value() for one in options(secret="a").secrets] == ["a"]
    assert [one.get_secret_value() for one in options(secret=["a", "b"]).secrets] == ["a", "b"]
    assert options().secrets == ()


def test_nothing_secret_is_shown() -> None:
    found = options(url="https://billing.internal/t0ken", secret=["t0ken"], headers={"Authorization": "t0ken"})
    assert "t0ken" not in repr(found)
    assert found.address.where == "billing.internal:443"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cdc.toml"
    path.touch(0o600)
    return path


def written(file: Path, more: str) -> Path:
    file.write_text(f'[source]\ndsn = "host=h user=cdc"\n[stores.billing]\nkind = "webhook"\nurl = "https://b.internal/"\n{more}')
    return file


def test_what_it_keeps_lies_in_the_logs_folder_unless_it_says_where(file: Path) -> None:
    [found] = load(written(file, ""), options_model).stores.values()
    assert found.disk_path == file.parent / "var/log/deliveries"
    [found] = load(written(file, 'state_dir = "kept"'), options_model).stores.values()
    assert found.disk_path == file.parent / "kept"


def test_a_secret_may_stand_in_a_file_which_is_read_again(file: Path) -> None:
    secret = file.parent / "hook.secret"
    secret.touch(0o600)
    secret.write_text("one\n")
    [found] = load(written(file, 'secret_file = "hook.secret"'), options_model).stores.values()
    assert isinstance(found, Options)
    assert [one.get_secret_value() for one in found.secrets] == ["one"]
    secret.write_text("two\n")
    assert [one.get_secret_value() for one in found.secrets] == ["two"]


@pytest.mark.parametrize(("more", "key"), [('secret = ["t0ken"]', "secret"), ('headers = { Authorization = "t0ken" }', "headers")])
def test_secrets_in_a_file_that_others_may_read_are_refused(file: Path, more: str, key: str) -> None:
    written(file, more).chmod(0o644)
    with pytest.raises(SettingsError) as caught:
        load(file, options_model)
    [line] = [one.line() for one in caught.value.problems]
    assert line.startswith(f"{file}: stores.billing.{key}: others may read the file")
    assert "t0ken" not in line
    assert ("secret_file" in line) == (key == "secret")
    assert "headers_file" not in line
