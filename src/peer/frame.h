/* The head of a frame: shared by the codec (message.c), the reader (frame.c) and the writer
 * (connection.c), which cuts only between frames. */
#ifndef PEER_FRAME_H
#define PEER_FRAME_H

#include "keel_limits.h"

enum {
    FRAME_HEAD_BYTES = 16,
    FRAME_BYTES_MAX = FRAME_HEAD_BYTES + KEEL_FRAME_BYTES,
    FRAME_MORE = 1, /* more pieces of this message follow in this lane */
    /* the lane; neither: urgent */
    FRAME_BULK = 2,
    FRAME_SNAPSHOT = 4,
};

#endif
