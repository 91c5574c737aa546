"""Time limits, priorities, fairness between clients, refusals in time, and clients that leave."""

import http.client
import threading
import time
import unittest

import harness
import small_onnx
from harness import ServedCase, ServedModelCase, multipart, png, post, read_answer, seven


class SlowCase(ServedModelCase):
    """One image at a time through a model that takes some tens of milliseconds for each."""

    # On a busy machine what is put into the queue may take longer than the half minute that is the default.
    arguments = ("--max-batch", "1", "--workers", "1", "--precision", "fp32", "--max-queue-ms", "3600000",
                 "--max-queue", "2048")

    @staticmethod
    def write_model(path):
        small_onnx.convolutions(path, 24)

    def form(self, images):
        content_type, body = multipart([("image", "a.png", seven())] * images)
        return post("/predict", body, f"Content-Type: {content_type}")

    def counts(self):
        model = self.server.get("/health").json()["models"][0]
        return model["queued"], model["in_flight"]

    def flood(self, requests, images):
        """Connections that each have put `images` into the queue."""
        held, admitted = [], self.server.admitted()
        for _ in range(requests):
            connection = self.server.connect()
            connection.sendall(self.form(images))
            held.append(connection)
        self.server.wait_admitted(admitted + requests)
        return held

    def leave(self, held):
        for connection in held:
            connection.close()
        self.server.wait_for(lambda: self.counts() == (0, 0), "an empty queue")

    def seconds_an_image(self):
        """The shortest of some: what the machine does beside it is not the model's."""
        times = []
        for _ in range(5):
            start = time.monotonic()
            self.assertEqual(self.server.predict(seven()).status, 200)
            times.append(time.monotonic() - start)
        return min(times)


class TimeLimits(SlowCase):
    def test_headers_that_are_no_numbers(self):
        for name, wrong in (("X-Request-Timeout-Ms", "soon"), ("X-Request-Timeout-Ms", "0"),
                            ("X-Request-Timeout-Ms", "-5"), ("X-Request-Timeout-Ms", "86400001"),
                            ("X-Request-Timeout-Ms", "1e3"), ("X-Priority", "9"),
                            ("X-Priority", "high"), ("X-Priority", "-1")):
            answer = self.server.predict(seven(), headers={name: wrong})
            self.assert_error(answer, 400, "invalid_request", name, wrong)

    def test_enough_time(self):
        for limit, priority in (("60000", "1"), ("86400000", "0"), ("1" + "0" * 7, "8")):
            answer = self.server.predict(seven(), headers={"X-Request-Timeout-Ms": limit,
                                                           "X-Priority": priority})
            self.assertEqual(answer.status, 200, answer.body)

    def test_too_little_for_any_pass_is_refused_before_the_body(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: 1\r\n"
                               b"Content-Length: 40000000\r\n\r\n")
            answer, _ = read_answer(connection)
        self.assertIn(answer.status, (503, 504))
        if answer.status == 503:
            self.assert_error(answer, 503, "overloaded", "the request allows")
            self.assertGreaterEqual(int(answer.headers["retry-after"]), 1)

    def test_what_cannot_be_met_behind_a_queue_is_refused(self):
        limit = str(max(1, int(self.seconds_an_image() * 16 * 1000)))
        # Sixty-four times as long a queue: on a busy machine it must not be served before the request arrives.
        held = self.flood(16, 64)
        answer = self.server.predict(seven(), headers={"X-Request-Timeout-Ms": limit})
        while answer.status == 504:  # a busy machine took longer than the limit to bring it
            self.assert_error(answer, 504, "deadline_exceeded", "before it had arrived")
            answer = self.server.predict(seven(), headers={"X-Request-Timeout-Ms": limit})
        self.assert_error(answer, 503, "overloaded", "try again in")
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertGreaterEqual(self.server.metric('lensd_refused_total{model="served",cause="overloaded"}'), 1)
        self.leave(held)


