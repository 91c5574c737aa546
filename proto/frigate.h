/* The JSON that Frigate's ZeroMQ detector sends before a tensor.
 * Source: frigate/detectors/plugins/zmq_ipc.py. */
#pragma once

#include "engine/tensor/tensor.h"

enum frigate_kind {
    FRIGATE_ASKS_MODEL,  /* {"model_request": true, "model_name": "yolo.onnx"} */
    FRIGATE_SENDS_MODEL, /* {"model_data": true, …}: a file follows */
    FRIGATE_TENSOR,      /* {"shape": [1, 320, 320, 3], "dtype": "uint8", …}: a tensor follows */
};

struct frigate_header {
    enum frigate_kind kind;
    char model[128];    /* the file's name without ".onnx"; "" with FRIGATE_TENSOR */
    enum dtype dtype;   /* this and the next two only with FRIGATE_TENSOR */
    struct shape shape; /* four dimensions of 1 or more; checked with shape_check() */
    size_t bytes;       /* of the whole tensor */
};

#define FRIGATE_HEADER_MAX 4096 /* bytes; Frigate sends a few hundred */

/* Parses a header. Borrows nothing. STATUS_INVALID. */
enum status frigate_header_parse(const char *text, size_t size, struct frigate_header *ret,
                                 struct error *err) MUST_USE;
