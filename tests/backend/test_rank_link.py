from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import msgspec
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
from keepwarm.core.rank_messages import Abort, FromRank, Init, Ready, Shutdown, Submit, ToRank
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


def long_turn(name: str, num_tokens: int) -> Submit:
    return msgspec.structs.replace(turn(name), tokens=bytes(4 * num_tokens), block_hashes=bytes(num_tokens))


def test_long_and_short_messages_come_through_one_buffer_whole() -> None:
    messages: list[ToRank] = [
        turn("a"),
        long_turn("b", 200_000),
        Abort(request_id=RequestId("a")),
        long_turn("c", 210_000),
        long_turn("d", 3),
        long_turn("e", 5_000_000),
        turn("f"),
    ]
    stream = memoryview(b"".join(encode_message(message) for message in messages))
    decoder = to_rank_decoder()
    read: list[ToRank] = []
    while stream:
        room = decoder.room()
        num_bytes = min(len(room), len(stream), 300_001)
        room[:num_bytes] = stream[:num_bytes]
        stream = stream[num_bytes:]
        read += decoder.received(num_bytes)
    assert read == messages
    assert len(decoder.room()) < 1 << 20  # the buffer of 20 MB is not kept


def test_the_next_turn_of_a_long_conversation_finds_a_buffer_that_holds_it() -> None:
    decoder = to_rank_decoder()
    list(decoder.feed(encode_message(long_turn("a", 450_000))))
    buffer = decoder.room().obj
    for length in (450_100, 500_000):
        list(decoder.feed(encode_message(long_turn("b", length))))
        assert decoder.room().obj is buffer


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


def test_the_rank_s_end_puts_a_long_prompt_together_from_many_reads() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as sender:
        link = BlockingLink(theirs)
        sending = sender.submit(ours.sendall, encode_message(long_turn("a", 1_000_000)))
        messages: list[ToRank] = []
        while not messages:
            messages = link.receive(PATIENCE_S)
        assert messages == [long_turn("a", 1_000_000)]
        sending.result(PATIENCE_S)


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
