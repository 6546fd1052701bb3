"""Local files, opened and decompressed: all that they hold, or an error that names the file."""

import bz2
import gzip
import importlib.util
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

DAMAGED = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)
ZST_WINDOW = 1 << 31  # bytes; the largest that `zstd --long` writes
BLOCK, MOST = 1 << 13, 1 << 20  # compressed bytes that are read at once, and bytes that a decoder then gives at most


class Decoder(Protocol):
    """Decompresses one stream of a file; `unused_data` are the bytes after its end."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class ZstStream:
    """A frame of a .zst file as a Decoder, which cannot hold output back."""

    needs_input = True

    def __init__(self) -> None:
        import zstandard

        self.error = zstandard.ZstdError
        self.frame = zstandard.ZstdDecompressor(max_window_size=ZST_WINDOW).decompressobj()

    @property
    def eof(self) -> bool:
        return self.frame.eof

    @property
    def unused_data(self) -> bytes:
        return self.frame.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            return self.frame.decompress(data)
        except self.error as error:
            raise OSError("Invalid data stream") from error


class Streams(io.RawIOBase):
    """The content of a compressed file of one or more streams.

    Python's readers of .xz and .bz2 end silently at a second stream that is damaged, and those of .zst where a file is
    cut off; this one raises EOFError, LZMAError or OSError.
    """

    def __init__(self, file: IO[bytes], new_decoder: Callable[[], Decoder]) -> None:
        self.file, self.new_decoder = file, new_decoder
        self.decoder: Decoder | None = None  # None between two streams
        self.encoded, self.decoded = b"", memoryview(b"")  # what is not used yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self.decoded:
            holds_output = self.decoder is not None and not self.decoder.needs_input
            block = b"" if holds_output else self.encoded or self.file.read(BLOCK)
            if not block and not holds_output:
                if self.decoder is not None:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
                return 0
            self.decode(block)
        count = min(len(buffer), len(self.decoded))
        buffer[:count], self.decoded = self.decoded[:count], self.decoded[count:]
        return count

    def decode(self, block: bytes) -> None:
        """Decode a part of the file up to the end of its stream; the rest is `encoded`."""
        if self.decoder is None and not (block := block.lstrip(b"\0")):  # .xz may have zeros between two streams
            self.encoded = b""
            return
        decoder = self.decoder or self.new_decoder()
        self.decoded = memoryview(decoder.decompress(block, MOST))
        self.encoded, self.decoder = decoder.unused_data, None if decoder.eof else decoder

    def close(self) -> None:
        self.file.close()
        super().close()


def decoder_of(ending: str) -> Callable[[], Decoder] | None:
    """What makes decoders for files of an ending whose other readers may lose data; None for others."""
    if ending == ".zst" and importlib.util.find_spec("zstandard") is not None:
        return ZstStream
    return {".xz": lzma.LZMADecompressor, ".bz2": bz2.BZ2Decompressor}.get(ending)


def open_file(file: str, mode: str, **options: Any) -> AbstractContextManager[IO[Any]]:
    """Open a local file, decompressed by its ending."""
    new_decoder = decoder_of(Path(file).suffix.lower())
    if new_decoder is None:
        from fsspec.implementations.local import LocalFileSystem  # fsspec.open takes :: in a name for a chain of places

        return LocalFileSystem().open(file, mode, compression="infer", **options)
    compressed = Path(file).open("rb")  # noqa: SIM115 - closed with the stream
    stream = io.BufferedReader(Streams(compressed, new_decoder))
    return stream if "b" in mode else io.TextIOWrapper(stream, **options)


@contextmanager
def file_named(name: str, *damaged: type[Exception]) -> Iterator[None]:
    """Reading in this context raises ValueError, which names the file, where it is damaged or not UTF-8.

    `damaged` are the errors by which a reader of this kind of file also says so.
    """
    kinds: tuple[type[Exception], ...] = (UnicodeDecodeError, OSError, *DAMAGED, *damaged)
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of the content, as that of bz2
            raise
        raise ValueError(f"{name}: {error}") from None
