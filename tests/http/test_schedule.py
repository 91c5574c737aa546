"""Time limits, priorities, fairness between clients, refusals in time, and clients that leave."""

import base64
import json
import time
import unittest

from harness import HeldCase, ServedCase, hang_up, multipart, png, post, read_answer, seven


class QueueCase(HeldCase):
    """One image at a time, however long the queue."""

    arguments = ("--max-batch", "1", "--max-queue", "100000", "--max-queue-ms", "0")

    def counts(self):
        model = self.server.get("/health").json()["models"][0]
        return model["queued"], model["in_flight"]

    def wait_empty(self):
        self.server.wait_for(lambda: self.counts() == (0, 0), "an empty queue")


class TimeLimits(QueueCase):
    trips = 1000

    def test_headers_that_are_no_numbers(self):
        for name, wrong in (("X-Request-Timeout-Ms", "soon"), ("X-Request-Timeout-Ms", "0"),
                            ("X-Request-Timeout-Ms", "-5"), ("X-Request-Timeout-Ms", "86400001"),
                            ("X-Request-Timeout-Ms", "1e3"), ("X-Priority", "9"),
                            ("X-Priority", "high"), ("X-Priority", "-1")):
            answer = self.server.predict(self.DARK, headers={name: wrong})
            self.assert_error(answer, 400, "invalid_request", name, wrong)

    def test_enough_time(self):
        for limit, priority in (("600000", "1"), ("86400000", "0"), ("1" + "0" * 7, "8")):
            answer = self.server.predict(self.DARK, headers={"X-Request-Timeout-Ms": limit,
                                                             "X-Priority": priority})
            self.assertEqual(answer.status, 200, answer.body)

    def test_too_little_for_any_pass_is_refused_before_the_body(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: 1\r\n"
                               b"Content-Length: 40000000\r\n\r\n")
            answer, _ = read_answer(connection)
        self.assertIn(answer.status, (503, 504))
        if answer.status == 503:
            self.assert_error(answer, 503, "overloaded", "of the request's time limit are left")
            self.assertGreaterEqual(int(answer.headers["retry-after"]), 1)

    def test_what_cannot_be_met_behind_a_queue_is_refused(self):
        each = self.server.get("/devices").json()["devices"][0]["models"][0]["batches"][0]["milliseconds"]
        held = [self.hold()]
        limit = 1000
        while True:
            # The queue takes four times as long or more, by the server's own estimate.
            while self.counts()[0] * each < 4 * limit:
                held.append(self.send([self.DARK] * 64))
            answer = self.server.predict(self.DARK, headers={"X-Request-Timeout-Ms": str(limit)})
            if answer.status == 504:  # a busy machine took longer than the limit to bring it
                self.assert_error(answer, 504, "deadline_exceeded", "before it had arrived")
            elif b"even without other requests" in answer.body:  # so slow is this machine at present
                limit *= 4
            else:
                break
        self.assert_error(answer, 503, "overloaded", "try again in")
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertGreaterEqual(self.server.metric('lensd_refused_total{model="served",cause="overloaded"}'), 1)
        for connection in held:
            hang_up(connection)
        self.wait_empty()


class LateBodies(ServedCase):
    """The time limit counts while the body arrives. The embedded model answers well within it on any machine."""

    arguments = ("--default-timeout", "1")

    def late(self, *headers):
        """The answer to a request whose last bytes come more than a second after the server has the others."""
        data = post("/predict", seven(), *headers)
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        with self.server.connect() as connection:
            connection.sendall(data[:-10])
            self.server.wait_for(lambda: self.server.metric("lensd_http_upload_bytes") > 0, "the beginning")
            time.sleep(1.1)
            connection.sendall(data[-10:])
            return read_answer(connection)[0]

    def test_the_request_names_a_limit(self):
        self.assert_error(self.late("X-Request-Timeout-Ms: 1000"), 504, "deadline_exceeded", "time limit")

    def test_the_default_limit(self):
        self.assert_error(self.late(), 504, "deadline_exceeded")

    def test_the_request_names_a_longer_limit(self):
        answer = self.late("X-Request-Timeout-Ms: 600000")
        self.assertEqual(answer.status, 200, answer.body)


