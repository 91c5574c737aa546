"""Just enough HTTP/2 and gRPC to talk to --grpc-port, and to send what no library would: frames by hand, headers as
HPACK literals. Python's standard library only."""

import socket
import struct

import harness
from harness import Server, free_port

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 1, 4, 1
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, REFUSED_STREAM, CANCEL, CALM = 0, 1, 2, 3, 7, 8, 11
TABLE_SIZE, WINDOW_SIZE = 1, 4  # of SETTINGS
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/inference.GRPCInferenceService/"

# RFC 7541, appendix B: the code is canonical, so that lengths are enough ("A" is 5 bits).
LENGTHS = ("ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABABABBBACCBBBABCB"
           "AABCCCCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRSVVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQ"
           "QSRRUUTTVSVWVVWWWWWXWWWWWVZ")


def make_codes():
    codes, code, before = {}, 0, 5
    for bits, symbol in sorted((ord(letter) - ord("A") + 5, symbol) for symbol, letter in enumerate(LENGTHS)):
        code <<= bits - before
        before = bits
        codes[bits, code] = symbol
        code += 1
    return codes


CODES = make_codes()
# Of the static table what lensd's answers begin with.
STATIC = {8: (b":status", b"200"), 31: (b"content-type", b"")}


def unhuffman(data):
    out, bits, code = b"", 0, 0
    for byte in data:
        for shift in range(7, -1, -1):
            code, bits = code << 1 | byte >> shift & 1, bits + 1
            if (bits, code) in CODES:
                out += bytes([CODES[bits, code]])
                bits = code = 0
    return out


