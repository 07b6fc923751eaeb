from __future__ import annotations

import asyncio
import socket

import pytest

from keepwarm.backend.rank_link import (
    AsyncLink,
    BlockingLink,
    LinkClosed,
    encode_message,
    from_rank_decoder,
    to_rank_decoder,
)
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Abort, FromRank, Init, Ready, Shutdown, ToRank
from tests.backend.ports import PATIENCE_S, turn

READY = Ready(
    num_blocks=1,
    block_size=16,
    bytes_per_block=1,
    max_num_seqs=1,
    max_model_len=16,
    vocab_size=2,
    description="",
)


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 7, 1000])
def test_messages_survive_being_cut_anywhere(num_bytes: int) -> None:
    messages: list[ToRank] = [
        Init(hash_key=b"k" * 32, settings=b"{}"),
        turn("a"),
        Abort(request_id=RequestId("a")),
        Shutdown(),
    ]
    stream = b"".join(encode_message(message) for message in messages)
    decoder = to_rank_decoder()
    read = [
        message
        for start in range(0, len(stream), num_bytes)
        for message in decoder.feed(stream[start : start + num_bytes])
    ]
    assert read == messages


def test_a_length_that_cannot_be_is_our_own_mistake() -> None:
    with pytest.raises(InvariantBroken, match="message of 4294967295 bytes"):
        list(from_rank_decoder().feed(b"\xff\xff\xff\xff"))


def test_the_rank_s_end_takes_everything_that_is_there_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = BlockingLink(theirs)
        assert link.receive(0.0) == []
        ours.sendall(encode_message(turn("a")) + encode_message(Shutdown()))
        assert link.receive(PATIENCE_S) == [turn("a"), Shutdown()]


def test_the_rank_s_end_notices_that_the_front_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = BlockingLink(theirs)
        ours.close()
        with pytest.raises(LinkClosed):
            link.receive(PATIENCE_S)
        with pytest.raises(LinkClosed):
            link.send(READY)


async def test_the_front_s_end_hears_messages_then_the_end() -> None:
    ours, theirs = socket.socketpair()
    heard: list[FromRank] = []
    link = await AsyncLink.over(ours, heard.append)
    with theirs:
        theirs.sendall(encode_message(READY))
    async with asyncio.timeout(PATIENCE_S):
        assert await link.closed is None
    assert heard == [READY]
    link.send(Shutdown())  # to nobody: dropped


async def test_a_broken_stream_closes_the_link_with_the_reason() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = await AsyncLink.over(ours, lambda message: None)
        theirs.sendall(b"\x01\x00\x00\x00\xc1")
        async with asyncio.timeout(PATIENCE_S):
            assert "MessagePack" in str(await link.closed)
