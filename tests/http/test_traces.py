"""Traces for an OpenTelemetry collector: spans of each phase, sampling, retries, never in a request's way."""

import http.server
import json
import threading
import unittest

from harness import FolderCase, drawn, multipart, run_lensd, seven

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Keeps what is posted. `answers`: (status, headers, body) of the first requests; then 200 with {}."""

    def __init__(self, answers=()):
        collector = self
        self.answers, self.posts, self.seen = list(answers), [], threading.Condition()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.seen:
                    status, headers, answer = collector.answers.pop(0) if collector.answers else (200, {}, b"{}")
                    collector.posts.append((self.path, dict(self.headers), json.loads(body), status))
                    collector.seen.notify_all()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that was killed
        self.url = f"http://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        """Those of requests that were answered with 200."""
        with self.seen:
            return [span for _, _, body, status in self.posts if status == 200
                    for resource in body["resourceSpans"] for scope in resource["scopeSpans"]
                    for span in scope["spans"]]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def attributes(owner):
    """{key: value}; numbers are written as text, as the protocol wants."""
    found = {}
    for entry in owner["attributes"]:
        kind, value = next(iter(entry["value"].items()))
        assert kind in ("stringValue", "intValue") and isinstance(value, str), entry
        found[entry["key"]] = int(value) if kind == "intValue" else value
    return found


class Traces(FolderCase):
    def collector(self, answers=()):
        collector = Collector(answers)
        self.addCleanup(collector.close)
        return collector

    def spans_of(self, server, collector, trace):
        def find():
            return [span for span in collector.spans() if span["traceId"] == trace]
        found = server.wait_for(find, f"spans of {trace}")
        roots = [span for span in found if span["kind"] == 2]
        self.assertEqual(len(roots), 1)
        return roots[0], [span for span in found if span["kind"] == 1]

    def test_a_photo(self):
        collector = self.collector()
        server = self.serve("--trace-endpoint", collector.url, environment={
            "OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%2Cb, x-team = vision",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,k8s.pod.name=p1"})
        kind, body = multipart([("image", f"{i}.png", drawn(i)) for i in range(3)])
        answer = server.predict(body, headers={"Content-Type": kind, "traceparent": f"00-{TRACE}-{SPAN}-01",
                                               "X-Request-Id": "one"})
        self.assertEqual(answer.status, 200)
        root, phases = self.spans_of(server, collector, TRACE)
        path, headers, post, _ = collector.posts[0]
        self.assertEqual((path, headers["Content-Type"]), ("/v1/traces", "application/json"))
        self.assertEqual((headers["x-token"], headers["x-team"]), ("a,b", "vision"))
        resource = attributes(post["resourceSpans"][0]["resource"])
        self.assertEqual((resource["service.name"], resource["k8s.pod.name"]), ("lensd", "p1"))
        self.assertEqual((root["name"], root["parentSpanId"]), ("POST /predict", SPAN))
        self.assertEqual(root["spanId"], answer.headers["traceparent"].split("-")[2])
        said = attributes(root)
        self.assertEqual({key: said[key] for key in
                          ("http.request.method", "http.route", "http.response.status_code", "lensd.model",
                           "lensd.images", "lensd.device", "lensd.request.id", "http.request.body.size")},
                         {"http.request.method": "POST", "http.route": "/predict", "http.response.status_code": 200,
                          "lensd.model": "digits", "lensd.images": 3, "lensd.device": "cpu",
                          "lensd.request.id": "one", "http.request.body.size": len(body)})
        self.assertGreaterEqual(said["lensd.batch.size"], 1)
        self.assertNotIn("status", root)
        self.assertEqual([span["name"] for span in phases if span["name"] != "queue"],
                         ["read", "decode", "preprocess", "forward", "answer", "write"])
        ends = [int(root["startTimeUnixNano"])]
        for span in phases:
            self.assertEqual((span["parentSpanId"], len(span["spanId"])), (root["spanId"], 16))
            begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            self.assertGreaterEqual(begin, ends[-1] - 1000)  # milliseconds are rounded to nanoseconds
            self.assertGreater(end, begin)
            ends.append(end)
        self.assertLessEqual(ends[-1], int(root["endTimeUnixNano"]))
        self.assertEqual(len({span["spanId"] for span in phases} | {root["spanId"]}), len(phases) + 1)

    def test_traces_begin_here_without_a_header(self):
        collector = self.collector()
        server = self.serve("--trace-endpoint", collector.url + "/")
        answer = server.predict(b"no photo")
        trace = answer.headers["traceparent"].split("-")[1]
        root, phases = self.spans_of(server, collector, trace)
        self.assertNotIn("parentSpanId", root)
        self.assertEqual(attributes(root)["error.type"], "unsupported_media_type")
        self.assertEqual([span["name"] for span in phases], ["write"])
        # Health checks are not exported: what comes next is the next prediction.
        server.get("/livez")
        trace = server.predict(seven()).headers["traceparent"].split("-")[1]
        self.spans_of(server, collector, trace)
        self.assertEqual({span["name"] for span in collector.spans() if span["kind"] == 2}, {"POST /predict"})

    def test_sampling_is_the_callers_first(self):
        collector = self.collector()
        server = self.serve("--trace-endpoint", collector.url, "--trace-sample", "0")
        own = server.predict(seven()).headers["traceparent"]
        self.assertTrue(own.endswith("-00"), own)
        server.predict(seven(), headers={"traceparent": f"00-{'1' * 32}-{SPAN}-00"})
        server.predict(seven(), headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        self.spans_of(server, collector, TRACE)
        self.assertEqual({span["traceId"] for span in collector.spans()}, {TRACE})

    def test_a_busy_collector_is_asked_again(self):
        collector = self.collector([(503, {"Retry-After": "1"}, b""), (429, {}, b"busy")])
        server = self.serve("--trace-endpoint", collector.url)
        trace = server.predict(seven()).headers["traceparent"].split("-")[1]
        self.spans_of(server, collector, trace)
        self.assertEqual([status for *_, status in collector.posts], [503, 429, 200])
        server.wait_log("the collector answers 503")
        server.wait_log("accepts traces again")
        server.wait_metric("lensd_traces_sent_total", 1)
        self.assertEqual(server.metric("lensd_traces_dropped_total"), 0)

    def test_what_it_refuses_is_dropped(self):
        collector = self.collector([(400, {}, b"")])
        server = self.serve("--trace-endpoint", collector.url)
        server.predict(seven())
        server.wait_metric("lensd_traces_dropped_total", 1)
        server.wait_log("the collector answers 400; traces dropped")

    def test_what_it_rejects_in_part_is_told(self):
        collector = self.collector([(200, {}, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}')])
        server = self.serve("--trace-endpoint", collector.url)
        server.predict(seven())
        server.wait_log("has rejected 2 spans: too old")
        server.wait_metric("lensd_trace_failures_total", 1)

    def test_no_collector_costs_no_answer(self):
        server = self.serve("--trace-endpoint", "http://127.0.0.1:9")
        for _ in range(20):
            self.assertEqual(server.predict(seven()).status, 200)
        server.wait_log("traces wait")
        self.assert_ended(server)

    def test_the_last_traces_are_sent_at_the_end(self):
        collector = self.collector()
        server = self.serve("--trace-endpoint", collector.url)
        trace = server.predict(seven()).headers["traceparent"].split("-")[1]
        self.assert_ended(server)
        self.assertIn(trace, {span["traceId"] for span in collector.spans()})

    def test_mistakes_are_told_at_start(self):
        for arguments, environment, words in (
                (("--trace-endpoint", "localhost:4318"), {}, "must begin with http://"),
                (("--trace-endpoint", "http://"), {}, "must be an address"),
                (("--trace-endpoint", "http://a:99999"), {}, "must be an address"),
                (("--trace-endpoint", "http://a:1/?x"), {}, "must be an address"),
                (("--trace-endpoint", "http://a/v1/traces"), {}, "leave out /v1/traces"),
                (("--trace-sample", "2"), {}, "--trace-sample is '2'"),
                (("--trace-sample", "nan"), {}, "--trace-sample is 'nan'"),
                (("--trace-endpoint", "http://a"), {"OTEL_EXPORTER_OTLP_HEADERS": "x"}, "key=value"),
                (("--trace-endpoint", "http://a"), {"OTEL_EXPORTER_OTLP_HEADERS": "x=%0d%0aY: 1"}, "one line")):
            ended = run_lensd("serve", "digits", "--port", "0", *arguments, environment=environment)
            self.assertEqual(ended.returncode, 2, (arguments, ended.stderr))
            self.assertIn(words, ended.stderr)


if __name__ == "__main__":
    unittest.main()
