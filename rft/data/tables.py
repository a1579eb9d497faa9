"""Rows of Parquet and Arrow files, in pieces, with the place of what cannot be read."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 4096  # rows in memory at once


def parquet_rows(path: Path, columns: Callable[[list[str]], list[str]] = list) -> Iterator[dict]:
    """Rows of a Parquet file.

    Args:
        columns: takes the names of the file's columns and returns those to read, or raises ValueError.

    Raises:
        ValueError: the file is cut or no Parquet, or a text is not UTF-8, with row and column.
    """
    return _rows(path, _parquet_batches(path, columns))


def arrow_rows(path: Path, columns: Callable[[list[str]], list[str]] = list) -> Iterator[dict]:
    """The same of an Arrow file, as `datasets` writes it (a stream) or not."""
    return _rows(path, _arrow_batches(path, columns))


def _rows(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[dict]:
    before = 0
    try:
        for batch in batches:
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError:
                raise ValueError(_not_text(path, batch, before)) from None
            yield from rows
            before += len(rows)
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"{path}: cannot be read ({first}); the file may be cut: remove it and fetch it again"
        ) from None


def _not_text(path: Path, batch: pa.RecordBatch, before: int) -> str:
    """Row and column of the first string that is not UTF-8, which neither Parquet nor Arrow checks."""
    for row in range(batch.num_rows):
        for column in batch.schema.names:
            try:
                batch.column(column)[row].as_py()
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                return (
                    f"{path}, row {before + row + 1}: column {column!r} has byte 0x{byte:02x} at {error.start + 1}, "
                    "wanted UTF-8; convert the text or remove the row"
                )
    raise AssertionError("every value is UTF-8")


def _parquet_batches(path: Path, columns: Callable[[list[str]], list[str]]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        names = columns(file.schema_arrow.names)
        yield from file.iter_batches(batch_size=BATCH, columns=names, use_threads=False)


def _arrow_batches(path: Path, columns: Callable[[list[str]], list[str]]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as stream:
        try:
            reader = pa.ipc.open_stream(stream)  # what `datasets` writes
            batches = iter(reader)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(stream)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        names = columns(reader.schema.names)
        for batch in batches:
            batch = batch.select(names)
            yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))
