"""What deploy/ promises: the role is enough, and the pages' links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc.settings.models import Source
from cdc.source import connect, ensure_publication, ensure_slot, find_tables
from cdc.source.checks import check_source
from tests.conftest import Database

ROOT = Path(__file__).parents[2]


def test_the_role_is_enough_and_no_more(pg_versions: Database) -> None:
    role = f"r {pg_versions.name}"
    admin = pg_versions.connect()
    admin.execute(
        """
        create schema "my shop";
        create table "my shop"."Orders" (id int primary key);
        create table "my shop".loose (id int);
        create table "my shop".parted (id int primary key) partition by range (id);
        create table "my shop".part partition of "my shop".parted default;
        """
    )
    psql = [
        "psql",
        "-X",
        "-q",
        "-d",
        pg_versions.dsn,
        "-v",
        f"role={role}",
        "-v",
        "schema=my shop",
        "-f",
        str(ROOT / "deploy/roles.sql"),
    ]
    for _ in range(2):
        done = subprocess.run([str(pg_versions.server.binary("psql")), *psql[1:]], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
    dsn = pg_versions.server.dsn(pg_versions.name, user=role.replace(" ", "%20"))
    source = Source(dsn=SecretStr(dsn), tables=("my shop.*", "!my shop.loose"), slot=f"s_{pg_versions.name}")
    with connect(dsn) as limited:
        assert [table.qualified for table in ensure_publication(limited, source, find_tables(limited))] == [
            "my shop.Orders",
            "my shop.parted",
        ]
        ensure_slot(limited, source, create=True)
        worst = [finding for finding in check_source(limited, source, log_has_begun=True) if finding.level != "ok"]
    assert [finding.check for finding in worst] == ["wal limit"]
    row = admin.execute(
        "select rolsuper, rolcreatedb, rolcreaterole, rolbypassrls from pg_roles where rolname = %s", (role,)
    ).fetchone()
    assert row == (False, False, False, False)
    admin.execute(f'drop owned by "{role}"')
    admin.execute(f'drop role "{role}"')


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze to ask")
    unit = (ROOT / "deploy/headwater.service").read_text()
    installed = "/opt/headwater/.venv/bin/cdc"
    assert unit.count(f"ExecStart={installed} ") == 1
    asked = tmp_path / "headwater.service"
    asked.write_text(unit.replace(installed, sys.executable))
    done = subprocess.run([program, "verify", "--man=no", str(asked)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "headwater" in line]) == (0, [])


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/runbook.md", "docs/upgrade.md"):
        document = ROOT / name
        text = document.read_text()
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if target.startswith("https:"):
                continue
            path, _, anchor = target.partition("#")
            leads_to = document.parent / path if path else document
            assert leads_to.exists(), (name, target)
            headings = re.findall(r"^#+ (.*)$", leads_to.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, (
                name,
                target,
            )
