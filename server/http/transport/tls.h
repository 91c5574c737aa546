/* TLS: the server's certificate, replaceable at run time.
 *
 * GnuTLS drives the handshakes and calls tls_on_handshake() for the certificate; tls_reload()
 * replaces it for later handshakes. Handshakes in progress keep their certificate, so a replaced
 * one (some kilobytes) is freed when the server ends.
 *
 * A process can have only one struct tls, because GnuTLS passes no context to that callback. */
#pragma once

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* TLS 1.2 and 1.3, forward secrecy, authenticated ciphers. */
#define TLS_PRIORITIES                                                                             \
    "NONE:+VERS-TLS1.3:+VERS-TLS1.2:+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:+AEAD:"           \
    "+ECDHE-ECDSA:+ECDHE-RSA:+GROUP-X25519:+GROUP-SECP256R1:+GROUP-SECP384R1:+SIGN-ALL:"           \
    "-SIGN-RSA-SHA1:-SIGN-ECDSA-SHA1:-SIGN-DSA-SHA1:+COMP-NULL:+CTYPE-X509:%SERVER_PRECEDENCE"

struct tls;

/* Reads a certificate (PEM, followed by its chain in any order) and its key (PEM, not encrypted).
 * STATUS_CONFIG with the file's name if a file is missing, not PEM or encrypted, or if the key
 * belongs to another certificate. The paths are borrowed. The caller frees *ret, also after a
 * failure. */
enum status tls_create(const char *cert_file, const char *key_file, struct tls **ret,
                       struct error *err) MUST_USE;

/* Call this after the last handshake. Accepts NULL. */
void tls_free(struct tls *tls);

/* Reads the files again. On failure the certificate does not change. One thread at a time. */
enum status tls_reload(struct tls *tls, struct error *err) MUST_USE;

/* Writes a warning about a usable certificate: it has expired, expires within two weeks or is not
 * valid yet, or every user can read the key. Returns false if all is well. */
bool tls_warning(const struct tls *tls, char *text, size_t size);

/* When the certificate expires; seconds since 1970. */
int64_t tls_expires(const struct tls *tls);

/* Callback for MHD_OPTION_HTTPS_CERT_CALLBACK (a gnutls_certificate_retrieve_function2). */
int tls_on_handshake(gnutls_session_t session, const gnutls_datum_t *names, int name_count,
                     const gnutls_pk_algorithm_t *algorithms, int algorithm_count,
                     gnutls_pcert_st **ret_chain, unsigned *ret_count, gnutls_privkey_t *ret_key);

/* For connections that lensd drives without libmicrohttpd: returns a session for a non-blocking
 * socket, which negotiates `protocol` by ALPN; call gnutls_deinit(). */
bool tls_session(gnutls_certificate_credentials_t credentials, int fd, const char *protocol,
                 gnutls_session_t *ret);

/* Sends `bytes` and ends our side of the session. Call it only from the thread that drives the
 * session. If the client does not read, some or all bytes are lost. */
void tls_send_last(gnutls_session_t session, const void *bytes, size_t size);
