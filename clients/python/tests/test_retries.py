"""Repetitions and deadlines, against a server of the test's own."""

import asyncio
import http.server
import json
import socket
import threading
import unittest
import unittest.mock

import grebe


class Script(http.server.BaseHTTPRequestHandler):
    """Answers requests in turn, by server.answers: (status, headers, body), or None to break the connection."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, body, dict(self.headers)))
        reply = self.server.answers.pop(0) if self.server.answers else error(418, "too many requests")
        if reply is None:
            self.close_connection = True
            return
        status, headers, body = reply
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        try:
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:  # the client has gone
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


def error(status, code, headers=None):
    return status, headers or {}, {"error": {"code": code, "message": "no", "field": "user.id"}}


RESULTS = [{"index": 1, "id": "b", "score": 0.75, "logit": 2}]
RANKED = (200, {}, {"model": "m", "results": RESULTS, "usage": {"prompt_tokens": 3}})


def raw(case, answer):
    """Starts a server that calls answer with every connection that has sent something, and returns its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    case.addCleanup(listener.close)

    def one(connection):
        with connection:
            try:
                connection.recv(1 << 16)
                answer(connection)
            except OSError:
                pass  # the client has gone

    def loop():
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()
    return "http://127.0.0.1:%d" % listener.getsockname()[1]


