"""The rank process: `python -m keepwarm.backend.rank_main --fd N`.

Its main thread is the one engine thread. It lives exactly as long as its front: end of file on
the socket, or the front's death, ends it. torch is imported here and nowhere else in `backend`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from keepwarm.backend.rank_builder import build_rank
from keepwarm.backend.rank_engine import RETRY_S, RankEngine
from keepwarm.backend.rank_link import BlockingLink, LinkClosed
from keepwarm.backend.settings import decode_settings
from keepwarm.core.errors import SetupError, to_wire
from keepwarm.core.rank_messages import Abort, Cut, Init, Ready, Shutdown, StartFailed, Submit

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
_INIT_LIMIT_S = 30.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 ended on request, 1 the engine failed, 2 it could not be loaded."""
    parser = argparse.ArgumentParser(prog="keepwarm.backend.rank_main")
    parser.add_argument("--fd", type=int, required=True, help="the inherited end of the socket to the front")
    fd: int = parser.parse_args(arguments).fd
    _die_with_the_front()
    _start_logging(rank=None)
    link = BlockingLink(socket.socket(fileno=fd))
    try:
        return _load_and_serve(link)
    except LinkClosed:
        logger.info("the front is gone: ending")
        return 0


def _start_logging(rank: int | None) -> None:
    """None: which one it is has not been said yet."""
    prefix = "rank" if rank is None else f"rank {rank}"
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s {prefix} %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _die_with_the_front() -> None:
    """A step or a load may take minutes without looking at the socket, so the kernel watches too."""
    front_pid = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach the whole group; the front ends us
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != front_pid:  # it died before the kernel knew
        sys.exit(0)


def _load_and_serve(link: BlockingLink) -> int:
    match link.receive(_INIT_LIMIT_S):
        case [Init() as init]:
            pass
        case other:
            logger.error("expected the first message within %s s, got %d others", _INIT_LIMIT_S, len(other))
            return 2
    _start_logging(init.rank)
    try:
        engine, ready = build_rank(decode_settings(init.settings), hash_key=init.hash_key, rank=init.rank)
    except SetupError as error:
        link.send(StartFailed(error=to_wire(error)))
        return 2
    except Exception as error:
        logger.exception("the engine could not be loaded")
        setup_error = SetupError(f"the engine could not be loaded: {type(error).__name__}: {error}")
        link.send(StartFailed(error=to_wire(setup_error)))
        return 2
    return serve(engine, ready, link)


def serve(engine: RankEngine, ready: Ready, link: BlockingLink, *, heartbeat_s: float = HEARTBEAT_S) -> int:
    """Run until the front says `Shutdown` (0), goes away (`LinkClosed`) or the engine fails (1)."""
    gc.freeze()  # what was loaded lives as long as we do: no collection need look at it again
    link.send(ready)
    try:
        _run(engine, link, heartbeat_s)
    except LinkClosed:
        raise
    except Exception as error:
        logger.exception("the engine failed")
        link.send(engine.fail_all(error))
        return 1
    link.send(engine.end_all())
    engine.finish_copies()
    engine.close()
    return 0


def _run(engine: RankEngine, link: BlockingLink, heartbeat_s: float) -> None:
    busy = False
    unchecked = False
    while True:
        idle_s = RETRY_S if engine.has_work else heartbeat_s
        messages = link.receive(0.0 if busy else idle_s)
        if not busy and not messages and unchecked:  # a quiet second: nobody waits for the check
            engine.check_when_idle()
            unchecked = False
        for message in messages:
            match message:
                case Submit() | Abort() | Cut():
                    engine.handle(message)
                case Shutdown():
                    return
                case Init():
                    logger.error("a second first message is ignored")
        busy = engine.step(link.send)
        unchecked = unchecked or busy
        link.send(engine.report())


if __name__ == "__main__":
    sys.exit(main())
