/* Keeps a tracker (models/tasks/tracker.h) for each camera whose photos are posted one after the
 * other: ?track=NAME. Thread-safe; one lock is held while a photo's boxes are assigned. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* A name belongs to a client and to a version of a model. The names used last are kept: at most
 * TRACKS_ALL, and TRACKS_OF_CLIENT per client. A name is dropped TRACKS_IDLE_S seconds after its
 * last photo, because other objects are in view by then. */
#define TRACKS_ALL       256
#define TRACKS_OF_CLIENT 64
#define TRACKS_IDLE_S    60

struct tracks *tracks_create(void);      /* NULL: out of memory. Up to 32 MiB, as cameras need */
void tracks_free(struct tracks *tracks); /* accepts NULL */

/* Takes the photos of an answered request whose options name a track as its next frames, in their
 * order. Their answers keep the boxes of objects (tracker_update). A photo that failed is no frame;
 * one for which there is no memory fails. `client`: less than 128 bytes. `now`: clock_now(). */
void tracks_follow(struct tracks *tracks, struct predict_request *request, const char *client,
                   int64_t now);