class Retries(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
        self.server.daemon_threads = True
        self.server.answers, self.server.seen = [], []
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        self.client = grebe.Client(self.url, key="secret", timeout=120)
        self.addCleanup(self.client.close)

    def test_repeats_what_was_not_taken(self):
        self.server.answers = [
            error(503, "unavailable"), error(429, "resource_exhausted", {"Retry-After": "0"}), error(504, "deadline"),
            None, RANKED,
        ]
        answer = self.client.rank("u", ["a", {"id": "b"}], top_k=1)
        self.assertEqual(answer.ids(), ["b"])
        self.assertEqual(list(answer.scores()), [0.75])
        self.assertEqual(answer.usage.prompt_tokens, 3)
        self.assertEqual(len(self.server.seen), 5)
        for method, path, body, headers in self.server.seen:
            self.assertEqual((method, path, headers["Authorization"]), ("POST", "/v1/rank", "Bearer secret"))
            want = {"user": {"id": "u"}, "candidates": [{"id": "a"}, {"id": "b"}], "top_k": 1}
            self.assertEqual(json.loads(body), want)

    def test_does_not_wait_beyond_the_deadline(self):
        self.server.answers = [error(429, "resource_exhausted", {"Retry-After": "3600"})]
        with self.assertRaises(grebe.GrebeError) as got:
            self.client.recommend("u")
        e = got.exception
        self.assertEqual((e.status, e.retry_after, e.field), (429, 3600.0, "user.id"))
        self.assertEqual(len(self.server.seen), 1)

    def test_a_mistake_is_not_repeated(self):
        self.server.answers = [error(400, "invalid_argument")]
        with self.assertRaises(grebe.GrebeError) as got:
            self.client.recommend("u")
        self.assertEqual((got.exception.code, got.exception.message), ("invalid_argument", "no"))

    def test_events_are_not_sent_twice(self):
        self.server.answers = [None]
        with self.assertRaises(grebe.TransportError) as got:
            self.client.append_events("u", [{"item": "a"}])
        self.assertTrue(got.exception.sent)
        self.server.answers = [None, error(503, "unavailable"), (200, {}, {"appended": 1})]
        self.assertEqual(self.client.append_events("u", [{"item": "a", "id": "e1"}]), {"appended": 1})
        self.server.answers = [error(429, "resource_exhausted"), (200, {}, {"appended": 1})]
        self.assertEqual(self.client.append_events("u", [{"item": "a"}]), {"appended": 1})

    def test_a_repeated_delete_finds_nothing(self):
        self.server.answers = [None, error(404, "not_found")]
        self.client.delete_item("a/b")
        self.assertEqual(self.server.seen[0][1], "/v1/items/a%2Fb")
        self.server.answers = [error(404, "not_found")]
        with self.assertRaises(grebe.GrebeError):
            self.client.delete_item("a")

    def test_answers_of_a_proxy(self):
        self.server.answers = [(502, {}, "bad gateway")]
        with self.assertRaises(grebe.GrebeError) as got:
            self.client.models()
        self.assertEqual((got.exception.status, got.exception.code), (502, "502"))

    def test_what_cannot_be_sent(self):
        for bad in (float("nan"), object()):
            with self.assertRaises((ValueError, TypeError)):
                self.client.put_item("a", attributes=bad)
        for server in ("127.0.0.1:8080", "ftp://x", "http://", "http://u:s3cret@x"):
            with self.assertRaises(ValueError) as got:
                grebe.Client(server)
            self.assertNotIn("s3cret", str(got.exception))
        with self.assertRaises(ValueError):
            grebe.Client(timeout=0)

    def test_arrays(self):
        class Array:
            def tolist(self):
                return [1, 2]

        self.server.answers = [(200, {}, {})]
        self.client.put_item("a", tokens=Array())
        self.assertEqual(json.loads(self.server.seen[0][2]), {"id": "a", "tokens": [1, 2]})

    def test_asyncio(self):
        self.server.answers = [RANKED] * 20

        async def run():
            async with grebe.AsyncClient(self.url, timeout=120, concurrency=4) as client:
                return await asyncio.gather(*(client.rank("u", ["a", "b"]) for _ in range(20)))

        self.assertEqual([a.ids() for a in asyncio.run(run())], [["b"]] * 20)

    def test_answers_that_are_not_grebes(self):
        bodies = (
            b"<html>", b"[1]", b"null", b"", b'{"results":[{"x":1}]}', b'{"results":"no"}', b'{"model":"\xff"}',
            b'{"model":"m","usage":3}',
        )
        for body in bodies:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            with grebe.Client(raw(self, lambda c: c.sendall(head + body)), timeout=120) as client:
                for call in (client.recommend, lambda u: client.rank(u, ["a"])):
                    with self.assertRaisesRegex(grebe.TransportError, "not an answer of Grebe", msg=body) as got:
                        call("u")
                    self.assertTrue(got.exception.sent)

    def test_an_answer_that_breaks_off_is_asked_for_again(self):
        begins = [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}"]
        whole = b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"results":[],"seed":7}'
        url = raw(self, lambda c: c.sendall(begins.pop() if begins else whole))
        with grebe.Client(url, timeout=120) as client:
            self.assertEqual(client.recommend("u").seed, 7)
        self.assertEqual(begins, [])

    def test_bytes_that_come_slowly_do_not_move_the_deadline(self):
        def drip(start, part):
            def answer(connection):
                connection.sendall(start)
                while True:
                    connection.sendall(part)
                    stop.wait(0.05)
            return answer

        stop = threading.Event()
        self.addCleanup(stop.set)
        for start, part in (
            (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        ):
            with grebe.Client(raw(self, drip(start, part)), timeout=0.3) as client:
                with self.assertRaisesRegex(grebe.TransportError, "timed out"):
                    client.recommend("u")

    def test_waiting_for_a_thread_is_part_of_a_call(self):
        stop = threading.Event()
        self.addCleanup(stop.set)
        asked = []

        def silent(connection):
            asked.append(connection)
            stop.wait()

        url = raw(self, silent)

        async def run():
            async with grebe.AsyncClient(url, timeout=0.3, concurrency=2) as client:
                calls = [client.call("GET", "/v1/models") for _ in range(40)]
                return await asyncio.gather(*calls, return_exceptions=True)

        got = asyncio.run(run())
        self.assertEqual({type(e) for e in got}, {grebe.TransportError})
        self.assertLess(len(asked), 40)  # the others' deadlines passed before a thread was free

    def test_an_interrupted_call_leaves_no_answer_behind(self):
        self.server.answers = [(200, {}, {"appended": 1})] * 2
        with unittest.mock.patch("http.client.HTTPConnection.getresponse", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.client.rank("u", ["a"])
        self.assertEqual(self.client.append_events("u", [{"item": "a"}]), {"appended": 1})

    def test_no_server(self):
        unused = http.server.HTTPServer(("127.0.0.1", 0), Script)
        port = unused.server_port
        unused.server_close()
        client = grebe.Client("http://127.0.0.1:%d" % port, timeout=0.2)
        self.assertFalse(client.ready())
        with self.assertRaises(grebe.TransportError) as got:
            client.append_events("u", [{"item": "a"}])
        self.assertFalse(got.exception.sent)


if __name__ == "__main__":
    unittest.main()
