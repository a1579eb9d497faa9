"""Runs the Python of each frame inside a sandbox, for its tests; the answer is `str(answer)`, or what was raised."""

import os


def read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(3, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


names = {}
while True:
    source = read(int.from_bytes(read(4), "big")).decode()
    names["answer"] = None
    try:
        exec(source, names)
        answer = str(names["answer"])
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    data = answer.encode()
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(4, data) :]
