/* Keeps a tracker (models/tasks/tracker.h) for each camera that posts its photos one after the
 * other with ?track=NAME. Thread-safe; one lock is held while boxes are assigned to objects. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* A name belongs to a client and to a version of a model. At most TRACKS_ALL names are kept, and
 * TRACKS_OF_CLIENT per client, the most recently used ones. A name is dropped TRACKS_IDLE_S seconds
 * after its last photo, because by then other objects are in view. */
#define TRACKS_ALL       256
#define TRACKS_OF_CLIENT 64
#define TRACKS_IDLE_S    60

struct tracks *tracks_create(void);      /* NULL: out of memory. May grow to 32 MiB */
void tracks_free(struct tracks *tracks); /* accepts NULL */

/* If the options of an answered request name a track, its photos become the track's next frames.
 * Boxes that tracker_update() assigns to no object are dropped from the answers. A failed photo is
 * no frame. A photo fails if memory is short. `client`: less than 128 bytes. `now`: clock_now(). */
void tracks_follow(struct tracks *tracks, struct predict_request *request, const char *client,
                   int64_t now);
