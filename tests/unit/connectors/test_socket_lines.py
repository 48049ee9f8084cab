import socket
import threading
from collections.abc import Callable

import pytest

from penstock import connectors
from penstock.connectors.base import SourceContext, SplitReader
from penstock.model.errors import UserError

MakeContext = Callable[..., SourceContext]
DEADLINE_SECONDS = 10


def reader_of(port: int, context: SourceContext, wait: str = "30s") -> SplitReader:
    source = connectors.make_source(connectors.socket_lines("127.0.0.1", port, wait=wait).as_source().connector)
    return source.open(source.splits()[0], None, context)


def read_to_end(reader: SplitReader, max_rows: int, context: SourceContext) -> list[str]:
    lines: list[str] = []
    give_up = context.clock.monotonic() + DEADLINE_SECONDS
    ended = False
    while not ended:
        assert context.clock.monotonic() < give_up
        result = reader.read(max_rows)
        lines += result.frame["line"].to_list() if result.frame is not None else []
        assert result.frame is None or result.frame.height <= max_rows
        ended = result.ended
    return lines


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("max_rows", [1, 3, 1000])
def test_lines_are_read_until_the_server_closes(source_context: MakeContext, max_rows: int) -> None:
    context = source_context()
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = reader_of(server.getsockname()[1], context)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for part in (b"to be\r\nor n", b"ot to", b" be\n\n", "größe\nno newline".encode()):
                    connection.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        lines = read_to_end(reader, max_rows, context)
        thread.join()
    assert lines == ["to be", "or not to be", "", "größe", "no newline"]
    assert reader.position() == {"lines": 5}


def test_the_reader_waits_for_a_server_that_comes_later(source_context: MakeContext) -> None:
    context, port = source_context(), free_port()
    reader = reader_of(port, context)
    waiting = reader.read(10)
    assert waiting.frame is None
    assert not waiting.ended
    assert waiting.wait_us > 0
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(b"hello\n")
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert read_to_end(reader, 10, context) == ["hello"]
        thread.join()


def test_a_server_that_never_comes_is_an_error_that_says_what_to_start(
    source_context: MakeContext, clock: object
) -> None:
    port = free_port()
    reader = reader_of(port, source_context(clock=clock), wait="5s")
    assert reader.read(10).wait_us == 50_000
    clock.seconds += 6  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=rf"C009 job/orders\[0\]: nothing answers at 127.0.0.1:{port} after 5 s"):
        reader.read(10)
