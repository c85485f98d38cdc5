"""Run by test_process: reads pictures in children made by METHOD, before or after the parent read some itself.

usage: forks.py METHOD before|after|busy CHILDREN URI...
"""

import hashlib
import multiprocessing
import sys
import threading

import framecache as fc


def read(client: fc.Client, uris: list[str]) -> str:
    batch = client.images(uris, fc.Image(short=64, crop=64))
    raw = client.read(uris[0])
    return hashlib.sha256(bytes(batch.data) + bytes(raw)).hexdigest()


def child(client: fc.Client, uris: list[str], answer) -> None:
    try:
        answer.put((read(client, uris), read(fc.Client("env"), uris)))
    except BaseException as error:
        answer.put(error)


def main(method: str, when: str, children: str, *uris: str) -> None:
    context = multiprocessing.get_context(method)
    client = fc.Client("env")
    want = None if when == "before" else read(client, list(uris))
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            read(client, list(uris))

    threads = [threading.Thread(target=busy) for _ in range(3 if when == "busy" else 0)]
    for thread in threads:
        thread.start()
    for _ in range(int(children)):
        answer = context.SimpleQueue()
        process = context.Process(target=child, args=(client, list(uris), answer))
        process.start()
        got = answer.get()
        process.join()
        assert process.exitcode == 0, process.exitcode
        want = want or got[0]
        assert got == (want, want), (got, want)
    stop.set()
    for thread in threads:
        thread.join()
    assert read(client, list(uris)) == want  # the parent's connections are untouched
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
