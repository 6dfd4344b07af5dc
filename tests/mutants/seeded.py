"""The planted bugs: where, what, and the quick tests that have to notice. Each is one that somebody could really write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands exactly once in ``file``. ``jit`` False: the file holds compiled code, or compiling would take most of the time, so the tests
    run interpreted."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    jit: bool = True


DECODER = "tests/unit/capture/test_decoder.py"
TOAST = "tests/unit/capture/test_toast.py"
VALUES = "tests/unit/capture/test_values.py"
CRASH = "tests/unit/log/test_crash.py::test_power_loss_at_every_operation[lost-0]"
WRITER = "tests/unit/log/test_writer.py"
FENCE = "tests/unit/snapshots/test_fence.py"
READING = "tests/unit/snapshots/test_worker.py"
TWIN = ("-k", "memory", "tests/contract/test_sinks.py")
COMPACTION = "tests/unit/log/compaction/test_merge.py"
RECOVER = "tests/unit/log/test_recover.py"
INBOX = ("tests/unit/inbox/test_verdicts.py",)
CALLED = ("tests/unit/views/test_called.py",)
BULK = ("tests/unit/views/test_bulk.py",)
FORMULA = ("tests/unit/sinks/test_formula.py",)

MUTANTS = (
    Mutant(
        "confirmed before the log's fsync", "cdc/ingest/loop.py",
        "        cut = self._writer.commit(Lsn(lsn), commit_ts_us)\n", "        self._wire.confirm(Lsn(lsn))\n        cut = self._writer.commit(Lsn(lsn), commit_ts_us)\n",
        ("tests/unit/test_ingest.py",),
    ),
    Mutant(
        "a transaction that ends at the durable LSN is taken twice", "cdc/capture/rows.py",
        "ends > self._durable_lsn, index.commit_lsn", "ends >= self._durable_lsn, index.commit_lsn", (DECODER,),
    ),
    Mutant(
        "unchanged TOAST values are not filled in", "cdc/capture/toast.py",
        "value = known.get(_label(table.columns[column]))", "value = b''", (TOAST,),
    ),
    Mutant(
        "a deleted row's wide values live on in the memory", "cdc/capture/toast.py",
        "                if not moved or not rows.partial[row + 1]:\n                    self._forget(table.oid, key)\n", "", (TOAST,),
    ),
    Mutant(
        "columns go by their names", "cdc/model/evolution.py",
        "numbered = old.origin == new.origin\n", "numbered = False\n", ("tests/unit/test_evolution.py",),
    ),
    Mutant("the fence admits every snapshot", "snapshots/fence.py", "return bool(snapshot.sees(self.before).all())", "return True", (FENCE,)),
    Mutant(
        "keys changed by invisible transactions stay in the chunk", "snapshots/fence.py",
        "keep = ~np.isin(numbers, hidden)", "keep = np.ones(len(numbers), np.bool_)", (FENCE,),
    ),
    Mutant(
        "a TRUNCATE that the snapshot did not see leaves the chunk alone", "snapshots/fence.py",
        "        if self._emptied:\n            return []\n", "", (FENCE,),
    ),
    Mutant(
        "an earlier process's transactions need not be visible", "snapshots/fence.py",
        "        return not len(self._suspects)\n", "        return True\n", (FENCE,),
    ),
    Mutant(
        "a chunk of another definition enters the stream", "snapshots/feed.py",
        "            if chunk.window.mixed:\n", "            if False:\n", ("tests/unit/snapshots/test_feed.py",),
    ),
    Mutant(
        "the task of a table that is locked is not read again", "snapshots/jobs.py",
        "                job.refused.append(task)\n", "", (READING,),
    ),
    Mutant(
        "a table that is not what its job was made of is read all the same", "snapshots/worker.py",
        "if (seen.facts, seen.files) != (job.look.facts, job.look.files):", "if False:", (READING,),
    ),
    Mutant(
        "a part's watermark is emitted before the part is ready", "snapshots/worker.py",
        "    feed.ready(chunk, batches)\n    crashpoint(\"snapshot.chunk.ready\")\n    yield Emit(chunk.content)\n",
        "    yield Emit(chunk.content)\n    feed.ready(chunk, batches)\n", (READING,),
    ),
    Mutant(
        "held rows outlive a later change of their key", "snapshots/holds.py",
        "keep &= last[held] < held_at", "pass", ("tests/unit/snapshots/test_holds.py",),
    ),
    Mutant("a key's update keeps the old key's row", "cdc/capture/tuples.py", "        if moved:\n", "        if False:\n", (DECODER,), jit=False),
    Mutant(
        "a value that was not sent is NULL", "cdc/capture/tuples.py",
        "            lengths[c, row] = np.int32(UNCHANGED)\n", "            lengths[c, row] = np.int32(NULL)\n", (DECODER, TOAST), jit=False,
    ),
    Mutant(
        "the old tuple's value is not taken for one that was not sent", "cdc/capture/tuples.py",
        "if lengths[c, count] == UNCHANGED and old_lengths[c, 0] >= 0:", "if False:", (DECODER, TOAST), jit=False,
    ),
    Mutant(
        "a delete of FULL identity carries what is not key", "cdc/capture/tuples.py",
        "                lengths[c, count] = old_lengths[c, 0] if key[c] else np.int32(NULL)\n            op[count] = _DELETED\n            placed[count] = m * 2\n            count += 1\n            continue\n",
        "                lengths[c, count] = old_lengths[c, 0]\n            op[count] = _DELETED\n            placed[count] = m * 2\n            count += 1\n            continue\n",
        (DECODER,), jit=False,
    ),
    Mutant("frames are not checked", "cdc/log/embedded/format.py", "    if crc32c(data.slice(at + FRAME_HEADER_BYTES, length), crc32c(head)) != crc:\n", "    if False:\n", ("tests/unit/log/test_format.py",)),
    Mutant(
        "a torn timeline is not cut", "cdc/log/embedded/recover.py",
        "        repairs.cut.append((path, timeline.length))\n", "        pass\n", (f"{RECOVER}::test_bytes_behind_the_last_entry_are_cut",),
    ),
    Mutant(
        "damage in the middle is cut as if it were the tail", "cdc/log/embedded/verdicts.py",
        "return TimelineVerdict.CORRUPT if found.group_follows else TimelineVerdict.CUT", "return TimelineVerdict.CUT",
        (f"{RECOVER}::test_the_timelines_decision_table_is_whole", f"{RECOVER}::test_a_reader_alone_meets_every_flip"),
    ),
    Mutant(
        "a last group without its changes is kept", "cdc/log/embedded/verdicts.py",
        "return found.vouched is False and not found.followed and not found.whole", "return False",
        (f"{RECOVER}::test_a_last_group_whose_changes_did_not_reach_the_disk_is_dropped",),
    ),
    Mutant(
        "a damaged group is dropped though it was confirmed", "cdc/log/embedded/recover.py",
        "    vouched = None if head is None else published is not None and published >= timeline.length\n", "    vouched = False\n",
        (f"{RECOVER}::test_damage_in_a_group_that_was_confirmed_is_not_taken_for_one_that_was_not",),
    ),
    Mutant("the timeline is not synced", "cdc/log/embedded/writer.py", "[*touched, self._published.timeline_fd]", "touched", (CRASH,)),
    Mutant(
        "the timeline's next file is not synced", "cdc/log/embedded/groupfiles.py",
        "            self._disk.write(fd, [data], 0)\n            self._disk.sync(fd)\n", "            self._disk.write(fd, [data], 0)\n", (CRASH,),
    ),
    Mutant("the name of the timeline's next file is not synced", "cdc/log/embedded/groupfiles.py", "        self._disk.sync_folder(path.parent)\n", "        pass\n", (CRASH,)),
    Mutant(
        "a cut of another producer takes the LSN back", "cdc/log/embedded/writer.py",
        "            commit_lsn, commit_ts_us = before.cut.commit_lsn, before.commit_ts_us\n", "            commit_lsn, commit_ts_us = Lsn(0), 0\n",
        ("-k", "producer and embedded", "tests/contract/test_log.py"),
    ),
    Mutant(
        "files that replaced segments are not held against the timeline", "cdc/log/embedded/sealedsegment.py",
        "return found if digest_of(found) == run.chain and", "return found if", ("tests/unit/log/test_upkeep.py",),
    ),
    Mutant(
        "the segments are not synced", "cdc/log/embedded/writer.py",
        "[*touched, self._published.timeline_fd]", "[self._published.timeline_fd]", (CRASH,),
    ),
    Mutant(
        "a new segment's name is not synced", "cdc/log/embedded/writer.py",
        "            self._syncs.together(self._disk.sync_folder, list(folders))\n", "            pass\n", (CRASH,),
    ),
    Mutant(
        "a failed sync is tried again", "cdc/log/embedded/writer.py",
        "            self._writer._broken = f\"the disk failed before ({code})\"", "            code = code", (WRITER,),
    ),
    Mutant(
        "a rollback leaves what was staged", "cdc/log/embedded/writer.py",
        "                    self._disk.truncate(self._files.of(topic, topic.durable.segment), topic.durable.end)\n", "                    pass\n", (WRITER,),
    ),
    Mutant(
        "a second writer is not noticed", "cdc/log/embedded/groupfiles.py",
        "return standing is not None and standing.epoch == self.head.epoch", "return True", (WRITER,),
    ),
    Mutant(
        "a commit takes positions with a gap", "cdc/log/embedded/writer.py", "if not staged.density.dense:", "if False:",
        ("-k", "dense and embedded", "tests/contract/test_log.py"),
    ),
    Mutant(
        "the segment goes before its Parquet files have their names", "cdc/log/embedded/sealer.py",
        "        put(disk, folder, encode(", "        disk.remove(segment.path)\n        disk.create(segment.path)\n        put(disk, folder, encode(",
        (CRASH,),
    ),
    Mutant(
        "a DELETE leaves the log before the row that it deletes", "cdc/compaction/survivors.py",
        "stay = lives | self._rows_stay | (", "stay = lives | (", (COMPACTION,),
    ),
    Mutant(
        "a DELETE leaves the log while somebody may still need it", "cdc/compaction/survivors.py",
        " | (positions >= self._floor)", "", (COMPACTION,),
    ),
    Mutant(
        "a reader goes on from before a DELETE that is gone", "cdc/log/embedded/reader.py",
        "(not 0 < after < retired.floor - 1 or knows)", "True", ("tests/unit/log/test_upkeep.py",),
    ),
    Mutant(
        "a store goes on from before a DELETE that is gone", "sinks/followedlog.py",
        "if at + 1 < topic.floor and any(", "if False and any(", ("-k", "memory", "tests/contract/test_marks.py"),
    ),
    Mutant(
        "a store that is filled is taken for one that missed a DELETE", "cdc/model/lineage.py",
        "        return (found[0] << _HISTORY_BITS) + int(raised or 0) if found else 0\n", "        return found[0] << _HISTORY_BITS if found else 0\n",
        ("-k", "memory", "tests/contract/test_marks.py"),
    ),
    Mutant(
        "stores do not hold compaction back", "cdc/compaction/bounds.py",
        "end_within(ranges, min([settled.deletes, *pins]))", "end_within(ranges, settled.deletes)", ("tests/unit/log/compaction/test_worker.py",),
    ),
    Mutant(
        "what was replaced goes before the head that says so is durable", "cdc/log/embedded/upkeep.py",
        "            self._disk.sync(fd)\n", "            pass\n", ("-k", "durable", COMPACTION),
    ),
    Mutant(
        "compaction overtakes a question about the past unseen", "cdc/replay/state.py",
        "        refuse_compacted(log, topic, upto)  # it", "        pass  # it", ("-k", "overtakes", COMPACTION),
    ),
    Mutant(
        "compaction removes files of a copy that was put in the log's place", "cdc/log/embedded/upkeep.py",
        "        self._check_place()\n        crashpoint", "        crashpoint", ("-k", "copy", COMPACTION),
    ),
    Mutant(
        "a store that missed a dropped DELETE is taken for whole", "cdc/log/embedded/reader.py",
        "least = dropped if 0 < dropped <= upto else 0", "least = 0", ("-k", "lacks_something", COMPACTION),
    ),
    Mutant("the confirmed LSN goes back", "cdc/capture/feedback.py", "max(self.durable_lsn, lsn)", "lsn", ("tests/unit/capture/test_feedback.py",)),
    Mutant("a store forgets where a TRUNCATE was", "sinks/memoryunits.py", "        self.floor = max(self.floor, barrier.position)\n", "", TWIN),
    Mutant(
        "what was written again stands beside what it replaces", "sinks/barrier.py",
        "    if barrier.rows is not RowsBefore.KEPT:\n", "    if barrier.rows is RowsBefore.GONE:\n", ("tests/unit/sinks/test_barrier.py",),
    ),
    Mutant(
        "another table's rows stay", "sinks/barrier.py",
        "return change.empties or (held is not None and not same_origin(held, change.schema))", "return change.empties", ("tests/unit/sinks/test_barrier.py",),
    ),
    Mutant("an equal position wins", "sinks/memoryunits.py", "if key in self.rows and self.rows[key][0] >= position:", "if key in self.rows and self.rows[key][0] > position:", TWIN),
    Mutant("what a commit covers is written again", "sinks/memoryunits.py", "if position <= self.mark.cut.position or position <= self.floor:", "if position <= self.floor:", TWIN),
    Mutant("applied is recorded before the rows are written", "sinks/memory.py",
        "        for topic in list(self._staged):\n", "        ledger.mark = mark\n        for topic in list(self._staged):\n",
        ("-k", "middle", "tests/unit/sinks/test_memory.py")),
    Mutant(
        "an aborted subtransaction's rows are committed", "cdc/capture/spool.py",
        "        self._aborted.append(subxid)\n", "", ("-k", "abort or subtransaction or savepoint", "tests/unit/capture/test_spool.py"),
    ),
    Mutant("a stopped part is started again", "cdc/daemon/supervisor.py", "if exit_code == Stopped.exit_code and held:", "if False:", ("-k", "step or stopped", "tests/unit/test_supervise.py")),
    Mutant("resume clears every stop state", "cdc/state/stops.py", "if wanted in map(str.casefold, (one.state, one.name, one.name.partition(\"@\")[0]))", "if True", ("tests/unit/test_stops.py",)),
    Mutant("a group of an older opening is taken", "cdc/inbox/verdicts.py", "    if step.epoch < mark.epoch:\n        return InboxVerdict.FENCED\n", "", INBOX),
    Mutant("a group is taken wherever it begins", "cdc/inbox/verdicts.py", "if step.begin == mark.to else InboxVerdict.GAP", "if True else InboxVerdict.GAP", INBOX),
    Mutant("a group's file goes before its cut is durable", "cdc/inbox/writerside.py",
        "            self._writer.commit()\n        except", "            self._folder.remove(group.name)\n            self._writer.commit()\n        except",
        ("-k", "any_step", "tests/unit/inbox/test_writerside.py")),
    Mutant("a mark that was rolled back is forgotten", "cdc/inbox/writerside.py",
        "                    self._writer.mark(name.producer, mark.encode())\n                    if now", "                    if now", ("tests/unit/inbox/test_writerside.py",)),
    Mutant("a group's bytes are not compared with its name", "cdc/inbox/groupfile.py", "if digest_of(raw) != name.digest:", "if False:", ("tests/unit/inbox/test_lies.py",)),
    Mutant("compressed buffers are let in", "cdc/inbox/groupfile.py", ' or _compressed(message.metadata.to_pybytes())', "", ("tests/unit/inbox/test_lies.py",)),
    Mutant("a row that leaves its condition stays in the store", "sinks/givenrows.py", "(found.failures or found.left_out.any())", "found.failures", FORMULA),
    Mutant("what a condition leaves out can fail", "sinks/formula.py", "            if live[row] and not left_out[row]:\n", "            if live[row]:\n", FORMULA),
    Mutant("a column that only has the name of a used one stands for it", "sinks/formula.py",
        "numbered = self.number and schema.origin == origin", "numbered = False", FORMULA),
    Mutant("what a store says of a transform is imported", "sinks/transform.py", "functions.loaded_before(self.reference)", "functions.load(self.reference, TRANSFORM)",
        ("tests/unit/sinks/test_transform.py",)),
    Mutant("a value that a transform cannot be shown stays as it is", "sinks/transform.py", "for row in live.tolist() if hidden else ():", "for row in ():",
        ("tests/unit/sinks/test_transform.py",)),
    Mutant("keys of a row's own JSON stand in a reason", "sinks/search/bulk.py", 'return next((way for way in ways if way in known), "")', "return path",
        ("tests/unit/sinks/test_bulk.py",)),
    Mutant("an append that failed midway is not forgotten", "cdc/views/state.py",
        "            self._appended = True  # in part, where it fails\n            self._bulk.append(after)\n",
        "            self._bulk.append(after)\n            self._appended = True\n", BULK),
    Mutant("a hash stands for a row's values", "cdc/views/hashes.py", "(which, places) if same.all() else (which[same], places[same])", "which, places", BULK),
    Mutant("rows that were replaced are found", "cdc/views/bulk.py", "there = ~self._buried[places]", "there = np.ones(len(places), np.bool_)", BULK),
    Mutant("rows that were replaced come back with a restart", "cdc/views/state.py", "        made.bury(self._state.found(", "        (self._state.found(", BULK),
    Mutant("a rewritten generation loses rows at the places of the one before", "cdc/views/state.py",
        '            self._state.executed(f"DELETE FROM {self._dead}")\n', "", BULK),
    Mutant("files of a view's rows count before they are durable", "cdc/views/state.py", "            self._bulk.sync()\n", "", BULK),
    Mutant("a bit that turned in a view's files is another row", "cdc/views/state.py", "            self._bulk.check()\n", "            pass\n", BULK),
    Mutant("a view's index loses what is merged at once", "cdc/views/hashes.py", "        starts = ends\n", "        starts = [end + 1 for end in ends]\n", BULK),
    Mutant("a group that a row has left is not given to the function again", "cdc/views/calledgroups.py",
        "return touched(change, self._call.by)", "return distinct(change.after.select(self._call.by), self._call.by)", CALLED),
    Mutant("groups of the first pieces are forgotten", "cdc/views/calledgroups.py", "        if self._waiting is not None:\n", "        if False:\n", CALLED),
    Mutant("two groups are given to the function as one", "cdc/views/groupcall.py", "differs[1:] |= places[1:] != places[:-1]", "differs[1:] |= places[1:] < places[:-1]", CALLED),
    Mutant("two rows of a function have one key", "cdc/views/groupcall.py", "if distinct(made, self.key).num_rows < made.num_rows:", "if False:", CALLED),
    Mutant("NULL joins NULL where rows are many", "cdc/views/rows.py", "            there &= column.is_valid().to_numpy()\n", "            pass\n", BULK),
)  # fmt: skip