def integer(value, prefix, first=0):
    """An HPACK integer."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytes([first | most]), value - most
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def literal(name, value, kind=0):
    """A header as a literal; kind 0x40: with an entry in the dynamic table."""
    name, value = (text.encode() if isinstance(text, str) else text for text in (name, value))
    return bytes([kind]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def read_integer(data, at, prefix):
    most = (1 << prefix) - 1
    value, shift = data[at] & most, 0
    at += 1
    while value >= most:
        value += (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 128:
            break
    return value, at


def read_text(data, at):
    is_coded = data[at] & 128
    size, at = read_integer(data, at, 7)
    text = data[at:at + size]
    return unhuffman(text) if is_coded else text, at + size


def headers_of(block):
    """A header block of a server that may not use the dynamic table."""
    at, headers = 0, {}
    while at < len(block):
        byte = block[at]
        if byte & 0x80:
            index, at = read_integer(block, at, 7)
            name, value = STATIC[index]
        elif byte & 0x20 and not byte & 0x40:
            _, at = read_integer(block, at, 5)
            continue
        else:
            index, at = read_integer(block, at, 6 if byte & 0x40 else 4)
            if index:
                name = STATIC[index][0]
            else:
                name, at = read_text(block, at)
            value, at = read_text(block, at)
        headers[name.decode()] = value.decode()
    return headers


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def message(payload, compressed=0, size=None):
    """A message with its prefix."""
    return struct.pack(">BI", compressed, len(payload) if size is None else size) + payload


def percent_decoded(text):
    out, at, raw = b"", 0, text.encode()
    while at < len(raw):
        is_coded = raw[at:at + 1] == b"%"
        out += bytes([int(raw[at + 1:at + 3], 16)]) if is_coded else raw[at:at + 1]
        at += 3 if is_coded else 1
    return out.decode()


class Reply:
    """What a call was answered with. `reset`: the code of RST_STREAM, None without."""

    def __init__(self):
        self.headers, self.data, self.reset, self.is_over = {}, b"", None, False

    @property
    def status(self):
        return int(self.headers["grpc-status"]) if "grpc-status" in self.headers else None

    @property
    def sentence(self):
        return percent_decoded(self.headers.get("grpc-message", ""))

    @property
    def messages(self):
        found, rest = [], self.data
        while rest:
            size = struct.unpack(">I", rest[1:5])[0]
            if len(rest) < 5 + size:
                break
            found.append(rest[5:5 + size])
            rest = rest[5 + size:]
        return found


class Closed(Exception):
    """The server has closed the connection."""


class Http2:
    """A connection. `settings`: (number, value) beside an empty dynamic table. Windows are given back at once unless
    `is_slow`."""

    def __init__(self, connection, settings=(), is_slow=False):
        self.socket, self.is_slow = connection, is_slow
        self.buffer, self.replies, self.stream = b"", {}, -1
        self.goaway, self.goaway_stream, self.settings, self.pongs = None, None, None, 0
        pairs = b"".join(struct.pack(">HI", *pair) for pair in ((TABLE_SIZE, 0), *settings))
        self.send(PREFACE + frame(SETTINGS, payload=pairs))

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def send_until_closed(self, data, times):
        """What a flood does: sends `data` again and again until the server has had enough."""
        try:
            for _ in range(times):
                self.socket.sendall(data)
        except OSError:
            pass

    def read_exactly(self, size):
        while len(self.buffer) < size:
            try:
                piece = self.socket.recv(65536)
            except ConnectionError:
                piece = b""
            if not piece:
                raise Closed()
            self.buffer += piece
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def read_frame(self):
        head = self.read_exactly(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big")
        payload = self.read_exactly(size)
        self.take(kind, flags, stream, payload)
        return kind, flags, stream, payload

    def take(self, kind, flags, stream, payload):
        reply = self.replies.get(stream)
        if kind == SETTINGS and not flags & ACK:
            self.settings = {number: value for number, value in struct.iter_unpack(">HI", payload)}
            self.send_until_closed(frame(SETTINGS, ACK), 1)
        elif kind == PING:
            self.pongs += flags & ACK
        elif kind == GOAWAY:
            self.goaway_stream, self.goaway = struct.unpack(">II", payload[:8])
        elif reply and kind == HEADERS:
            reply.headers.update(headers_of(payload))
        elif reply and kind == DATA:
            reply.data += payload
            if payload and not self.is_slow:
                grow = struct.pack(">I", len(payload))
                self.send_until_closed(frame(WINDOW_UPDATE, 0, 0, grow) + frame(WINDOW_UPDATE, 0, stream, grow), 1)
        elif reply and kind == RST_STREAM:
            reply.reset = struct.unpack(">I", payload)[0]
            reply.is_over = True
        if reply and kind in (HEADERS, DATA) and flags & END_STREAM:
            reply.is_over = True

    def read_until(self, condition):
        while not condition():
            self.read_frame()

    def read_to_end(self):
        """Until the server closes; returns GOAWAY's code."""
        try:
            self.read_until(lambda: False)
        except Closed:
            return self.goaway

    def head(self, method, headers=()):
        """The header block of a call."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", method if method[:1] == "/" else SERVICE + method),
                  (":authority", "localhost"), ("te", "trailers"), *headers]
        if not any(name == "content-type" for name, _ in headers):
            fields.append(("content-type", "application/grpc"))
        return b"".join(literal(name, value) for name, value in fields)

    def begin(self, method, headers=()):
        """Sends the headers of a call; returns its stream."""
        self.read_until(lambda: self.settings is not None)  # before it is acknowledged, windows are small
        self.stream += 2
        self.replies[self.stream] = Reply()
        self.send(frame(HEADERS, END_HEADERS, self.stream, self.head(method, headers)))
        return self.stream

    def data(self, stream, payload, end=True):
        pieces = [payload[at:at + 16384] for at in range(0, len(payload), 16384)] or [b""]
        for i, piece in enumerate(pieces):
            self.send(frame(DATA, END_STREAM if end and i == len(pieces) - 1 else 0, stream, piece))

    def answer(self, stream):
        self.read_until(lambda: self.replies[stream].is_over)
        return self.replies[stream]

    def call(self, method, payload=b"", headers=()):
        """A call with one message."""
        stream = self.begin(method, headers)
        self.data(stream, message(payload))
        return self.answer(stream)


def serve(*arguments, **options):
    """A server with gRPC; another program may take the port before it does: then once more."""
    for _ in range(5):
        port = free_port()
        try:
            server = Server(*arguments, "--grpc-port", str(port), **options)
            server.grpc_port = port
            return server
        except AssertionError as error:
            if f"port {port} on " not in str(error):
                raise
    raise AssertionError("no free port")


def connect(server, settings=(), is_slow=False, wrap=None):
    plain = socket.create_connection(("127.0.0.1", server.grpc_port), harness.PATIENCE)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Http2(wrap(plain) if wrap else plain, settings, is_slow)
