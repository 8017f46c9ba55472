#include "comm_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The n-th message that is sent on a stream (from, to, tag) meets the n-th receive posted on it. */
typedef struct message {
  int32_t from, to, tag;
  uint64_t number;
  size_t bytes;
  double ready_at;
  struct message *next;
  char data[];
} message_t;

typedef struct stream {
  int32_t from, to, tag;
  skv__way_t way;
  uint64_t posted;
  struct stream *next;
} stream_t;

struct kit_world {
  pthread_mutex_t lock;
  int32_t ranks;
  uint64_t random; /* 0: no delays */
  bool *muted;     /* [ranks] */
  message_t *messages;
  stream_t *streams;
};

kit_world_t *kit_world_create(int32_t ranks, uint64_t delay_seed) {
  kit_world_t *world = calloc(1, sizeof *world);
  world->ranks = ranks;
  world->random = delay_seed;
  world->muted = calloc((size_t)ranks, sizeof *world->muted);
  pthread_mutex_init(&world->lock, NULL);
  return world;
}

void kit_world_destroy(kit_world_t *world) {
  while (world->messages) {
    message_t *next = world->messages->next;
    free(world->messages);
    world->messages = next;
  }
  while (world->streams) {
    stream_t *next = world->streams->next;
    free(world->streams);
    world->streams = next;
  }
  pthread_mutex_destroy(&world->lock);
  free(world->muted);
  free(world);
}

void kit_world_mute(kit_world_t *world, int32_t rank) {
  pthread_mutex_lock(&world->lock);
  world->muted[rank] = true;
  pthread_mutex_unlock(&world->lock);
}

/* splitmix64 */
static uint64_t draw(kit_world_t *world) {
  uint64_t z = world->random += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static stream_t *find_stream(kit_world_t *world, skv__way_t way, int32_t from, int32_t to,
                             int32_t tag) {
  stream_t *stream = world->streams;
  while (stream &&
         !(stream->way == way && stream->from == from && stream->to == to && stream->tag == tag))
    stream = stream->next;
  if (!stream) {
    stream = calloc(1, sizeof *stream);
    *stream = (stream_t){
        .from = from, .to = to, .tag = tag, .way = way, .posted = 0, .next = world->streams};
    world->streams = stream;
  }
  return stream;
}

/* request.handle: [0] number in its stream, [1] offset of the piece, [2] a send that waits for its
 * receive to be posted, [3] a message that was lost. */
static skv_status_t start(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                          skv__error_t *error) {
  (void)error;
  const kit_seat_t *seat = impl;
  kit_world_t *world = seat->world;
  bool sends = request->way == SKV__SEND;
  int32_t from = sends ? seat->rank : request->peer, to = sends ? request->peer : seat->rank;
  pthread_mutex_lock(&world->lock);
  request->handle[0] = find_stream(world, request->way, from, to, request->tag)->posted++;
  request->handle[1] = offset;
  request->handle[2] = sends && world->random && draw(world) % 2;
  request->handle[3] = sends && world->muted[seat->rank];
  if (sends && !world->muted[seat->rank]) {
    message_t *message = malloc(sizeof *message + bytes);
    double delay = world->random ? (double)(draw(world) % 300) * 1e-6 : 0;
    *message = (message_t){.from = from,
                           .to = to,
                           .tag = request->tag,
                           .number = request->handle[0],
                           .bytes = bytes,
                           .ready_at = skv__comm_now() + delay,
                           .next = world->messages};
    memcpy(message->data, (const char *)request->data + offset, bytes);
    world->messages = message;
  }
  pthread_mutex_unlock(&world->lock);
  return SKV_OK;
}

static message_t **find(kit_world_t *world, const skv__request_t *request, int32_t from,
                        int32_t to) {
  message_t **at = &world->messages;
  while (*at && !((*at)->from == from && (*at)->to == to && (*at)->tag == request->tag &&
                  (*at)->number == request->handle[0]))
    at = &(*at)->next;
  return at;
}

static skv_status_t receive(skv__request_t *request, message_t **at, bool *done,
                            skv__error_t *error) {
  message_t *message = *at;
  if (!message || message->ready_at > skv__comm_now())
    return SKV_OK;
  skv_status_t status = SKV_OK;
  if (message->bytes != request->flying_bytes)
    status = skv__fail(error, SKV_PEER, "rank %d sent %zu bytes where %zu were expected",
                       (int)request->peer, message->bytes, request->flying_bytes);
  else
    memcpy((char *)request->data + request->handle[1], message->data, message->bytes);
  *at = message->next;
  free(message);
  *done = true;
  return status;
}

static skv_status_t test(void *impl, skv__request_t *request, bool *done, skv__error_t *error) {
  const kit_seat_t *seat = impl;
  kit_world_t *world = seat->world;
  skv_status_t status = SKV_OK;
  pthread_mutex_lock(&world->lock);
  if (request->way == SKV__RECEIVE)
    status = receive(request, find(world, request, request->peer, seat->rank), done, error);
  else
    *done = !request->handle[3] &&
            (!request->handle[2] ||
             find_stream(world, SKV__RECEIVE, seat->rank, request->peer, request->tag)->posted >
                 request->handle[0]);
  pthread_mutex_unlock(&world->lock);
  return status;
}

static void cancel(void *impl, skv__request_t *request) {
  (void)impl;
  (void)request; /* a receive writes only inside test */
}

static void destroy(void *impl, bool healthy) {
  (void)healthy;
  free(impl);
}

static const skv__transport_t threads_transport = {.name = "threads",
                                                   .piece_bytes = SIZE_MAX,
                                                   .start = start,
                                                   .test = test,
                                                   .cancel = cancel,
                                                   .destroy = destroy};

skv_status_t kit_world_open(skv__comm_t **comm, double timeout_seconds, void *seat,
                            skv__error_t *error) {
  const kit_seat_t *given = seat;
  kit_seat_t *mine = malloc(sizeof *mine);
  *mine = *given;
  return skv__comm_create(comm, &threads_transport, mine, mine->rank, mine->world->ranks,
                          timeout_seconds, error);
}
