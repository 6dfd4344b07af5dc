"""One planted bug for each thing that was found wrong before: it takes away what keeps it from coming back. Named as a user would meet it."""

from __future__ import annotations

from typing import Final

from tests.mutants.seeded import Mutant

ROLES: Final = "deploy/roles.sql"
TEST_ROLES: Final = "tests/integration/source/test_roles.py"
MESSAGES: Final = "tests/unit/capture/test_definitions.py"
UNDECIDED: Final = "tests/unit/test_newcolumns.py"
KEYS: Final = "tests/unit/sinks/test_keytemplate.py"
PEERS: Final = "tests/integration/test_http_peers.py"
FOLDERS: Final = "tests/unit/test_folders.py"

FOUND = (
    # Rights and secrets
    Mutant(
        "who may create a table becomes a superuser through the event trigger", ROLES,
        ", pg_temp set jit = off set lock_timeout = '100ms' as $end$", " set jit = off set lock_timeout = '100ms' as $end$",
        ("-k", "temporary_views and pg18 and creates", TEST_ROLES),
    ),
    Mutant(
        "the database's owner keeps a function that runs as a superuser", ROLES,
        "on r.oid = owned.owner where not r.rolsuper;", "on r.oid = owned.owner where false;",
        ("-k", "made_is_refused and pg18 and ddl_end", TEST_ROLES),
    ),
    Mutant(
        "the role of deploy/roles.sql can write", ROLES,
        'alter role :"role" set default_transaction_read_only = on;\n', "",
        ("-k", "file_makes_is_read_only and pg18", TEST_ROLES),
    ),
    Mutant(
        "a password goes in clear text to whoever answers", "cdc/source/authentication.py",
        "return dict(parts) if said else {**parts, \"require_auth\": REQUIRE_AUTH}", "return dict(parts)",
        ("-k", "whoever_answers", "tests/integration/source/test_authentication.py"),
    ),
    Mutant(
        "a host that the environment names is not verified", "cdc/source/connection.py",
        "    options = effective(parts)\n", "    options = parts\n", ("tests/unit/source/test_connection.py",),
    ),
    Mutant(
        "cdc doctor finds nothing wrong with a source that nobody verifies", "cdc/commands/transport.py",
        "source = effective(parse(settings.source.dsn.get_secret_value()))", "source = parse(settings.source.dsn.get_secret_value())",
        ("tests/unit/commands/test_transport.py",),
    ),
    Mutant(
        "cdc init takes a password on the command line and writes it down", "cdc/commands/init.py",
        "if holds_secret(source, address=True):", "if False:", ("-k", "password", "tests/unit/commands/test_init.py"),
    ),
    Mutant(
        "a password may stand in a cdc.toml that everybody can read", "cdc/settings/file.py",
        "elif any(holds_secret(text, address=key in _ADDRESSES) for text in texts_in(value)):", "elif False:",
        ("-k", "others_may_read", "tests/unit/test_settings.py"),
    ),
    Mutant(
        "everybody on the machine is a superuser of the embedded Postgres", "cdc/embedded/postgres.py",
        "--auth-host=scram-sha-256", "--auth-host=trust",
        ("-k", "nobody_without_the_password and pg18", "tests/integration/embedded/test_postgres_server.py"),
    ),
    Mutant(
        "the stream is read beneath the encryption of Kerberos", "cdc/capture/stream.py",
        "bare = self._no_gss and not", "bare = not", ("-k", "bare_socket and mode2", "tests/integration/test_tls.py"),
    ),
    Mutant(
        "Spark's ports answer every user of the machine", "cdc/spark/session.py",
        '"spark.authenticate": "true",', '"spark.authenticate": "false",', ("-k", "secret", "tests/unit/spark/test_session.py"),
    ),
    # Files
    Mutant(
        "everybody can read what a command writes", "cdc/__main__.py",
        "        os.umask(_umask())\n", "        os.umask(0o022)\n", ("-k", "private", "tests/unit/commands/test_main.py"),
    ),
    Mutant(
        "everybody can read what Spark writes", "cdc/spark/session.py",
        'f"{_umask():03o}"', '"022"', ("-k", "private", "tests/unit/spark/test_session.py"),
    ),
    Mutant(
        "a log folder that others can read stays so", "cdc/folders.py",
        "    _close(folder, 0o700, setting)\n", "    pass\n", ("-k", "closed_to_others", FOLDERS),
    ),
    Mutant(
        "a folder that somebody else owns is believed", "cdc/folders.py",
        "    if found.st_uid != os.geteuid():\n        raise _not_ours", "    if False:\n        raise _not_ours", ("-k", "somebody_elses_folder", FOLDERS),
    ),
    Mutant(
        "a link of somebody else's leads the log elsewhere", "cdc/folders.py",
        "if place.is_symlink() and", "if False and", ("-k", "link_is_followed", FOLDERS),
    ),
    Mutant(
        "a link makes the daemon overwrite any file", "cdc/state/jsonfile.py",
        "os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW |", "os.O_CREAT |", ("-k", "written_aside", FOLDERS),
    ),
    Mutant(
        "everybody can read the large values that capture remembers", "cdc/capture/toast.py",
        "os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))", "os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))", ("-k", "remembered_values", FOLDERS),
    ),
    Mutant(
        "any file in the place of a jar runs", "cdc/embedded/jars.py",
        "if _sha256(home / jar.path) != jar.sha256]", "if _sha256(home / jar.path) is None]", ("-k", "in_its_place", "tests/unit/embedded/test_jars.py"),
    ),
    Mutant(
        "machine code that somebody put into numba's cache runs", "cdc/kernels/cache.py",
        "    own_code(Path(folder), setting)\n", "    pass\n", ("-k", "locator", "tests/unit/test_kernelcache.py"),
    ),
    # Names and values that somebody else chooses
    Mutant(
        "anybody's message ends capture before its password is looked at", "cdc/capture/ddlmessages.py",
        "if not self.bears_password(content):", "if DdlMessage.from_json(content, self._publication) is None or not self.bears_password(content):",
        ("-k", "passed_over", MESSAGES),
    ),
    Mutant(
        "a message of a hundred thousand brackets ends capture", "cdc/capture/ddlmessages.py",
        "AttributeError, RecursionError):", "AttributeError):", ("-k", "bears_the_password", MESSAGES),
    ),
    Mutant(
        "an error that nobody foresaw ends capture again and again", "cdc/capture/endings.py",
        "        raise Unforeseen(error) from None\n", "        raise error\n",
        ("-k", "nobody_foresaw", "tests/integration/source/test_undecodable.py"),
    ),
    Mutant(
        "two crafted names of tables make the log unreadable", "cdc/log/embedded/names.py",
        "digest_size=16", "digest_size=4", ("tests/unit/log/test_names.py",),
    ),
    Mutant(
        "a table overwrites another's documents by its name", "sinks/search/names.py",
        " and not _HASHED.search(safe):", ":", ("tests/unit/sinks/test_search_names.py",),
    ),
    Mutant(
        "an index template mixes the documents of two tables", "sinks/search/names.py",
        "        if other.topic != schema.topic:\n", "        if False:\n", ("-k", "one_index", "tests/unit/sinks/test_search_names.py"),
    ),
    Mutant(
        "a created table stops the warehouse by its name", "sinks/warehouse/names.py",
        " and not _HASHED.search(name):", ":", ("-k", "looks_like", "tests/unit/sinks/test_warehouse.py"),
    ),
    Mutant(
        "a key column that is called key stops the whole cache", "sinks/cache/keytemplate.py",
        "    if used != [WHOLE_KEY]:\n", "    if used != [WHOLE_KEY] or WHOLE_KEY in key:\n", (KEYS,),
    ),
    Mutant(
        "a cache key of {key} and a column fails at the first row", "sinks/cache/keytemplate.py",
        "if WHOLE_KEY in used and len(used) > 1:", "if False:", ("-k", "beside_the_whole_key", KEYS),
    ),
    Mutant(
        "N and NULL share a cache key", "sinks/cache/keytemplate.py",
        "for _, literal in self.columns[:-1]})", "for _, literal in self.columns})", ("-k", "taken_for_null", KEYS),
    ),
    Mutant(
        "a TRUNCATE deletes other programs' keys in Redis", "sinks/cache/barriers.py",
        "            self._writing.delete(known.chain(topic), names, position)\n",
        "            self._server.ask(lambda client: client.delete(*client.keys(keys.prefix + \"*\")))\n",
        ("-k", "two_stores_on_one_server", "tests/integration/test_cache_keys.py"), jit=False,
    ),
    Mutant(
        "a table with a column _file cannot be read from the warehouse", "sinks/warehouse/columns.py",
        "{POSITION, EXACT, *_ICEBERGS_OWN}", "{POSITION, EXACT}", ("-k", "formats_own", "tests/unit/sinks/test_warehouse.py"),
    ),
    Mutant(
        "a table's name ends cdc log ls", "cdc/commands/output.py",
        "table.add_row(*map(line, row))", "table.add_row(*map(Text.from_markup, row))", ("-k", "name", "tests/unit/commands/test_printing.py"),
    ),
    Mutant(
        "a table's name moves the terminal's cursor", "cdc/terminal.py",
        "    if text.isprintable():\n", "    if text:\n", ("tests/unit/test_terminal.py",),
    ),
    Mutant(
        "an empty password swallows the next option of the DSN", "cdc/settings/interpolation.py",
        "if conninfo and _CONNINFO.match(value):", "if False:", ("tests/unit/test_interpolation.py",),
    ),
    Mutant(
        "app.* selects tables of the schema app.evil", "cdc/model/selection.py",
        "    if not splits:\n", "    if True:\n", ("tests/unit/test_selection.py",),
    ),
    # Column policies
    Mutant(
        "a detached partition shows what its parent kept back", "cdc/privacy/newcolumns.py",
        "if parent is not None and not self._shows(parent, column.name):", "if False:", (UNDECIDED,),
    ),
    Mutant(
        "a copy of a protected table shows what is protected", "cdc/privacy/newcolumns.py",
        "self._namesakes.get(column.name.casefold()) if self._begun else None", "None", (UNDECIDED,),
    ),
    Mutant(
        "a protected table that is made again shows a renamed column", "cdc/privacy/newcolumns.py",
        "if past is not None and (named or past.protects):", "if False:", ("-k", "made_again", UNDECIDED),
    ),
    # What stops, and what is said
    Mutant(
        "connections that say nothing keep everybody out of the port", "cdc/http/door.py",
        "longest = next(filter(concerns, self.idle), None)", "longest = None", ("-k", "whatever_stays_connected and idle", PEERS),
    ),
    Mutant(
        "a wait goes on when its client has gone", "cdc/http/waits.py",
        "if gone.is_set() or clock.monotonic() - began", "if clock.monotonic() - began", ("-k", "gone", "tests/unit/http/test_app.py"),
    ),
    Mutant(
        "a page is let in however many are open", "cdc/http/events.py",
        "if self.count >= MAX_READERS:", "if False:", ("-k", "counted_when", PEERS),
    ),
    Mutant(
        "an unforeseen error shows a row", "cdc/commands/logsetup.py",
        'if text else name\n', "if True else name\n", ("tests/unit/commands/test_logsetup.py",),
    ),
    Mutant(
        "one unforeseen error ends the page's reports", "cdc/http/events.py",
        "        except Exception as error:\n            kind", "        except MemoryError as error:\n            kind",
        ("-k", "goes_on_by_itself", "tests/unit/http/test_app.py"),
    ),
    Mutant(
        "another program's replication slot is taken over", "cdc/source/slot.py",
        "        refuse_unclaimed(facts, record)\n", "        pass\n",
        ("-k", "first_start", "tests/integration/source/test_foreign_slot.py"),
    ),
    Mutant(
        "a rebuild moves another program's replication slot", "cdc/source/slot.py",
        "        if not _is_ours(facts, record, followed):\n", "        if False:\n",
        ("-k", "made_by_somebody_else", "tests/integration/source/test_foreign_slot.py"),
    ),
    # Rows
    Mutant(
        "a Redis that is flushed while changes come stays without the rest", "sinks/cache/transactions.py",
        "if found in (FenceAnswer.LOST, FenceAnswer.GAP):", "if found is FenceAnswer.GAP:", ("-k", "flushed_while", "tests/integration/test_cache_fence.py"),
    ),
    Mutant(
        "a lost part of a store is not noticed while its other parts are written", "cdc/follow/follower.py",
        "now - self._looked_at < _LOOK_AT_THE_STORE_S", "True",
        ("-k", "steadily", "tests/unit/spark/test_marks.py"),
    ),
    Mutant(
        "updates of a table fail for a child by INHERITS that nobody selected", "cdc/source/publication.py",
        'sql.SQL("only {}").format(name) for', 'sql.SQL("{}").format(name) for',
        ("-k", "nobody_selected", "tests/integration/source/test_lost_identity.py"),
    ),
    Mutant(
        "updates fail for a generated column in the key", "cdc/source/capturable.py",
        'if table.identity != "n" and definition.left_out and', "if False and", ("tests/unit/source/test_capturable.py",),
    ),
    Mutant(
        "a store keeps rows that the restored log never had", "cdc/model/lineage.py",
        "    if mark.cut.position > until:\n", "    if False:\n", ("tests/unit/test_lineage.py",),
    ),
    Mutant(
        "nobody says that equal rows without a key are one in the stores", "cdc/model/facts.py",
        'return self.identity == "f" and not self.index', "return False", ("tests/unit/test_facts.py",),
    ),
    Mutant(
        "a table that is dropped while the catalog is asked about it ends capture", "cdc/source/drops.py",
        'return (error.diag.message_primary or "").startswith(_INTERNAL)', "return False", ("tests/integration/source/test_drops.py",),
    ),
    Mutant(
        "what is slow on a busy machine is taken for dead", "cdc/pace.py",
        "return min(SLOWEST, max(1.0, waiting / (os.cpu_count() or 1)))", "return 1.0", ("tests/unit/test_pace.py",),
    ),
    Mutant(
        "OpenSearch's reason for a refusal is not shown", "sinks/search/reasons.py",
        "if (found := pattern.search(text)) is not None:", "if (found := None) is not None:", ("tests/unit/sinks/test_search_reasons.py",),
    ),
    Mutant(
        "cdc audit does not name a data file that was deleted by hand", "sinks/warehouse/tables.py",
        "            place.iceberg.refuse_lacking(place.missing)\n", "            pass\n",
        ("tests/unit/sinks/test_warehouse_reading.py",),
    ),
    Mutant(
        "two services write to one store without a word", "cdc/model/lineage.py",
        "    if mark.log != lineage.log:\n", "    if False:\n", ("tests/unit/test_lineage.py",),
    ),
)  # fmt: skip
