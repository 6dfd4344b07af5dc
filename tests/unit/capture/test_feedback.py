"""What the server is told, and when."""

from __future__ import annotations

import struct

import pytest

from cdc.capture.feedback import Feedback, Quiet, Silence, standby_status
from cdc.capture.messages import POSTGRES_EPOCH_US


def test_the_status_says_the_durable_lsn_three_times() -> None:
    status = standby_status(0x16_B374D848, POSTGRES_EPOCH_US + 7)
    assert struct.unpack("!cQQQqB", status) == (b"r", *([0x16_B374D848] * 3), 7, 0)


def test_the_lsn_never_goes_back() -> None:
    feedback = Feedback(100)
    feedback.confirm(50)
    assert feedback.durable_lsn == 100


def test_news_are_told_soon_and_silence_is_bounded() -> None:
    feedback = Feedback(100, interval_s=1.0, min_interval_s=0.05)
    assert feedback.wait_s(10.0) == 0
    feedback.said(100, 10.0)
    assert feedback.wait_s(10.25) == 0.75
    feedback.confirm(200)
    assert feedback.wait_s(10.0) == pytest.approx(0.05)
    assert feedback.wait_s(10.25) == 0
    feedback.said(200, 10.25)
    feedback.ask()
    assert feedback.wait_s(10.25) == 0
    feedback.said(200, 10.25)
    assert feedback.wait_s(10.25) == 1.0


def test_an_inquiry_goes_out_once_and_at_once() -> None:
    feedback = Feedback(100)
    feedback.said(100, 10.0)
    feedback.inquire()
    assert feedback.wait_s(10.0) == 0
    assert standby_status(100, 0, inquires=feedback.inquires)[-1] == 1
    feedback.said(100, 10.0)
    assert standby_status(100, 0, inquires=feedback.inquires)[-1] == 0


def test_only_who_was_asked_and_did_not_answer_is_dead() -> None:
    silence = Silence(100.0)
    assert silence.step(129.9, 60.0) is Quiet.WAIT
    assert silence.step(130.0, 60.0) is Quiet.ASK
    assert silence.step(159.9, 60.0) is Quiet.WAIT
    assert silence.step(160.0, 60.0) is Quiet.DEAD
    # Stopped ourselves for an hour: the server is asked first.
    silence = Silence(100.0)
    assert silence.step(3700.0, 60.0) is Quiet.ASK
    assert silence.step(3729.0, 60.0) is Quiet.WAIT
