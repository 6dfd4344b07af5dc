"""The decision tables of recovery, pure: what is to be done about each file that a writer finds when it opens a log.

The rule: a torn tail is cut, leftovers of what was never committed are removed, everything else that is not as the timeline says is
LogCorrupt, and nothing is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class TimelineVerdict(Enum):
    CLEAN = auto()
    CUT = auto()
    """The last group's entry is torn: nobody has ever heard of it. Cut it."""
    CORRUPT = auto()


@dataclass(frozen=True, slots=True)
class TimelineEvidence:
    length: int
    whole: int
    """Bytes up to the end of the last whole group."""
    published: int | None
    """The length that the head says is durable; None when there is no whole head."""
    group_follows: bool
    """Beyond the damage stands another group's whole record."""


def judge_timeline(found: TimelineEvidence) -> TimelineVerdict:
    """
    =====================  ==================  =============  =======
    published              bytes behind whole  group follows  verdict
    =====================  ==================  =============  =======
    more than is whole     any                 any            CORRUPT
    no more, or unknown    none                (none)         CLEAN
    no more, or unknown    some                yes            CORRUPT
    no more, or unknown    some                no             CUT
    =====================  ==================  =============  =======
    """
    if found.published is not None and found.published > found.whole:
        return TimelineVerdict.CORRUPT
    if found.length == found.whole:
        return TimelineVerdict.CLEAN
    return TimelineVerdict.CORRUPT if found.group_follows else TimelineVerdict.CUT


@dataclass(frozen=True, slots=True)
class LastGroupEvidence:
    """The timeline's last whole group. Its entry and its changes are synced at the same time, and the head goes on when both are durable."""

    vouched: bool | None
    """The head says that it is durable; None when there is no whole head."""
    followed: bool
    """Bytes stand behind its entry: the next group's, which is entered when this one is durable."""
    whole: bool
    """The segments hold all of its changes."""


def is_torn(found: LastGroupEvidence) -> bool:
    """Whether the power went while it was being written, so that it is to be cut off: nobody has ever heard of it. Otherwise whatever is not as it
    says is damage, and judged file by file.

    ==============  ======  =====  ====
    head            behind  whole  torn
    ==============  ======  =====  ====
    none            any     any    no
    vouches for it  any     any    no
    ends before it  bytes   any    no
    ends before it  none    yes    no
    ends before it  none    no     yes
    ==============  ======  =====  ====
    """
    return found.vouched is False and not found.followed and not found.whole


@dataclass(frozen=True, slots=True)
class EarlierFileEvidence:
    """One of the timeline's files before the newest. It was synced before the next one got its name, so there is nothing to repair in it."""

    length: int | None
    """None when there is no file."""
    recorded: int
    """The length that the newest file's checkpoint says."""
    published: int | None
    """The length that the head says is durable, where the head still names this file; else None."""
    ends_as_published: bool
    """The checkpoint and the head give the same checksum of its end."""


def is_whole(found: EarlierFileEvidence) -> bool:
    """Whether the file is what it should be; a log of which one is not is CORRUPT.

    ===========  ==============  =================  =====
    length       head's length   ends as published  whole
    ===========  ==============  =================  =====
    as recorded  none, or less   (any)              yes
    as recorded  as recorded     yes                yes
    as recorded  as recorded     no                 no
    as recorded  more            (any)              no
    otherwise    (any)           (any)              no
    ===========  ==============  =================  =====
    """
    if found.length != found.recorded:
        return False
    if found.published is None or found.published < found.recorded:
        return True
    return found.published == found.recorded and found.ends_as_published


class SegmentVerdict(Enum):
    KEEP = auto()
    CUT = auto()
    """Bytes that were staged when the writer died. Cut them."""
    REMOVE = auto()
    """A segment that was begun and never committed. Remove it."""
    UNSEAL = auto()
    """Sealing died halfway: the segment is whole, so its Parquet files go and are made again."""
    CORRUPT = auto()


@dataclass(frozen=True, slots=True)
class SegmentEvidence:
    committed: int | None
    """How many bytes the timeline says it has; None when the timeline does not know it."""
    newest: bool
    """It is the topic's last in the timeline, so it may have been appended to."""
    length: int | None
    """The file's length; None when there is no file."""
    parquet: bool
    """Parquet files lie in its range."""
    parquet_whole: bool
    """… and hold all of it."""
    beyond_head: bool
    """Its first position lies behind the last durable cut."""
    dropped: bool = False
    """The timeline says that its positions are retired, or that other files have replaced them."""


def judge_segment(found: SegmentEvidence) -> SegmentVerdict:
    """
    =========  ======================  ============  =======
    timeline   segment's file          Parquet       verdict
    =========  ======================  ============  =======
    knows it   as long as committed    none          KEEP
    knows it   as long as committed    some          UNSEAL
    knows it   longer, and the newest  none          CUT
    knows it   longer, otherwise       any           CORRUPT
    knows it   shorter                 any           CORRUPT
    knows it   none                    whole         KEEP
    knows it   none                    none, partly  CORRUPT
    not        its positions dropped   any           REMOVE
    not        begins behind the head  none          REMOVE
    not        otherwise               any           CORRUPT
    =========  ======================  ============  =======
    """
    if found.committed is None:
        if found.dropped:
            return SegmentVerdict.REMOVE
        return SegmentVerdict.REMOVE if found.beyond_head and not found.parquet else SegmentVerdict.CORRUPT
    if found.length is None:
        return SegmentVerdict.KEEP if found.parquet_whole else SegmentVerdict.CORRUPT
    if found.length == found.committed:
        return SegmentVerdict.UNSEAL if found.parquet else SegmentVerdict.KEEP
    if found.length > found.committed and found.newest and not found.parquet:
        return SegmentVerdict.CUT
    return SegmentVerdict.CORRUPT


class SealedVerdict(Enum):
    KEEP = auto()
    REMOVE = auto()
    """It was written and never recorded, or its content was dropped since. Remove it."""
    CORRUPT = auto()


@dataclass(frozen=True, slots=True)
class SealedEvidence:
    """A sealed file, by its name."""

    generation: int
    newest: int
    """The topic's newest generation in the timeline; 0 when nothing was ever replaced."""
    held: bool
    """Its first position is one of a segment's (generation 0), or of what its own generation has replaced."""
    dropped: bool
    """The timeline says that its positions are retired, or that a later generation has replaced them."""


def judge_sealed(found: SealedEvidence) -> SealedVerdict:
    """
    =================  ==================  ==================  =======
    generation         holds its position  position dropped    verdict
    =================  ==================  ==================  =======
    beyond the newest  (no)                any                 REMOVE
    known              yes                 (no)                KEEP
    known              no                  yes                 REMOVE
    known              no                  no                  CORRUPT
    =================  ==================  ==================  =======

    Removing what is beyond the newest loses nothing: whether the files that are held hold everything is judged before anything is changed.
    """
    if found.generation > found.newest:
        return SealedVerdict.REMOVE
    if found.held:
        return SealedVerdict.KEEP
    return SealedVerdict.REMOVE if found.dropped else SealedVerdict.CORRUPT
