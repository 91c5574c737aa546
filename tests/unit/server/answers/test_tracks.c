/* States of cameras: who shares one, and how long it is kept. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/answers/tracks.h"

#define SECOND ((int64_t)1000000000)

static char model_name[] = "cars", version[] = "1";
static struct model cars = {
    .name = model_name, .version = version, .task = {.kind = TASK_DETECTION}};

/* Posts a photo with one box. Returns the number of its frame. */
static uint64_t post_to(struct tracks *tracks, const struct model *model, const char *client,
                        const char *name, int64_t now)
{
    const struct detection box = {10, 10, 40, 40, .score = .9f};
    struct task_options options = TASK_OPTIONS_NONE;
    struct predict_image image = {.width = 64, .height = 64};
    struct detections *found = &image.answer.detections;
    struct predict_request request = {
        .images = &image, .image_count = 1, .options = &options, .used_model = model};
    options.track = name;
    found->items = malloc(sizeof box);
    found->items[0] = box;
    found->count = 1;
    tracks_follow(tracks, &request, client, now);
    cr_expect_eq(image.status, STATUS_OK);
    cr_expect_eq(found->count, 1);
    cr_expect_eq(found->items[0].track_id, image.frame > 0);
    task_answer_done(&image.answer);
    return image.frame;
}

static uint64_t post(struct tracks *tracks, const char *client, const char *name, int64_t now)
{
    return post_to(tracks, &cars, client, name, now);
}

Test(tracks, a_state_belongs_to_a_name_of_a_client_and_to_a_version)
{
    static char other_name[] = "boats", second[] = "2";
    struct model boats = cars, newer = cars, turned = cars;
    struct tracks *tracks = tracks_create();
    boats.name = other_name;
    newer.version = second;
    turned.task.kind = TASK_ORIENTED;
    cr_expect_eq(post(tracks, "", "door", SECOND), 1);
    cr_expect_eq(post(tracks, "", "door", SECOND), 2);
    cr_expect_eq(post(tracks, "", "yard", SECOND), 1);
    cr_expect_eq(post(tracks, "ann", "door", SECOND), 1);
    cr_expect_eq(post(tracks, "bob", "door", SECOND), 1);
    cr_expect_eq(post_to(tracks, &boats, "", "door", SECOND), 1);
    cr_expect_eq(post_to(tracks, &newer, "", "door", SECOND), 1);
    cr_expect_eq(post(tracks, "ann", "door", SECOND), 2);
    cr_expect_eq(post(tracks, "", "door", SECOND), 3);
    cr_expect_eq(post_to(tracks, &turned, "", "door", SECOND), 0, "there is no such track");
    cr_expect_eq(post(tracks, "", NULL, SECOND), 0);
    tracks_free(tracks);
}

Test(tracks, a_state_is_dropped_a_minute_after_its_last_photo)
{
    struct tracks *tracks = tracks_create();
    cr_expect_eq(post(tracks, "", "door", SECOND), 1);
    cr_expect_eq(post(tracks, "", "door", 60 * SECOND), 2);
    cr_expect_eq(post(tracks, "", "door", 120 * SECOND), 3);
    cr_expect_eq(post(tracks, "", "door", 181 * SECOND), 1);
    tracks_free(tracks);
}

Test(tracks, a_client_s_oldest_name_goes_first)
{
    struct tracks *tracks = tracks_create();
    char name[32];
    int64_t now = SECOND;
    cr_expect_eq(post(tracks, "bob", "door", now++), 1);
    for (int i = 0; i < 5 * TRACKS_OF_CLIENT; i++) {
        snprintf(name, sizeof name, "camera-%d", i);
        cr_expect_eq(post(tracks, "ann", name, now++), 1);
        cr_expect_eq(post(tracks, "ann", "gate", now++), (uint64_t)i + 1, "it is used");
    }
    cr_expect_eq(post(tracks, "bob", "door", now++), 2, "another client's stays");
    snprintf(name, sizeof name, "camera-%d", 4 * TRACKS_OF_CLIENT + 1);
    cr_expect_eq(post(tracks, "ann", name, now++), 2);
    snprintf(name, sizeof name, "camera-%d", 4 * TRACKS_OF_CLIENT);
    cr_expect_eq(post(tracks, "ann", name, now++), 1, "64 were used after it");
    tracks_free(tracks);
}

Test(tracks, the_oldest_name_of_all_goes_when_there_are_many_clients)
{
    struct tracks *tracks = tracks_create();
    char client[32];
    int64_t now = SECOND;
    for (int i = 0; i < TRACKS_ALL + 1; i++) {
        snprintf(client, sizeof client, "client-%d", i);
        cr_expect_eq(post(tracks, client, "door", now++), 1);
    }
    cr_expect_eq(post(tracks, "client-1", "door", now++), 2);
    cr_expect_eq(post(tracks, "client-0", "door", now++), 1, "it was the oldest");
    cr_expect_eq(post(tracks, "client-2", "door", now++), 1, "and now this one was");
    tracks_free(tracks);
}

Test(tracks, photos_of_a_request_are_frames_in_their_order)
{
    struct tracks *tracks = tracks_create();
    struct task_options options = TASK_OPTIONS_NONE;
    struct predict_image images[3] = {
        {.width = 64, .height = 64}, {.status = STATUS_BAD_IMAGE}, {.width = 64, .height = 64}};
    struct predict_request request = {
        .images = images, .image_count = 3, .options = &options, .used_model = &cars};
    options.track = "door";
    tracks_follow(tracks, &request, "", SECOND);
    cr_expect_eq(images[0].frame, 1);
    cr_expect_eq(images[1].frame, 0, "a photo that failed is no frame");
    cr_expect_eq(images[1].status, STATUS_BAD_IMAGE);
    cr_expect_eq(images[2].frame, 2);
    tracks_free(tracks);
}