class LateBodies(ServedCase):
    """The time limit counts while the body arrives. The embedded model answers well within it on any machine."""

    arguments = ("--default-timeout", "3")

    def late(self, *headers):
        """The answer to a request whose last bytes come after more than 3 seconds."""
        data = post("/predict", seven(), *headers)
        with self.server.connect() as connection:
            connection.sendall(data[:-10])
            time.sleep(3.1)
            connection.sendall(data[-10:])
            return read_answer(connection)[0]

    def test_the_request_names_a_limit(self):
        self.assert_error(self.late("X-Request-Timeout-Ms: 3000"), 504, "deadline_exceeded", "time limit")

    def test_the_default_limit(self):
        self.assert_error(self.late(), 504, "deadline_exceeded")

    def test_the_request_names_a_longer_limit(self):
        answer = self.late("X-Request-Timeout-Ms: 600000")
        self.assertEqual(answer.status, 200, answer.body)


class Turns(SlowCase):
    """Who goes first."""

    def test_a_flood_does_not_stop_another_client(self):
        held = self.flood(4, 48)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port,
                                                timeout=harness.PATIENCE,
                                                source_address=("127.0.0.2", 0))
        connection.request("POST", "/predict", seven())
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        self.assertGreater(sum(self.counts()), 96, "the flood was served first")
        self.leave(held)

    def test_the_urgent_overtake(self):
        held = self.flood(2, 32)
        order, guard = [], threading.Lock()

        def ask(priority):
            answer = self.server.predict(seven(), headers={"X-Priority": priority})
            with guard:
                order.append((priority, answer.status))

        threads = []
        for priority in ("8", "4", "1"):
            threads.append(threading.Thread(target=ask, args=(priority,), daemon=True))
            admitted = self.server.admitted()
            threads[-1].start()
            self.server.wait_admitted(admitted + 1)
        for thread in threads:
            thread.join(harness.PATIENCE)
        self.assertEqual(order[0], ("1", 200))
        self.leave(held)


class Leaving(SlowCase):
    arguments = (*SlowCase.arguments, "--max-queue", "200")

    def test_who_hangs_up_makes_room_at_once(self):
        """The queue is of seconds; those who leave are out of it before one more pass is over."""
        held = self.flood(5, 34)
        self.assertGreater(self.counts()[0], 100)
        with self.server.connect() as connection:
            connection.sendall(self.form(60))
            self.assert_error(read_answer(connection)[0], 503, "overloaded", "200")
        runs = self.server.metric("lensd_batch_size_count")
        for connection in held:
            connection.close()
        self.server.wait_for(lambda: self.counts()[0] == 0, "an empty queue")
        self.assertLess(self.server.metric("lensd_batch_size_count") - runs, 100)
        self.assertEqual(self.server.predict(seven()).status, 200)
        self.server.wait_for(lambda: self.counts() == (0, 0), "nothing left")
        self.assertGreater(
            self.server.metric('lensd_images_total{model="served",result="cancelled"}'), 100)


class Bounds(SlowCase):
    arguments = (*SlowCase.arguments, "--max-queue-bytes", "100K", "--max-queue-ms", "500")

    def test_bytes(self):
        large = png(2000, 2000)
        self.assertGreater(len(large), 100 * 1024)
        self.assert_error(self.server.predict(large), 413, "too_large", "--max-queue-bytes")

    def test_milliseconds(self):
        held = []
        for _ in range(250):  # a pass takes more than 500 / 250 ms
            connection = self.server.connect()
            connection.sendall(post("/predict", seven()))
            held.append(connection)
        statuses = []
        for connection in held:
            with connection:
                answer, _ = read_answer(connection)
                statuses.append(answer.status)
                if answer.status == 503:
                    self.assert_error(answer, 503, "overloaded", "--max-queue-ms")
        self.assertEqual(set(statuses), {200, 503})


if __name__ == "__main__":
    unittest.main()
