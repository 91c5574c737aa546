/* ByteTrack (Zhang et al., ECCV 2022, arXiv 2110.06864): gives the boxes of successive frames of a
 * camera the numbers of their objects. Ignores classes. The parameters here and in tracker.c are
 * those of Ultralytics' bytetrack.yaml; tests compare with it. */
#pragma once

#include "models/tasks/detect.h"

#define TRACKER_LOW     0.1f  /* a box with a score up to this is ignored */
#define TRACKER_HIGH    0.25f /* a box with a lower score begins no track */
#define TRACKER_BOXES   300   /* boxes of a frame that are tracked: the best */
#define TRACKER_OBJECTS 500   /* objects that a tracker follows */

/* Zeroed: no frame yet. One thread at a time. */
struct tracker {
    uint64_t frame; /* number of the last frame, from 1 */
    uint32_t last_id;
    size_t count;
    struct tracked_object {
        /* Middle x and y, height, and width / height, each with its speed. The four are
         * independent, so the covariance matrix has four blocks of 2 x 2: [place, both; both,
         * spread]. */
        struct motion {
            double at, speed, place, both, spread;
        } motions[4];
        struct detection box, *seen; /* `box`: predicted; `seen`: in this frame, or NULL */
        uint32_t id;
        uint64_t first, last; /* the first and the last frame with a box of the object */
        bool is_sure;         /* frame 1 or two frames had a box of the object */
        bool is_old;          /* the next frame without a box of the object removes it */
        bool is_gone;         /* the object is removed at the end of this frame */
    } objects[TRACKER_OBJECTS];
};

/* Takes the boxes of the next frame, best first, of a photo of `width` x `height` pixels. *found
 * keeps the boxes of objects, with their track_id, at the filter's positions, clipped to the photo.
 * The first box of an object is not kept, unless it is in frame 1. Boxes with scores up to `least`
 * continue tracks, but are not kept. STATUS_NO_MEMORY: nothing has changed. */
enum status tracker_update(struct tracker *tracker, struct detections *found, float width,
                           float height, float least, struct error *err) MUST_USE;
