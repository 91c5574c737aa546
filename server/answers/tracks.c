/* A table of trackers. */
#include "server/answers/tracks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "models/tasks/tracker.h"

struct tracks {
    pthread_mutex_t lock;
    struct track_state {
        char key[384]; /* client, name, version and model, separated by line ends */
        int64_t used;  /* clock_now() of the last photo; 0: unused */
        struct tracker tracker;
    } states[TRACKS_ALL];
};

struct tracks *tracks_create(void)
{
    struct tracks *tracks = calloc(1, sizeof *tracks);
    if (tracks)
        pthread_mutex_init(&tracks->lock, NULL);
    return tracks;
}

void tracks_free(struct tracks *tracks)
{
    if (tracks)
        pthread_mutex_destroy(&tracks->lock);
    free(tracks);
}

/* Returns the state of `key`. If there is none, a new one replaces the oldest state, or the
 * client's oldest state if the client has TRACKS_OF_CLIENT. */
static struct track_state *find_state(struct tracks *tracks, const char *key, int64_t now)
{
    struct track_state *place = tracks->states,
                       *own = NULL; /* the oldest state; the client's oldest one */
    size_t count = 0;
    for (struct track_state *state = place; state < tracks->states + TRACKS_ALL; state++) {
        if (clock_ms(now - state->used) > 1000 * TRACKS_IDLE_S)
            state->used = 0;
        if (state->used && !strcmp(state->key, key))
            return state;
        if (state->used < place->used)
            place = state;
        if (!state->used || strncmp(state->key, key, strcspn(key, "\n") + 1) != 0)
            continue;
        count++;
        if (!own || state->used < own->used)
            own = state;
    }
    if (count >= TRACKS_OF_CLIENT)
        place = own;
    memset(place, 0, sizeof *place);
    snprintf(place->key, sizeof place->key, "%s", key);
    return place;
}

void tracks_follow(struct tracks *tracks, struct predict_request *request, const char *client,
                   int64_t now)
{
    const struct task_options *options = request->options;
    const struct model *model = request->used_model;
    char key[sizeof tracks->states->key];
    if (!options || !options->track || !model || !task_has_option(&model->task, "track"))
        return;
    snprintf(key, sizeof key, "%s\n%s\n%s\n%s", client, options->track, model->version,
             model->name);
    for (size_t i = 0; i < request->image_count; i++) {
        struct predict_image *image = &request->images[i];
        if (image->status != STATUS_OK)
            continue;
        LOCK(&tracks->lock);
        struct track_state *state = find_state(tracks, key, now);
        image->status =
            tracker_update(&state->tracker, &image->answer.detections, (float)image->width,
                           (float)image->height, options->confidence, &image->error);
        image->frame = state->tracker.frame;
        state->used = now;
    }
}