class Turns(QueueCase):
    """Who goes first."""

    def test_a_flood_does_not_stop_another_client(self):
        """The flood's last photo keeps the lane: who comes behind it is never served."""
        first = self.hold()
        flood = [self.send([self.DARK] * 48) for _ in range(3)] + [self.send([self.LIGHT])]
        other = self.send([self.DARK], source="127.0.0.2")
        hang_up(first)
        self.assertEqual(read_answer(other)[0].status, 200)
        for connection in flood:
            hang_up(connection)
        self.wait_empty()

    def test_the_urgent_overtake(self):
        """The two that came before it keep the lane for ever once they have it."""
        first = self.hold(32)  # fills every place beside the lane, too
        others = [self.send([self.LIGHT], f"X-Priority: {priority}") for priority in (8, 4)]
        urgent = self.send([self.DARK], "X-Priority: 1")
        hang_up(first)
        self.assertEqual(read_answer(urgent)[0].status, 200)
        for connection in others:
            hang_up(connection)
        self.wait_empty()

    def test_the_urgent_overtake_in_other_protocols(self):
        photo = base64.b64encode(self.DARK).decode()
        tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [photo]}
        for path, body in (("/v2/models/served/infer", {"inputs": [tensor]}),
                           ("/v1/models/served:predict", {"instances": [photo]})):
            with self.subTest(path=path), self.server.connect() as urgent:
                first = self.hold(32)
                others = [self.send([self.LIGHT], f"X-Priority: {priority}") for priority in (8, 4)]
                admitted = self.server.admitted()
                urgent.sendall(post(path, json.dumps(body).encode(), "X-Priority: 1"))
                self.server.wait_for(lambda before=admitted: self.server.admitted() > before, "the request")
                hang_up(first)
                self.assertEqual(read_answer(urgent)[0].status, 200)
                for connection in others:
                    hang_up(connection)
                self.wait_empty()


class Leaving(QueueCase):
    arguments = ("--max-batch", "1", "--max-queue", "200", "--max-queue-ms", "0")

    def test_who_hangs_up_makes_room_at_once(self):
        """Without a single forward pass."""
        held = self.hold()
        flood = [self.send([self.DARK] * 34) for _ in range(5)]
        self.assertEqual(sum(self.counts()), 171)
        refused = self.send([self.DARK] * 60)
        self.assert_error(read_answer(refused)[0], 503, "overloaded", "200")
        runs = self.server.metric("lensd_batch_size_count")
        for connection in flood:
            hang_up(connection)
        self.server.wait_for(lambda: self.counts()[0] == 0, "an empty queue")
        let_in = self.send([self.DARK] * 60)
        self.assertFalse(self.is_answered(let_in))
        self.assertEqual(self.server.metric("lensd_batch_size_count"), runs)
        hang_up(held)
        self.assertEqual(read_answer(let_in)[0].status, 200)
        self.wait_empty()
        self.server.wait_metric('lensd_images_total{model="served",result="cancelled"}', 171)


class Bounds(QueueCase):
    arguments = ("--max-batch", "1", "--max-queue", "100000", "--max-queue-bytes", "100K", "--max-queue-ms", "20")

    def test_bytes(self):
        large = png(2000, 2000)
        self.assertGreater(len(large), 100 * 1024)
        self.assert_error(self.server.predict(large), 413, "too_large", "--max-queue-bytes")

    def test_milliseconds(self):
        waiting = [self.hold()]
        while not self.is_answered(waiting[-1]):
            waiting.append(self.send([self.DARK] * 8))
        self.assert_error(read_answer(waiting.pop())[0], 503, "overloaded", "--max-queue-ms")
        hang_up(waiting.pop(0))
        for connection in waiting:
            self.assertEqual(read_answer(connection)[0].status, 200)


if __name__ == "__main__":
    unittest.main()
