// What receiving.cc reports of the frames of messages.
#pragma once

struct zmq_msg_t;

namespace messages {

// Around each attempt of this thread to receive a frame, with what came of it.
void before_receiving();
void after_receiving(zmq_msg_t* message, bool received);

}  // namespace messages
