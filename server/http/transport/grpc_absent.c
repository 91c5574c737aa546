/* Stands in for gRPC in a build without libnghttp2. */
#include "server/http/transport/grpc.h"

enum status grpc_check(struct error *err)
{
    return error_set(err, STATUS_CONFIG,
                     "--grpc-port: this build of lensd has no gRPC; leave the option out, or build "
                     "lensd with libnghttp2 (Debian: libnghttp2-dev)");
}

enum status grpc_start(struct http_server *server, struct error *err)
{
    (void)server;
    return grpc_check(err);
}

void grpc_begin_end(struct grpc_server *grpc)
{
    (void)grpc;
}

void grpc_stop(struct grpc_server *grpc)
{
    (void)grpc;
}
