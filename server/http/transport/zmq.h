/* ZeroMQ on a separate endpoint (--zmq-port), for Frigate's detector of type zmq.
 *
 * libzmq is loaded only with --zmq-port, and reads the TCP sockets on its own thread. A thread of
 * lensd owns a ROUTER socket. The thread reads a client's message (an empty frame, which REQ
 * sockets send first, and one or two more frames), makes an exchange of the message, and sends the
 * answer to that client. So memory limits, the log, metrics and draining work as for HTTP. ZeroMQ
 * carries no API key.
 *
 * If the exchange fails or exceeds its time limit, the client gets the handler's `failure` instead
 * of an answer. Source: libzmq's zmq.h 4.3; rfc.zeromq.org 28 (REQ and ROUTER). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct exchange;
struct http_options;
struct http_server;
struct zmq_server;

/* The message of an exchange, for its handler. */
struct zmq_frames {
    const void *header, *tensor; /* borrowed; they live as long as the exchange */
    size_t header_size, tensor_size;
    bool has_tensor;     /* false: the message has only the header */
    char model[128];     /* the model that this client has named; "": none. The handler of a message
                            without a tensor sets it; if the answer is 200, later messages of the
                            client get it */
    const char *failure; /* constant to send if the answer is not 200; zeros by default. NULL: send
                            nothing, so that the client starts again */
    size_t failure_size;
};

/* Returns the message of an exchange that came over ZeroMQ. */
struct zmq_frames *zmq_frames_of(struct exchange *exchange);

/* Loads libzmq and checks the endpoint without binding it. STATUS_CONFIG. */
enum status zmq_check(const struct http_options *options, struct error *err) MUST_USE;

/* Binds server->options.zmq_port and serves zmq_routes. Sets server->zmq_server, also on failure,
 * for zmq_stop(). STATUS_CONFIG, STATUS_NOT_READY, STATUS_NO_MEMORY, STATUS_IO. */
enum status zmq_start(struct http_server *server, struct error *err) MUST_USE;

/* Stops reading messages. */
void zmq_begin_end(struct zmq_server *zmq);

/* True if some messages have no answer yet. Accepts NULL. */
bool zmq_is_busy(const struct zmq_server *zmq);

/* Sends the finished answers and closes the socket. No exchange may be waiting. Accepts NULL. */
void zmq_stop(struct zmq_server *zmq);
