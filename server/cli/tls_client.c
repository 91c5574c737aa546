/* A TLS client over a connected socket, for `lensd health`. */
#include "server/cli/tls_client.h"

#include <gnutls/gnutls.h>
#include <stdlib.h>

struct tls_client {
    gnutls_session_t session;
    gnutls_certificate_credentials_t credentials;
};

struct tls_client *tls_client_open(int fd)
{
    struct tls_client *client = calloc(1, sizeof *client);
    if (!client)
        return NULL;
    int failure = gnutls_init(&client->session, GNUTLS_CLIENT);
    if (failure == 0)
        failure = gnutls_certificate_allocate_credentials(&client->credentials);
    if (failure == 0)
        failure = gnutls_set_default_priority(client->session);
    if (failure == 0)
        failure =
            gnutls_credentials_set(client->session, GNUTLS_CRD_CERTIFICATE, client->credentials);
    if (failure == 0) {
        gnutls_transport_set_int(client->session, fd);
        do
            failure = gnutls_handshake(client->session);
        while (failure == GNUTLS_E_INTERRUPTED || failure == GNUTLS_E_WARNING_ALERT_RECEIVED);
    }
    if (failure == 0)
        return client;
    tls_client_free(client);
    return NULL;
}

ssize_t tls_client_send(struct tls_client *client, const void *bytes, size_t size)
{
    return gnutls_record_send(client->session, bytes, size);
}

ssize_t tls_client_receive(struct tls_client *client, void *bytes, size_t size)
{
    return gnutls_record_recv(client->session, bytes, size);
}

void tls_client_free(struct tls_client *client)
{
    if (!client)
        return;
    if (client->session)
        gnutls_deinit(client->session);
    if (client->credentials)
        gnutls_certificate_free_credentials(client->credentials);
    free(client);
}
